//! The memory of this node that a job may use: the memory of the host, or less if control groups (cgroups) limit
//! it.
//!
//! Groups are nested and each may have a limit, so the path is walked up to the root. In a container
//! `/proc/self/cgroup` may name a path that is not mounted; then only the limits further up are visible. Both versions
//! of the interface can be mounted (version 1 for memory, version 2 without controllers), so both are read.
//!
//! ```text
//! /proc/self/cgroup   4:memory:/job/17      ->  /sys/fs/cgroup/memory/job/17/memory.limit_in_bytes, /job, /
//!                     0::/job.slice/17      ->  /sys/fs/cgroup/job.slice/17/memory.max, /job.slice, /
//! ```

use std::path::Path;

/// Assumed where nothing can be read. Unit: bytes.
const FALLBACK_BYTES: u64 = 1 << 30;

/// The memory of the node, at most what control groups allow. Unit: bytes.
pub fn available_bytes() -> u64 {
    available_below(Path::new("/"))
}

/// As [`available_bytes`], in the file tree at `root`.
fn available_below(root: &Path) -> u64 {
    let machine_bytes = read(&root.join("proc/meminfo")).and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    let groups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = root.join("sys/fs/cgroup");
    let limits = groups.lines().flat_map(|line| {
        let mut words = line.splitn(3, ':');
        let (_, controllers, path) = (words.next(), words.next().unwrap_or(""), words.next().unwrap_or("/"));
        let mut found = Vec::new();
        if controllers.split(',').any(|name| name == "memory") {
            found.extend(least_limit(&mounts.join("memory"), path, "memory.limit_in_bytes"));
        } else if controllers.is_empty() {
            found.extend(least_limit(&mounts, path, "memory.max"));
            found.extend(least_limit(&mounts.join("unified"), path, "memory.max"));
        }
        found
    });
    limits.chain(machine_bytes).min().unwrap_or(FALLBACK_BYTES)
}

/// The least limit of the group at `path` and of its ancestors. "max" and numbers that do not fit are no limits.
fn least_limit(mount: &Path, path: &str, file: &str) -> Option<u64> {
    let group = Path::new(path.trim_start_matches('/'));
    let limit = |group: &Path| read(&mount.join(group).join(file))?.trim().parse::<u64>().ok();
    group.ancestors().filter_map(limit).min()
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn available(files: &[(&str, &str)]) -> u64 {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        available_below(root.path())
    }

    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal:        8388608 kB\nMemFree:  1 kB\n");

    #[test]
    fn without_cgroups_the_machine_memory_is_available() {
        assert_eq!(available(&[MACHINE]), 8 * GIB);
        assert_eq!(available(&[MACHINE, ("proc/self/cgroup", "0::/\n")]), 8 * GIB);
        assert_eq!(available(&[]), FALLBACK_BYTES);
    }

    #[test]
    fn cgroup_v2_limits_of_ancestors_apply() {
        let group = ("proc/self/cgroup", "0::/a.slice/b.scope\n");
        let unlimited = ("sys/fs/cgroup/a.slice/b.scope/memory.max", "max\n");
        let outer = ("sys/fs/cgroup/a.slice/memory.max", "2147483648\n");
        assert_eq!(available(&[MACHINE, group, unlimited]), 8 * GIB);
        assert_eq!(available(&[MACHINE, group, unlimited, outer]), 2 * GIB);
        let inner = ("sys/fs/cgroup/a.slice/b.scope/memory.max", "1073741824");
        assert_eq!(available(&[MACHINE, group, inner, outer]), GIB);
    }

    #[test]
    fn cgroup_v1_limits_of_ancestors_apply_if_the_own_group_is_hidden() {
        let groups = ("proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/docker/abc\n0::/\n");
        let root = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "3221225472\n");
        assert_eq!(available(&[MACHINE, groups, root]), 3 * GIB);
        let own = ("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(available(&[MACHINE, groups, own]), 8 * GIB);
    }

    #[test]
    fn a_limit_above_the_machine_memory_is_ignored() {
        let files =
            [MACHINE, ("proc/self/cgroup", "0::/g\n"), ("sys/fs/cgroup/g/memory.max", "999999999999")];
        assert_eq!(available(&files), 8 * GIB);
    }
}
