//! Describes the machine and the programs.

use std::fs;
use std::process::Command;

use crate::report::{Machine, Run};
use crate::stage::Stage;

/// The description of the machine for the page.
pub async fn describe(stage: &Stage) -> Result<Machine, String> {
    let cpus = fs::read_to_string("/proc/cpuinfo").map_err(|error| format!("/proc/cpuinfo: {error}"))?;
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    let virtual_machine = field(&cpus, "flags").is_some_and(|flags| flags.contains("hypervisor"));
    let guest = if virtual_machine { ", a virtual machine" } else { "" };
    let cores = std::thread::available_parallelism().map_err(|error| error.to_string())?;
    let model = field(&cpus, "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let memory = fs::read_to_string("/proc/meminfo").map_err(|error| format!("/proc/meminfo: {error}"))?;
    let kib = field(&memory, "MemTotal").and_then(|kib| kib.strip_suffix(" kB")?.parse::<u64>().ok());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let redis = output("redis-server", &["--version"])?;
    let redis = redis.split("v=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or(&redis);
    Ok(Machine::new(vec![
        ("processor", format!("{model}, {cores} cores{guest}")),
        ("memory", format!("{} GiB", kib.unwrap_or(0) >> 20)),
        ("kernel", format!("Linux {}", kernel.trim())),
        ("Redis", redis.to_owned()),
        ("RabbitMQ", format!("{}, one scheduler", stage.rabbit.version().await)),
        ("rustc", output("rustc", &["--version"])?.trim_start_matches("rustc ").to_owned()),
    ]))
}

/// The description of this run for the page.
pub fn run(command: String) -> Run {
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string();
    // Without the repository only the version is known.
    let commit = output("git", &["rev-parse", "--short", "HEAD"]).map(|commit| {
        let changed = output(
            "git",
            &["diff", "--quiet", "HEAD", "--", "src", "benches", "tests/support", "Cargo.toml", "Cargo.lock"],
        )
        .is_err();
        format!(" ({commit}{})", if changed { ", changed" } else { "" })
    });
    let commit = commit.unwrap_or_default();
    Run { date, command, paced: format!("paced {}{commit}", env!("CARGO_PKG_VERSION")) }
}

fn output(program: &str, args: &[&str]) -> Result<String, String> {
    let done = Command::new(program).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    match done {
        Ok(done) if done.status.success() => Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned()),
        Ok(done) => Err(format!("{program} ended with {}", done.status)),
        Err(error) => Err(format!("{program}: {error}")),
    }
}
