//! Checks of `weir doctor` on the host: shared memory, locked memory, cores, membarrier.

use std::os::fd::AsFd;

use super::{Finding, Level};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use weir_engine::config::Settings;
use weir_link::shm::{self, FileSystemSpace};
use weir_output::quantity::{bytes, count};

/// All checks of the host, for a job of `ranks` ranks.
pub fn checks(settings: &Settings, ranks: u32) -> Vec<Finding> {
    vec![shared_memory(settings, ranks), cores(), membarrier(), locked_memory()]
}

/// The cores that this process may use.
pub fn cores_of_process() -> u32 {
    weir_link::cores::available().max(1) as u32
}

fn shared_memory(settings: &Settings, ranks: u32) -> Finding {
    const CHECK: &str = "shared mem.";
    let directory = settings.shm_dir.as_path();
    let place = directory.display();
    let is_tmpfs = match statfs(directory) {
        Ok(status) => status.filesystem_type() == TMPFS_MAGIC,
        Err(errno) => {
            return Finding::fail(
                CHECK,
                format!("{place}: {}", errno.desc()),
                "set FI_WEIR_SHM_DIR to an existing directory",
            );
        }
    };
    // A file without a name: it disappears also if this process is killed.
    let file = match tempfile::tempfile_in(directory) {
        Ok(file) => file,
        Err(error) => {
            return Finding::fail(
                CHECK,
                format!("{place}: cannot create a file: {error}"),
                "give the user write permission, or set FI_WEIR_SHM_DIR to another directory",
            );
        }
    };
    let space = shm::file_system_space(directory);
    let finding = judge_space(settings, ranks, space, shm::has_unlimited_memory());
    judge_file_system(finding, is_tmpfs, shm::can_reserve(file.as_fd()))
}

/// What `finding` about the space becomes on a file system of another kind. `reserves`: it can reserve memory.
fn judge_file_system(finding: Finding, is_tmpfs: bool, reserves: bool) -> Finding {
    let fault = match (is_tmpfs, reserves) {
        _ if finding.level != Level::Ok => return finding,
        (_, false) => "it cannot reserve memory (fallocate), so ranks die of SIGBUS when it is full",
        (false, true) => "it is no tmpfs",
        (true, true) => return finding,
    };
    Finding::warn(
        "shared mem.",
        format!("{}, but {fault}", finding.seen),
        "set FI_WEIR_SHM_DIR to a directory on a tmpfs, such as /dev/shm",
    )
}

/// Whether the mailboxes of `ranks` ranks that all send to all have memory. `unlimited`: there is memory that the size
/// of the directory's file system does not limit.
fn judge_space(settings: &Settings, ranks: u32, space: Option<FileSystemSpace>, unlimited: bool) -> Finding {
    const CHECK: &str = "shared mem.";
    let directory = settings.shm_dir.display();
    let place = |unlimited| settings.placed(ranks, space, || unlimited);
    let (Ok((_, elsewhere)), Ok((plan, place))) = (place(true), place(false)) else {
        return Finding::warn(CHECK, format!("{directory}: the settings do not fit {ranks} ranks"), {
            "correct the settings, or ask for fewer ranks (-n)"
        });
    };
    let Some(FileSystemSpace { size_bytes, free_bytes }) = space else {
        return Finding::ok(CHECK, format!("{directory}: no limit"));
    };
    let seen = format!(
        "{directory}: {} free of {}; {} that all send to all need {} of it",
        bytes(free_bytes),
        bytes(size_bytes),
        if ranks == 1 { String::from("1 rank") } else { format!("{} ranks", count(ranks.into())) },
        bytes(elsewhere.job_bytes)
    );
    if !elsewhere.in_memory {
        return Finding::ok(CHECK, seen);
    }
    if unlimited {
        return Finding::ok(CHECK, format!("{seen}, so they use other memory (memfd)"));
    }
    let lane_bytes = shm::lane_bytes(plan.base_slots, plan.credit_slots);
    let least_bytes = u64::from(ranks) * (shm::MAILBOX_HEADER_BYTES + lane_bytes);
    let enlarge = format!(
        "make it larger (docker run --shm-size 1g; mount -o remount,size=1g {directory}), \
         or permit memfd_create and /proc"
    );
    if least_bytes > free_bytes {
        let seen = format!("{seen}, and at least {}", bytes(least_bytes));
        return Finding::fail(CHECK, seen, enlarge);
    }
    let lanes = ranks.min(settings.max_peers);
    let effect = if place.reserved_lanes < lanes {
        format!("their senders take turns on {} lanes of each mailbox", place.reserved_lanes)
    } else {
        format!("their mailboxes are smaller ({} slots for each sender)", plan.base_slots)
    };
    Finding::warn(CHECK, format!("{seen}: {effect}"), enlarge)
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
    use super::*;

    #[test]
    fn a_missing_directory_fails() {
        let check = |directory: &str| {
            shared_memory(&Settings { shm_dir: directory.into(), ..Settings::default() }, 2)
        };
        let finding = check("/no/such");
        assert_eq!(finding.level, Level::Fail);
        assert!(finding.seen.starts_with("/no/such: "), "{finding:?}");
        assert_eq!(check("/proc").level, Level::Fail);
    }

    #[test]
    fn the_size_of_shared_memory_is_judged_for_the_ranks() {
        let judge = |ranks, mib: u64, unlimited| {
            let space = FileSystemSpace { size_bytes: mib << 20, free_bytes: mib << 20 };
            judge_space(&Settings::default(), ranks, Some(space), unlimited)
        };
        assert_eq!(judge(8, 64, false).level, Level::Ok);
        let elsewhere = judge(64, 64, true);
        assert_eq!(elsewhere.level, Level::Ok);
        assert!(elsewhere.seen.ends_with("so they use other memory (memfd)"), "{elsewhere:?}");
        let smaller = judge(64, 64, false);
        assert_eq!(smaller.level, Level::Warn);
        assert!(smaller.seen.ends_with("smaller (56 slots for each sender)"), "{smaller:?}");
        let turns = judge(64, 8, false);
        assert!(turns.seen.ends_with("take turns on 14 lanes of each mailbox"), "{turns:?}");
        let none = judge(1024, 8, false);
        assert_eq!(none.level, Level::Fail);
        assert!(none.seen.ends_with("and at least 12.0 MiB"), "{none:?}");
    }

    #[test]
    fn a_file_system_that_cannot_reserve_memory_is_a_warning() {
        let judge = |is_tmpfs, reserves| {
            judge_file_system(Finding::ok("shared mem.", "/dev/shm: no limit"), is_tmpfs, reserves)
        };
        assert_eq!(judge(true, true).level, Level::Ok);
        for (is_tmpfs, reserves, seen) in [
            (false, true, "/dev/shm: no limit, but it is no tmpfs"),
            (
                true,
                false,
                "/dev/shm: no limit, but it cannot reserve memory (fallocate), so ranks die of SIGBUS when it is full",
            ),
        ] {
            let finding = judge(is_tmpfs, reserves);
            assert_eq!((finding.level, finding.seen.as_str()), (Level::Warn, seen));
        }
    }

    #[test]
    fn every_warning_says_what_to_change() {
        for finding in checks(&Settings::default(), 2) {
            assert_eq!(finding.level == Level::Ok, finding.change.is_none(), "{finding:?}");
        }
    }
}
