//! The `paced` daemon and its tools.

// They panic where stdout or stderr takes nothing any more; `cli::out` and the log do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod admin;
mod cli;
mod daemon;
mod status;
mod telemetry;

use std::process::ExitCode;

/// The memory of a job is seldom freed by the thread that took it, for which the allocator of the C library needs more
/// processor time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::main()
}
