//! Tests of endpoints that are killed at any step of joining or leaving a node segment, or stopped while others wait
//! for them, with forked processes and real files. Others cover unfinished files and a removed lock file.

use super::super::lock_file::GATE_TIMEOUTS;
use super::super::{ShmLink, ShmOptions};
use super::*;
use crate::SchemeName;
use std::time::{Duration, Instant};

/// A mailbox in `dir`.
pub(in crate::shm) fn open(dir: &Path) -> ShmLink {
    let options = ShmOptions {
        dir: dir.to_owned(),
        in_memory: false,
        reserved_lanes: 0,
        ranks: 0,
        needed_bytes: 0,
        is_private: false,
        quota_data_slots: 16,
        quota_rest_lanes: 0,
        start_slots: 0,
        credit_slots: 2,
        max_lanes: 4,
        cross_memory: true,
        full_fences: false,
        cooperative_copy: true,
        conditional: false,
        refused_limit: Duration::from_secs(10),
        scheme: SchemeName::new("static"),
    };
    ShmLink::open(&options).expect("a mailbox")
}

pub(in crate::shm) fn key() -> JobKey {
    JobKey::new(&"a job")
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}

fn node_names(dir: &Path) -> Vec<String> {
    names(dir).into_iter().filter(|name| name.contains(".node")).collect()
}

/// Runs `act` in a forked child, which then gets `signal`.
fn fork_until(signal: i32, act: impl FnOnce()) -> i32 {
    // SAFETY: the child acts and then stops or ends. It never returns into the parent's code.
    match unsafe { libc::fork() } {
        0 => {
            act();
            // SAFETY: signals this process, and ends it if it continues.
            unsafe {
                libc::raise(signal);
                libc::_exit(0)
            }
        }
        child => {
            assert!(child > 0);
            child
        }
    }
}

fn killed_after(act: impl FnOnce()) {
    let child = fork_until(libc::SIGKILL, act);
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(
        libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL,
        "it reached the step: {status}"
    );
}

/// Steps of joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum JoinStep {
    /// The temporary file of a segment that is not named yet.
    Begun,
    /// The segment has its name.
    Opened,
    /// It has an entry.
    Claimed,
    /// It has written its values.
    Described,
    /// Others see it.
    Published,
    /// It has counted the change.
    Joined,
}

const JOIN_STEPS: [JoinStep; 6] = [
    JoinStep::Begun,
    JoinStep::Opened,
    JoinStep::Claimed,
    JoinStep::Described,
    JoinStep::Published,
    JoinStep::Joined,
];

/// Does what [`NodeSegment::join`] does behind the gate up to `last`, and then `end` before it opens the gate.
fn join_until(link: &ShmLink, last: JoinStep, end: impl FnOnce()) {
    let (locks, endpoint) = (&link.locks, link.own_address.id);
    let path = locks.dir().join(node_file_name(locks.uid(), key().0));
    let mut own_locks = Some(locks.clone()); // dropped only outside of the gate
    let membership = open_files::behind_gate(locks, |running| {
        if last == JoinStep::Begun {
            let mut temporary = path.clone().into_os_string();
            temporary.push(".new");
            std::fs::write(temporary, "half a segm").expect("written");
            end();
            return None;
        }
        let (file, facts) = open_or_create(&path, key(), locks, running).expect("a segment");
        let mapping = Mapping::new(file.as_fd(), 0, facts.segment_bytes() as usize).expect("mapped");
        let inode = file.metadata().expect("metadata").ino();
        let (path, locks) = (path.clone(), own_locks.take().expect("taken once"));
        let mut membership = Membership { mapping, facts, path, inode, locks, endpoint, index: 0 };
        if last >= JoinStep::Claimed {
            membership.claim(&file, running).expect("an entry");
            let member = Member { endpoint, process: 1, pid: 2, core: Some(3) };
            match last {
                JoinStep::Claimed => {}
                JoinStep::Described => membership.entry().describe(&member),
                _ => membership.entry().publish(&member),
            }
            if last == JoinStep::Joined {
                membership.note_change();
            }
        }
        end();
        Some(membership)
    });
    std::mem::forget(membership);
}

/// Others can join, count only each other, and leave no name.
fn assert_others_work(dir: &Path, step: &str) {
    let before = GATE_TIMEOUTS.get();
    let links = [open(dir), open(dir)];
    let nodes = links.each_ref().map(|link| NodeSegment::join(link, key()).expect("joined"));
    assert_eq!(GATE_TIMEOUTS.get(), before, "{step}: the gate is free");
    assert_eq!(nodes[0].id(), nodes[1].id(), "{step}");
    for node in &nodes {
        let census = Census { endpoints: 2, processes: 1, active_cores: 0 };
        assert_eq!(node.census(), census, "{step}");
        assert!(node.index() < 2, "{step}: the entry of the dead is used again");
    }
    drop(nodes);
    drop(links);
    assert_eq!(names(dir), [""; 0], "{step}");
}

