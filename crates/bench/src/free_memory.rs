//! Measures the memory that processes on this host may still use, by the kernel and by the limits of cgroups.
//! Benchmarks skip or end a job before the host runs out of memory; `weir sim` chooses by it how many worlds run at
//! a time.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval between checks while a job runs. A transport that fills 4 GB/s takes 200 MB in it.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Memory that must stay free. Unit: bytes.
pub const MIN_FREE_BYTES: u64 = 1 << 30;

/// Memory that processes may still use, according to the kernel and to the limits of our cgroups. Unit: bytes.
pub fn available_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok();
    let of_node = meminfo.as_deref().and_then(available_of_meminfo);
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_groups = groups(&own).into_iter().filter_map(|group| available_in_cgroup(&group));
    // Limits of the old interface, without what is used of them.
    let limit = weir_engine::node_memory::available_bytes();
    of_node.into_iter().chain(of_groups).chain([limit]).min()
}

/// A callback that ends a job when less than [`MIN_FREE_BYTES`] is left.
pub fn watch() -> impl FnMut() -> bool {
    let mut looked = Instant::now();
    move || {
        if looked.elapsed() < POLL_INTERVAL {
            return true;
        }
        looked = Instant::now();
        available_bytes().is_none_or(|bytes| bytes >= MIN_FREE_BYTES)
    }
}

fn available_of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Our cgroup and its ancestors in the unified hierarchy.
fn groups(own: &str) -> Vec<PathBuf> {
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::/")) else { return Vec::new() };
    let root = Path::new("/sys/fs/cgroup");
    root.join(path).ancestors().take_while(|group| group.starts_with(root)).map(Path::to_owned).collect()
}

fn available_in_cgroup(group: &Path) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    // `max` means no limit.
    let limit = number("memory.max")?;
    // The page cache counts as used, but the kernel reclaims it first.
    let stat = read("memory.stat").unwrap_or_default();
    let cached =
        stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse::<u64>().ok());
    let used = number("memory.current")?.saturating_sub(cached.unwrap_or(0));
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mem_available_is_parsed() {
        let text = "MemTotal:       24683520 kB\nMemAvailable:   23843916 kB\n";
        assert_eq!(available_of_meminfo(text), Some(23_843_916 * 1024));
        assert_eq!(available_of_meminfo("MemTotal: 1 kB\n"), None);
        assert!(available_bytes().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn all_parent_cgroups_count() {
        let root = Path::new("/sys/fs/cgroup");
        assert_eq!(groups("1:x:/y\n0::/a/b\n"), [root.join("a/b"), root.join("a"), root.to_owned()]);
        assert_eq!(groups("0::/\n"), [root.to_owned()]);
        assert!(groups("1:memory:/a\n").is_empty());
    }

    #[test]
    fn cgroup_limits_ignore_the_page_cache() {
        let group = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(group.path().join(name), text).unwrap();
        assert_eq!(available_in_cgroup(group.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "900\n");
        assert_eq!(available_in_cgroup(group.path()), None);
        write("memory.max", "1000\n");
        assert_eq!(available_in_cgroup(group.path()), Some(100));
        write("memory.stat", "anon 5\ninactive_file 300\n");
        assert_eq!(available_in_cgroup(group.path()), Some(400));
    }
}
