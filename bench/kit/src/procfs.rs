//! What Linux tells about a process under `/proc`.

use std::fs;

use crate::BoxError;

/// CPU time that a process has used so far, user and kernel, over all its threads.
///
/// # Errors
///
/// The process is gone.
pub fn cpu_seconds(pid: u32) -> Result<f64, BoxError> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_cpu_seconds(&stat).ok_or_else(|| format!("/proc/{pid}/stat is not as expected").into())
}

/// The most memory that a process has had resident so far.
///
/// # Errors
///
/// The process is gone.
pub fn peak_rss_kib(pid: u32) -> Result<u64, BoxError> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    kib_of(&status, "VmHWM:").ok_or_else(|| format!("/proc/{pid}/status has no VmHWM, is the process gone?").into())
}

/// The memory that a process has resident now.
///
/// # Errors
///
/// The process is gone.
pub fn rss_bytes(pid: u32) -> Result<u64, BoxError> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = kib_of(&status, "VmRSS:").ok_or_else(|| format!("/proc/{pid}/status has no VmRSS"))?;
    Ok(kib * 1024)
}

/// CPU model, number of CPUs and kernel, for the head of a report.
pub fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let model = fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|info| {
            let line = info.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        })
        .unwrap_or_else(|| "CPU unknown".to_owned());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cpus} CPUs, {model}, Linux {}", kernel.trim())
}

/// Tasks that were runnable over the last minute, on average.
pub fn load_average() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// `USER_HZ`, which Linux has fixed at 100 in all that it shows to user space.
const TICKS_PER_SECOND: f64 = 100.0;

fn parse_cpu_seconds(stat: &str) -> Option<f64> {
    // The second field is the program's name in brackets and may itself hold blanks and brackets.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    let user: f64 = fields.nth(11)?.parse().ok()?;
    let kernel: f64 = fields.next()?.parse().ok()?;
    Some((user + kernel) / TICKS_PER_SECOND)
}

fn kib_of(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_an_awkward_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 9 9 20 0 3 0";
        assert_eq!(parse_cpu_seconds(stat), Some(2.0));
    }

    #[test]
    fn own_figures_can_be_read() {
        let pid = std::process::id();
        assert!(cpu_seconds(pid).is_ok());
        assert!(peak_rss_kib(pid).is_ok_and(|kib| kib > 0));
        assert!(rss_bytes(pid).is_ok_and(|bytes| bytes > 0));
    }
}
