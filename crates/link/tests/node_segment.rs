//! Tests of node segments: counting the endpoints of a job, their cores, shared areas, lack of memory, and cleaning.
#![allow(missing_docs)]

mod common;

use common::*;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use weir_link::Capabilities;
use weir_link::shm::ShmLink;
use weir_link::shm::node_segment::{
    Area, Census, JobKey, NodeSegment, NodeSegmentError, SharedArea, remove_stale,
};

fn key() -> JobKey {
    JobKey::new(&("launcher", 4711))
}

fn join(link: &ShmLink) -> NodeSegment {
    NodeSegment::join(link, key()).expect("joined")
}

fn node_names(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).expect("a directory");
    let names = names.map(|entry| entry.expect("an entry").file_name().into_string().expect("text"));
    names.filter(|name| name.contains(".node")).collect()
}

fn census(endpoints: u32, processes: u32, active_cores: u32) -> Census {
    Census { endpoints, processes, active_cores }
}

#[test]
fn endpoints_of_a_job_count_each_other_and_the_last_removes_the_segment() {
    let dir = directory();
    let links = [open(dir.path()), open(dir.path())];
    let mut nodes = links.each_ref().map(join);
    assert_eq!(nodes[0].census(), census(2, 1, 0));
    assert_eq!(nodes[0].changed_census(0, 0), Some(census(2, 1, 0)));
    assert_eq!(nodes[0].changed_census(0, 0), None, "nothing has changed");
    let words = shared_words();
    let child = fork(|| {
        let link = open(dir.path());
        let node = join(&link);
        assert_eq!(node.census(), census(3, 2, 0));
        words[0].store(1, SeqCst);
        until("the end", || words[0].load(SeqCst) == 2);
    });
    until("the other process", || words[0].load(SeqCst) == 1);
    assert_eq!(nodes[0].changed_census(2, 0), None, "no more than are known");
    assert_eq!(nodes[1].changed_census(1, 0), Some(census(3, 2, 0)));
    let pids: Vec<u32> = nodes[0].members().iter().map(|(_, member)| member.pid).collect();
    assert_eq!(pids, [std::process::id(), std::process::id(), child as u32]);
    words[0].store(2, SeqCst);
    assert_eq!(reap(child), 0);
    assert_eq!(nodes[0].changed_census(0, 0), Some(census(2, 1, 0)));
    drop(nodes);
    assert_eq!(node_names(dir.path()), [""; 0]);
}

#[test]
fn jobs_have_different_segments() {
    let dir = directory();
    let link = open(dir.path());
    let ours = join(&link);
    let theirs = NodeSegment::join(&link, JobKey::new(&("launcher", 4712))).expect("joined");
    assert_ne!(ours.id(), theirs.id());
    assert_eq!((ours.census(), theirs.census()), (census(1, 1, 0), census(1, 1, 0)));
    assert_eq!(node_names(dir.path()).len(), 2);
}

#[test]
fn sleeping_endpoints_have_no_active_core() {
    let dir = directory();
    let links = [0; 3].map(|_| open(dir.path()));
    let nodes = links.each_ref().map(join);
    for (node, core) in nodes.iter().zip([Some(0), Some(0), Some(7)]) {
        node.set_core(core);
    }
    assert_eq!(nodes[0].census().active_cores, 2);
    nodes[2].set_core(None);
    assert_eq!(nodes[0].census().active_cores, 1);
}

#[test]
fn the_directory_grows_with_the_endpoints() {
    let dir = directory();
    let links: Vec<ShmLink> = (0..130).map(|_| open(dir.path())).collect();
    let nodes: Vec<NodeSegment> = links.iter().map(join).collect();
    let mut indices: Vec<usize> = nodes.iter().map(NodeSegment::index).collect();
    indices.sort_unstable();
    assert_eq!(indices, (0..130).collect::<Vec<_>>());
    assert_eq!(nodes[0].census(), census(130, 1, 0));
}

