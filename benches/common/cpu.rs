//! Time on a CPU.

use std::collections::HashMap;
use std::fmt::Display;
use std::fs;

/// Of each thread of a process (`self` or a number), in ns. Finer than the 10 ms of /proc/…/stat.
pub fn nanos_by_thread(process: impl Display) -> HashMap<String, u64> {
    let threads = fs::read_dir(format!("/proc/{process}/task"))
        .unwrap()
        .map(|entry| entry.unwrap());
    let nanos = |schedstat: String| schedstat.split_whitespace().next()?.parse().ok();
    threads
        .map(|thread| {
            let schedstat = fs::read_to_string(thread.path().join("schedstat")).unwrap();
            (
                thread.file_name().into_string().unwrap(),
                nanos(schedstat).unwrap(),
            )
        })
        .collect()
}
