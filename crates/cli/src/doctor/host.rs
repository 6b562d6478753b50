//! Checks of the machine: shared memory, locked memory, cores, membarrier.

use super::Finding;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use std::path::Path;
use weir_engine::config::Settings;
use weir_output::quantity::{bytes, count};

/// Below this, few ranks fill shared memory: 64 MiB is what containers get by default, and up to 31 ranks that all speak with all take at
/// most as much (default mailboxes; 8 ranks 29 MiB). Unit: bytes.
const RECOMMENDED_BYTES: u64 = 64 << 20;

/// All checks of the machine.
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
                "name a directory in FI_WEIR_SHM_DIR",
            );
        }
    };
    // A file without a name: nothing stays behind.
    if let Err(error) = tempfile::tempfile_in(directory) {
        return Finding::fail(
            CHECK,
            format!("{place}: no file can be made there: {error}"),
            "give the user the right to write there, or name another directory in FI_WEIR_SHM_DIR",
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
                "make it larger (docker run --shm-size 1g; mount -o remount,size=1g {place}), or free some"
            ),
        )
    } else if status.filesystem_type() != TMPFS_MAGIC {
        Finding::warn(
            CHECK,
            format!("{seen}, but it is not in memory"),
            "use a tmpfs (FI_WEIR_SHM_DIR=/dev/shm)",
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
    // std also looks at the quota of the control group, versions 1 and 2.
    let usable = std::thread::available_parallelism().map_or(bound, |cores| cores.get() as u64);
    let seen = format!("{} usable, of {} in this machine", count(usable), count(online.max(bound)));
    if usable < bound {
        Finding::warn(
            CHECK,
            format!(
                "{seen}: a control group allows {usable} cores' time on {bound} cores, so ranks are stopped now and then"
            ),
            "give the container as many whole cores as it may use (--cpuset-cpus instead of --cpus)",
        )
    } else if usable < 2 {
        Finding::warn(CHECK, format!("{seen}: ranks take turns"), "allow more cores")
    } else {
        Finding::ok(CHECK, seen)
    }
}

fn membarrier() -> Finding {
    const CHECK: &str = "membarrier";
    if weir_link::probe::membarrier_available() {
        Finding::ok(
            CHECK,
            "the kernel offers it: waking a sleeper costs a sender nothing until somebody sleeps",
        )
    } else {
        Finding::warn(
            CHECK,
            "the kernel does not offer it (or a seccomp profile forbids it): every packet costs a fence",
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
                format!("{limit} may be locked (shared memory needs none; RDMA hardware would)"),
            )
        }
        Err(errno) => {
            Finding::warn(CHECK, format!("not known: {}", errno.desc()), "nothing, unless RDMA is used")
        }
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
