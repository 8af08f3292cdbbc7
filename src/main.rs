//! The `paced` daemon and its tools.

// They panic where stdout or stderr takes nothing any more; `cli::out` and the log do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod admin;
mod cli;
mod daemon;
mod status;
mod telemetry;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