#[test]
fn an_endpoint_killed_at_any_step_of_joining_delays_and_disturbs_nobody() {
    for last in JOIN_STEPS {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        killed_after(|| {
            let link = open(dir.path());
            // Killed behind the gate.
            join_until(&link, last, || {
                // SAFETY: ends this process.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            });
        });
        remove_dead_mailboxes(dir.path());
        assert_eq!(node_names(dir.path()).len(), 1, "{last:?}: what it left");
        if last != JoinStep::Begun {
            assert_others_work(dir.path(), &format!("{last:?}"));
        } else {
            assert_eq!(remove_stale(dir.path()).expect("a directory").len(), 1);
        }
    }
}

#[test]
fn an_unfinished_file_of_a_killed_creator_hinders_nobody() {
    // If files without a name are not supported, the next creator finds the temporary name.
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let link = open(dir.path());
    join_until(&link, JoinStep::Begun, || {});
    let node = NodeSegment::join(&link, key()).expect("joined");
    assert_eq!(
        remove_stale(dir.path()).expect("a directory"),
        [""; 0].map(PathBuf::from),
        "an endpoint runs"
    );
    drop(node);
    drop(link);
    assert_eq!(remove_stale(dir.path()).expect("a directory").len(), 1);
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn a_named_segment_replaces_what_a_killed_creator_left() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = dir.path().join("weir.0.node2.x");
    let facts = NodeFacts::new(1, 2, 3);
    let made = create(dir.path(), &path, &facts).expect("created");
    assert_eq!(NodeFacts::read(&made), Ok(facts));
    let error = create(dir.path(), &path, &facts).expect_err("it exists").source.kind();
    assert_eq!(error, io::ErrorKind::AlreadyExists, "a name is never replaced");
    assert_eq!(names(dir.path()).len(), 1, "nothing is left behind");
}

fn remove_dead_mailboxes(dir: &Path) {
    super::super::segment_file::cleanup(dir).expect("a directory");
}

#[test]
fn an_endpoint_killed_at_any_step_of_leaving_delays_and_disturbs_nobody() {
    for last in [LeaveStep::Hidden, LeaveStep::Withdrawn, LeaveStep::Left] {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        killed_after(|| {
            let link = open(dir.path());
            let node = NodeSegment::join(&link, key()).expect("joined");
            node.leave_until(last);
            std::mem::forget((link, node));
        });
        remove_dead_mailboxes(dir.path());
        assert_eq!(node_names(dir.path()).len(), usize::from(last != LeaveStep::Left), "{last:?}");
        assert_others_work(dir.path(), &format!("{last:?}"));
    }
}

#[test]
fn an_endpoint_stopped_behind_the_gate_delays_others_by_a_second_at_most() {
    for last in [JoinStep::Opened, JoinStep::Claimed, JoinStep::Published] {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let ready = dir.path().join("ready");
        let child = fork_until(libc::SIGKILL, || {
            let link = open(dir.path());
            join_until(&link, last, || {
                // SAFETY: stops this process.
                unsafe { libc::raise(libc::SIGSTOP) };
            });
            let rejoined =
                (last < JoinStep::Claimed).then(|| NodeSegment::join(&link, key()).expect("joined"));
            std::fs::write(&ready, "").expect("written");
            std::thread::sleep(Duration::from_secs(20));
            drop(rejoined);
        });
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, libc::WUNTRACED) }, child);
        assert!(libc::WIFSTOPPED(status));
        let begun = Instant::now();
        // The bound holds for opening a mailbox too.
        let link = open(dir.path());
        let node = NodeSegment::join(&link, key()).expect("joined");
        assert!(begun.elapsed() < Duration::from_secs(4), "{last:?}: {:?}", begun.elapsed());
        // SAFETY: our own child.
        unsafe { libc::kill(child, libc::SIGCONT) };
        let end = Instant::now() + Duration::from_secs(20);
        while !ready.exists() {
            assert!(Instant::now() < end, "{last:?}: the stopped endpoint continues");
            std::thread::yield_now();
        }
        let expected = if last == JoinStep::Claimed { 1 } else { 2 };
        assert_eq!(node.census().endpoints, expected, "{last:?}: both are in one segment");
        // SAFETY: our own child.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        assert_eq!(node.census().endpoints, 1, "{last:?}: the dead do not count");
        drop(node);
        assert_eq!(node_names(dir.path()), [""; 0], "{last:?}");
    }
}

#[test]
fn a_segment_whose_lock_file_was_removed_is_replaced_when_its_endpoints_have_ended() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let ready = dir.path().join("ready");
    let child = fork_until(libc::SIGKILL, || {
        let link = open(dir.path());
        let _node = NodeSegment::join(&link, key()).expect("joined");
        std::fs::write(&ready, "").expect("written");
        std::thread::sleep(Duration::from_secs(60));
    });
    while !ready.exists() {
        std::thread::yield_now();
    }
    let lock_file = names(dir.path()).into_iter().find(|name| name.ends_with(".locks")).expect("a lock file");
    std::fs::remove_file(dir.path().join(lock_file)).expect("removed");
    let link = open(dir.path());
    let refused = NodeSegment::join(&link, key());
    assert!(matches!(refused, Err(NodeSegmentError::OtherLockFile { .. })), "{refused:?}");
    assert_eq!(
        remove_stale(dir.path()).expect("a directory"),
        [""; 0].map(PathBuf::from),
        "its endpoint runs"
    );
    // SAFETY: our own child.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        assert_eq!(libc::waitpid(child, core::ptr::null_mut(), 0), child);
    }
    assert_eq!(NodeSegment::join(&link, key()).expect("joined").census().endpoints, 1);
}