#[test]
fn the_words_of_an_area_are_shared_between_processes() {
    const PART_BYTES: u64 = 4096;
    /// The first and the last part of an area. A whole one may be larger than what is free.
    fn ends(node: &NodeSegment, area: Area) -> [SharedArea; 2] {
        let part = |offset| node.handle().part(area, offset, PART_BYTES).expect("memory");
        [0, area.bytes() - PART_BYTES].map(part)
    }
    let dir = directory();
    let link = open(dir.path());
    let node = join(&link);
    for area in Area::ALL {
        let [first, last] = ends(&node, area);
        assert_eq!(last.len() as u64 * 8, PART_BYTES);
        first[0].store(1, SeqCst);
        last[last.len() - 1].store(2, SeqCst);
    }
    assert_eq!(node.area(Area::TokenPools).expect("memory").len() as u64 * 8, Area::TokenPools.bytes());
    let child = fork(|| {
        let link = open(dir.path());
        let node = join(&link);
        for area in Area::ALL {
            let [first, last] = ends(&node, area);
            assert_eq!(first[0].fetch_add(9, SeqCst), 1);
            assert_eq!(last[last.len() - 1].load(SeqCst), 2);
        }
    });
    assert_eq!(reap(child), 0);
    assert!(Area::ALL.iter().all(|&area| ends(&node, area)[0][0].load(SeqCst) == 10));
}

#[test]
fn an_endpoint_rings_the_bell_of_a_sleeping_one_in_another_process() {
    let dir = directory();
    let link = open(dir.path());
    let node = join(&link).handle();
    let words = shared_words();
    let child = fork(|| {
        let mut link = open(dir.path());
        words[0].store(join(&link).handle().endpoint(), SeqCst);
        let began = Instant::now();
        link.wake_up().expect("a doorbell").sleep(60_000_000_000);
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    });
    until("the other process", || words[0].load(SeqCst) != 0);
    let sleeper = words[0].load(SeqCst);
    std::thread::sleep(Duration::from_millis(50));
    node.bell_of(sleeper).expect("it runs").ring();
    assert_eq!(reap(child), 0);
    assert!(node.bell_of(sleeper).is_none(), "it has ended");
}

#[test]
fn the_words_of_an_area_stay_after_the_endpoint_has_left() {
    let dir = directory();
    let link = open(dir.path());
    let node = join(&link);
    let area = node.handle().area(Area::TokenPools).expect("memory");
    area[0].store(5, SeqCst);
    assert_eq!(node.area(Area::TokenPools).expect("memory")[0].load(SeqCst), 5);
    drop(node);
    assert_eq!((area[0].load(SeqCst), node_names(dir.path()).len()), (5, 0));
}

#[test]
fn a_member_holds_no_descriptor() {
    let dir = directory();
    let child = fork(|| {
        let descriptors = || std::fs::read_dir("/proc/self/fd").expect("a list").count();
        let link = open(dir.path());
        let before = descriptors();
        let node = join(&link);
        node.area(Area::Groups).expect("memory");
        assert_eq!(descriptors(), before);
    });
    assert_eq!(reap(child), 0);
}

#[test]
fn a_full_directory_has_no_node_segment_but_one_that_exists_is_joined() {
    let Some(small) = SmallTmpfs::mount(400) else { return };
    let link = open(small.path());
    let refused = NodeSegment::join(&link, key());
    assert!(matches!(refused, Err(NodeSegmentError::NoSpace { .. })), "{refused:?}");
    assert_eq!(node_names(small.path()), [""; 0]);
    drop(link);

    let Some(dir) = SmallTmpfs::mount(1024) else { return };
    let first = open(dir.path());
    let node = join(&first);
    let links: Vec<ShmLink> = (0..70).map(|_| open(dir.path())).collect();
    dir.fill();
    let joined: Vec<_> = links.iter().map(|link| NodeSegment::join(link, key())).collect();
    assert_eq!(joined.iter().filter(|joined| joined.is_ok()).count(), 63, "the first part of the directory");
    let refused = joined.into_iter().find_map(Result::err).expect("an error");
    assert!(matches!(&refused, NodeSegmentError::System(error) if error.is_no_space()), "{refused}");
    assert!(node.area(Area::ProxyQueues).expect_err("no memory").is_no_space());
    assert_eq!(node.members().len(), 1);
}

