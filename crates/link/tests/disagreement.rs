//! Tests of endpoints that cannot exchange messages because their versions or schemes differ: what each side is told, and
//! the line that it prints. Each message appears once in a job on a node, so each test looks at processes of its own.
#![allow(missing_docs)]

mod common;

use common::*;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use weir_link::datagram::{DatagramLink, DatagramOptions};
use weir_link::links::Links;
use weir_link::shm::{ShmLink, ShmOptions};
use weir_link::udp::{UdpNetwork, UdpOptions};
use weir_link::{Address, Addressing, Arrival, Link, SchemeName};
use weir_proto::{Peer, PeerFault};

const OTHER_SCHEME: &str = "weir: cannot connect: FI_WEIR_FLOW of this rank is static, of a peer dynamic; set the same \
                            scheme for all ranks\n";

/// What `run` prints on standard error, in a process of its own.
fn printed(run: impl FnOnce()) -> String {
    let output = tempfile::NamedTempFile::new().expect("a file");
    let child = fork(|| {
        // SAFETY: the child's own standard error.
        unsafe { libc::dup2(output.as_file().as_raw_fd(), 2) };
        run();
    });
    let status = reap(child);
    let said = std::fs::read_to_string(output.path()).expect("text");
    assert_eq!(status, 0, "{said}");
    said
}

fn with_scheme(dir: &std::path::Path, scheme: &str) -> ShmLink {
    ShmLink::open(&ShmOptions { scheme: SchemeName::new(scheme), ..options(dir) }).expect("a mailbox")
}

fn attach(link: &mut ShmLink, address: &Address) {
    assert_eq!(link.attach(Peer(0), address), Err(PeerFault::Unreachable));
}

fn check(link: &mut ShmLink, address: &Address) {
    assert_eq!(end_of(link, Peer(0), address), Some(PeerFault::Unreachable));
}

/// The two questions about a peer: of a sender, and of a receive that depends on it.
const QUESTIONS: [fn(&mut ShmLink, &Address); 2] = [attach, check];

#[test]
fn a_mailbox_with_another_scheme_is_refused_with_one_line() {
    let dir = directory();
    for ask in QUESTIONS {
        let said = printed(|| {
            let (mut a, b) = (with_scheme(dir.path(), "static"), with_scheme(dir.path(), "dynamic"));
            (0..3).for_each(|_| ask(&mut a, &b.address()));
        });
        assert_eq!(said, OTHER_SCHEME);
    }
}

#[test]
fn one_rank_of_a_job_says_that_schemes_differ() {
    let (dir, words) = (directory(), shared_words());
    let output = tempfile::NamedTempFile::new().expect("a file");
    let dynamic = with_scheme(dir.path(), "dynamic");
    let address = dynamic.address();
    let ranks = [(); 4].map(|()| {
        fork(|| {
            // SAFETY: the child's own standard error.
            unsafe { libc::dup2(output.as_file().as_raw_fd(), 2) };
            let mut rank = with_scheme(dir.path(), "static");
            attach(&mut rank, &address);
            words[0].fetch_add(1, SeqCst);
            until("the attempts of all ranks", || words[0].load(SeqCst) == 4);
        })
    });
    assert_eq!(ranks.map(reap), [0; 4]);
    assert_eq!(std::fs::read_to_string(output.path()).expect("text"), OTHER_SCHEME);
}

#[test]
fn a_mailbox_of_another_version_is_refused_with_one_line() {
    let version_at = [(8, "layout version"), (120, "packet format")];
    for (ask, (at, what)) in QUESTIONS.into_iter().flat_map(|ask| version_at.map(|place| (ask, place))) {
        let (dir, words) = (directory(), shared_words());
        let owner = fork(|| {
            let mailbox = open(dir.path());
            put(words, 0, mailbox.address());
            std::thread::sleep(Duration::from_secs(60));
        });
        let address = get(words, 0);
        let name = format!("{:016x}", address.identity());
        let entries = std::fs::read_dir(dir.path()).expect("a directory");
        let mut paths = entries.map(|entry| entry.expect("an entry").path());
        let path = paths.find(|path| path.to_string_lossy().ends_with(&name)).expect("its segment");
        let file = std::fs::File::options().write(true).open(path).expect("opened");
        file.write_all_at(&200_u32.to_ne_bytes(), at).expect("written");
        let said = printed(|| {
            let mut a = open(dir.path());
            (0..3).for_each(|_| ask(&mut a, &address));
        });
        kill(owner);
        reap(owner);
        assert!(said.starts_with("weir: cannot connect to a peer: "), "{said}");
        assert!(said.contains(&format!("{what} 200;")), "{said}");
        assert!(said.ends_with("run one version of weir in all ranks\n"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// An endpoint with shared memory and UDP. Two directories stand for two hosts.
fn on_a_host(dir: &std::path::Path, scheme: &str) -> Links<ShmLink> {
    let shm = with_scheme(dir, scheme);
    let options = UdpOptions { net: Some("127.0.0.1".into()), ..UdpOptions::default() };
    let network = UdpNetwork::open(&options).expect("a socket");
    let udp = DatagramLink::open(&shm.address(), network, DatagramOptions::new(shm.quota()));
    Links::new(shm, vec![Box::new(udp)])
}

/// Polls until `link` reports the loss of peer 0, long before a peer that is silent is lost.
fn loss(link: &mut Links<ShmLink>) -> PeerFault {
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        match link.poll() {
            Some(Arrival::Lost { peer: Peer(0), fault }) => return fault,
            Some(other) => panic!("expected a loss: {other:?}"),
            None => {}
        }
    }
    panic!("nothing came for 4 s");
}

/// Both questions, some times each, over several links.
fn is_refused(link: &mut Links<ShmLink>, address: &Address) {
    for _ in 0..2 {
        assert_eq!(link.connect(Peer(0), address), None);
        assert_eq!(loss(link), PeerFault::Unreachable, "a send to it");
        link.check_peer(Peer(0), address);
        assert_eq!(loss(link), PeerFault::Unreachable, "a receive from it");
        link.forget(Peer(0));
    }
}

#[test]
fn endpoints_of_two_hosts_with_different_schemes_are_told_so_and_do_not_connect() {
    let dirs = [directory(), directory()];
    for (ours, theirs) in [("static", "dynamic"), ("dynamic", "static")] {
        let said = printed(|| {
            let mut ends = [on_a_host(dirs[0].path(), ours), on_a_host(dirs[1].path(), theirs)];
            let address = ends[1].address();
            is_refused(&mut ends[0], &address);
            assert!(ends[1].poll().is_none(), "nothing was sent to it");
        });
        let expected = OTHER_SCHEME.replace("is static", &format!("is {ours}"));
        assert_eq!(said, expected.replace("peer dynamic", &format!("peer {theirs}")));
    }
}

#[test]
fn an_endpoint_of_another_version_on_another_host_is_refused_with_one_line() {
    let dirs = [directory(), directory()];
    for (at, what) in [(0, "address version 99, packet format"), (2, "packet format 99")] {
        let said = printed(|| {
            let mut ends = dirs.each_ref().map(|dir| on_a_host(dir.path(), "static"));
            let mut address = ends[1].address();
            address.0[at] = 99;
            is_refused(&mut ends[0], &address);
            assert!(ends[1].poll().is_none(), "nothing was sent to it");
        });
        assert!(said.starts_with("weir: cannot connect: no link reaches the endpoint "), "{said}");
        assert!(said.contains(what) && said.ends_with("run one version of weir on all ranks\n"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
