//! The resources of a process, read from /proc.

use std::fs;
use std::time::Duration;

/// Linux reports hundredths of a second to every program, for any tick of the kernel.
const TICK: Duration = Duration::from_millis(10);

/// The processor time of a process so far, in user and kernel mode, to 10 ms.
pub fn cpu(pid: u32) -> Result<Duration, String> {
    let file = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
    // The name in parentheses may hold anything; after it, utime and stime are fields 14 and 15.
    let fields = text.rsplit_once(") ").map(|(_, rest)| rest.split(' ').skip(11).take(2));
    let ticks = fields.and_then(|fields| fields.map(|field| field.parse::<u32>().ok()).sum::<Option<u32>>());
    ticks.map(|ticks| TICK * ticks).ok_or_else(|| format!("{file} is not as expected: {text}"))
}

/// The resident memory of a process now, in MiB.
pub fn memory(pid: u32) -> Result<f64, String> {
    status(pid, "VmRSS:")
}

/// The most resident memory that a process has had, in MiB.
pub fn peak_memory(pid: u32) -> Result<f64, String> {
    status(pid, "VmHWM:")
}

/// A size of a process, in MiB.
fn status(pid: u32, name: &str) -> Result<f64, String> {
    let file = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u32>().ok());
    kib.map(|kib| f64::from(kib) / 1024.0).ok_or_else(|| format!("{file} has no {name}"))
}
