//! What Linux tells about a process under `/proc`.

use std::fs;

use crate::BoxError;

/// CPU time that the threads which a process has now have used so far, user and kernel. `/proc/<pid>/stat` has it in ticks of
/// 10 ms, which is more than some windows here use; the scheduler keeps it in nanoseconds.
///
/// # Errors
///
/// The process is gone, or the kernel was built without statistics of its scheduler.
pub fn cpu_seconds(pid: u32) -> Result<f64, BoxError> {
    let mut nanos = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let path = thread?.path().join("schedstat");
        let stat = fs::read_to_string(&path)?;
        nanos += parse_cpu_nanos(&stat).ok_or_else(|| format!("{} is not as expected", path.display()))?;
    }
    Ok(nanos as f64 / 1e9)
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

/// On a CPU, waiting for one, and how often.
fn parse_cpu_nanos(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

fn kib_of(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_the_first_of_what_the_scheduler_says() {
        assert_eq!(parse_cpu_nanos("2000000000 77 3\n"), Some(2_000_000_000));
        assert_eq!(parse_cpu_nanos(""), None);
    }

    #[test]
    fn what_a_process_does_is_seen_to_the_millisecond() {
        let pid = std::process::id();
        let (before, began) = (cpu_seconds(pid).expect("readable"), std::time::Instant::now());
        while cpu_seconds(pid).expect("readable") < before + 0.001 {
            assert!(began.elapsed().as_secs() < 60, "nothing is counted");
        }
    }

    #[test]
    fn own_figures_can_be_read() {
        let pid = std::process::id();
        assert!(cpu_seconds(pid).is_ok());
        assert!(peak_rss_kib(pid).is_ok_and(|kib| kib > 0));
        assert!(rss_bytes(pid).is_ok_and(|bytes| bytes > 0));
    }
}
