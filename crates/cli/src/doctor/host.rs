//! Checks of the host: shared memory, locked memory, cores, membarrier.

use super::Finding;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use std::path::Path;
use weir_engine::config::Settings;
use weir_output::quantity::{bytes, count};

/// Less free shared memory is a warning. 64 MiB is the default of containers. It suffices for 31 ranks that all contact each
/// other, with default mailboxes; 8 such ranks use 29 MiB. Unit: bytes.
const RECOMMENDED_BYTES: u64 = 64 << 20;

/// All checks of the host.
pub fn checks(settings: &Settings) -> Vec<Finding> {
    vec![shared_memory(&settings.shm_dir), cores(), membarrier(), locked_memory()]
}

fn shared_memory(directory: &Path) -> Finding {
    const CHECK: &str = "shared mem.";
    let place = directory.display();
    let status = match statfs(directory) {
        Ok(status) => status,
        Err(errno) => {
            return Finding::fail(
                CHECK,
                format!("{place}: {}", errno.desc()),
                "set FI_WEIR_SHM_DIR to an existing directory",
            );
        }
    };
    // A file without a name: it disappears also if this process is killed.
    if let Err(error) = tempfile::tempfile_in(directory) {
        return Finding::fail(
            CHECK,
            format!("{place}: cannot create a file: {error}"),
            "give the user write permission, or set FI_WEIR_SHM_DIR to another directory",
        );
    }
    let block = u64::try_from(status.block_size()).unwrap_or(0);
    let (size, free) =
        (status.blocks().saturating_mul(block), status.blocks_available().saturating_mul(block));
    let seen = format!("{place}: {} free of {}", bytes(free), bytes(size));
    if free < RECOMMENDED_BYTES {
        Finding::warn(
            CHECK,
            seen,
            format!(
                "free some of it, or make it larger (docker run --shm-size 1g; mount -o remount,size=1g {place})"
            ),
        )
    } else if status.filesystem_type() != TMPFS_MAGIC {
        Finding::warn(
            CHECK,
            format!("{seen}, but it is no tmpfs"),
            "set FI_WEIR_SHM_DIR to a directory on a tmpfs, such as /dev/shm",
        )
    } else {
        Finding::ok(CHECK, seen)
    }
}

fn cores() -> Finding {
    const CHECK: &str = "cores";
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let online = weir_link::cores::count(&online).unwrap_or(0) as u64;
    let bound = weir_link::cores::available() as u64;
    // The standard library also reads the quota of the control group, versions 1 and 2.
    let usable = std::thread::available_parallelism().map_or(bound, |cores| cores.get() as u64);
    let seen = format!("{} usable, of {} on this host", count(usable), count(online.max(bound)));
    if usable < bound {
        Finding::warn(
            CHECK,
            format!(
                "{seen}: a control group limits the time on {bound} cores to that of {usable}, so the kernel pauses ranks"
            ),
            "give the container whole cores (docker run --cpuset-cpus instead of --cpus)",
        )
    } else if usable < 2 {
        Finding::warn(CHECK, format!("{seen}: ranks share a core"), "allow more cores")
    } else {
        Finding::ok(CHECK, seen)
    }
}

fn membarrier() -> Finding {
    const CHECK: &str = "membarrier";
    if weir_link::membarrier::is_available() {
        Finding::ok(CHECK, "available: a sender needs no memory fence for each packet")
    } else {
        Finding::warn(
            CHECK,
            "not available (old kernel, or a seccomp profile forbids it): each packet costs a memory fence",
            "use Linux 4.16 or newer, and allow membarrier in the seccomp profile",
        )
    }
}

fn locked_memory() -> Finding {
    const CHECK: &str = "memlock";
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((limit, _)) => {
            let limit =
                if limit == nix::libc::RLIM_INFINITY { String::from("unlimited") } else { bytes(limit) };
            Finding::ok(
                CHECK,
                format!("limit of locked memory: {limit} (weir over shared memory locks none)"),
            )
        }
        Err(errno) => Finding::warn(
            CHECK,
            format!("limit of locked memory not known: {}", errno.desc()),
            "nothing: weir over shared memory locks none",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn a_missing_directory_fails() {
        let finding = shared_memory(Path::new("/no/such"));
        assert_eq!(finding.level, Level::Fail);
        assert!(finding.seen.starts_with("/no/such: "), "{finding:?}");
        assert_eq!(shared_memory(Path::new("/proc")).level, Level::Fail);
    }

    #[test]
    fn every_warning_says_what_to_change() {
        for finding in checks(&Settings::default()) {
            assert_eq!(finding.level == Level::Ok, finding.change.is_none(), "{finding:?}");
        }
    }
}