#[test]
fn endpoints_that_join_after_the_name_was_removed_have_another_segment() {
    let dir = directory();
    let links = [open(dir.path()), open(dir.path())];
    let first = join(&links[0]);
    std::fs::remove_file(first.path()).expect("removed");
    let second = join(&links[1]);
    assert_ne!(first.id(), second.id());
    assert_eq!((first.census().endpoints, second.census().endpoints), (1, 1));
    drop(first);
    assert_eq!(node_names(dir.path()).len(), 1, "only the members of a segment remove its name");
    assert!(second.area(Area::Groups).is_ok());
}

#[test]
fn a_file_that_is_no_node_segment_is_refused_and_stays() {
    let dir = directory();
    let link = open(dir.path());
    let path = join(&link).path().to_owned();
    std::fs::write(&path, [1; 8192]).expect("written");
    let refused = NodeSegment::join(&link, key()).expect_err("refused").to_string();
    let expected = format!(
        "cannot use the node segment {}: it is not a node segment of weir; run one version of weir, or remove the file",
        path.display()
    );
    assert_eq!(refused, expected);
    assert!(path.exists());
}

#[test]
fn a_process_that_ends_without_leaving_removes_the_name_if_it_is_the_last() {
    let dir = directory();
    let link = open(dir.path());
    let node = join(&link);
    let exits = |dir: &Path| {
        let child = fork(|| {
            let link = open(dir);
            let node = join(&link);
            std::mem::forget((link, node));
            // SAFETY: ends this process with its exit handlers.
            unsafe { libc::exit(0) };
        });
        assert_eq!(reap(child), 0);
        node_names(dir).len()
    };
    assert_eq!(exits(dir.path()), 1, "this process is a member");
    drop(node);
    assert_eq!(exits(dir.path()), 0);
}

#[test]
fn a_forked_child_does_not_leave_for_its_parent() {
    let dir = directory();
    let link = open(dir.path());
    let mut node = Some(join(&link));
    let taken = &mut node;
    assert_eq!(reap(fork(move || drop(taken.take()))), 0);
    let node = node.as_mut().expect("the parent's");
    assert_eq!(node.census(), census(1, 1, 0));
    assert_eq!(node_names(dir.path()).len(), 1);
}

#[test]
fn cleaning_removes_only_segments_whose_endpoints_have_all_ended() {
    let dir = directory();
    let words = shared_words();
    let child = fork(|| {
        let link = open(dir.path());
        let node = join(&link);
        words[0].store(1, SeqCst);
        until("the end", || words[0].load(SeqCst) == 2);
        drop(node);
    });
    until("the other process", || words[0].load(SeqCst) == 1);
    // Other versions, and what a creator left.
    let others = ["node9.0123456789abcdef", "node2.0123456789abcdef.new"].map(|name| {
        let path = dir.path().join(format!("weir.{}.{name}", uid()));
        std::fs::write(&path, "weirnode and more").expect("written");
        path
    });
    let foreign = dir.path().join(format!("weir.{}9.node1.0123456789abcdef", uid()));
    std::fs::write(&foreign, "").expect("written");
    let removed = || remove_stale(dir.path()).expect("a directory");
    assert_eq!(removed().len(), 0, "an endpoint runs");
    kill(child);
    reap(child);
    assert_eq!(removed().len(), 3);
    assert!(foreign.exists() && !others.iter().any(|path| path.exists()));

    // Endpoints of this process count too.
    let link = open(dir.path());
    let node = join(&link);
    assert_eq!(removed().len(), 0);
    drop(node);
}
