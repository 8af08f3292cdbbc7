//! The `paced` daemon and its tools.

mod admin;
mod cli;
mod telemetry;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
