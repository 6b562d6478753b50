//! Remote memory of the local link: keys, a bound on the copies under way, and results that come later.

use weir_link::local::LocalLink;
use weir_link::local::memory::COPIES_PER_PEER;
use weir_link::memory::OwnedMemory;
use weir_link::{
    Address, Addressing, Arrival, CopyStatus, Link, PeerAccess, Quota, Registration, RemoteCopy, RemoteMemory,
};
use weir_proto::{CopyFault, Direction, Peer, RemoteAddress};

const PEER: Peer = Peer(0);
const READ: PeerAccess = PeerAccess { read: true, write: false };
const WRITE: PeerAccess = PeerAccess { read: false, write: true };

fn open() -> LocalLink {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let identity = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let quota = Quota { data_slots: 16, start_slots: 16, credit_slots: 2 };
    LocalLink::open(&Address::new(identity, [7; 16]), quota)
}

/// Memory whose bytes are all `byte`.
fn filled(bytes: usize, byte: u8) -> OwnedMemory {
    let memory = OwnedMemory::new(bytes);
    memory.view().write(0, &vec![byte; bytes]);
    memory
}

fn contents(memory: &OwnedMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.view().bytes() as usize];
    memory.view().read(0, &mut bytes);
    bytes
}

/// Two links; the first knows the second as [`PEER`].
fn pair() -> (LocalLink, LocalLink) {
    let (mut ours, theirs) = (open(), open());
    ours.connect(PEER, &theirs.address()).expect("a lane");
    (ours, theirs)
}

fn register(link: &mut LocalLink, memory: &OwnedMemory, access: PeerAccess) -> Registration {
    link.register(0, &memory.view(), access).expect("registered")
}

fn start(
    link: &mut LocalLink,
    context: u64,
    direction: Direction,
    remote: RemoteAddress,
    memory: &OwnedMemory,
) -> Result<CopyStatus, CopyFault> {
    let local = register(link, memory, PeerAccess::default());
    let bytes = memory.view().bytes();
    link.start(
        &RemoteCopy { context, peer: PEER, direction, remote, offset: 0, bytes },
        &memory.view(),
        local.handle,
    )
}

fn next_result(link: &mut LocalLink) -> (u64, Result<(), CopyFault>) {
    (0..100).find_map(|_| link.next_result()).expect("a result within 100 polls")
}

/// The result of a get of 8 bytes.
fn get(link: &mut LocalLink, remote: RemoteAddress) -> Result<(), CopyFault> {
    let target = OwnedMemory::new(8);
    assert_eq!(start(link, 1, Direction::Get, remote, &target), Ok(CopyStatus::Pending));
    next_result(link).1
}

#[test]
fn several_copies_are_under_way_up_to_the_bound_and_end_in_another_order() {
    let (mut ours, mut theirs) = pair();
    let sources: Vec<_> = (0..COPIES_PER_PEER as u8).map(|byte| filled(100, byte + 1)).collect();
    let targets: Vec<_> = sources.iter().map(|_| OwnedMemory::new(100)).collect();
    let registrations: Vec<_> = sources.iter().map(|memory| register(&mut theirs, memory, READ)).collect();
    for (number, target) in targets.iter().enumerate() {
        let remote = registrations[number].remote;
        assert_eq!(start(&mut ours, number as u64, Direction::Get, remote, target), Ok(CopyStatus::Pending));
    }
    let (remote, further) = (registrations[0].remote, OwnedMemory::new(100));
    assert_eq!(start(&mut ours, 99, Direction::Get, remote, &further), Ok(CopyStatus::Busy));
    let ended: Vec<_> = targets.iter().map(|_| next_result(&mut ours)).collect();
    let mut contexts: Vec<u64> = ended.iter().map(|&(context, _)| context).collect();
    assert!(ended.iter().all(|(_, result)| result.is_ok()), "{ended:?}");
    assert!(!contexts.is_sorted(), "{contexts:?}");
    contexts.sort_unstable();
    assert_eq!(contexts, (0..u64::from(COPIES_PER_PEER)).collect::<Vec<_>>());
    assert!(sources.iter().zip(&targets).all(|(from, to)| contents(from) == contents(to)));
    assert_eq!(start(&mut ours, 99, Direction::Get, remote, &further), Ok(CopyStatus::Pending));
}

#[test]
fn a_put_writes_registered_memory_at_its_offset() {
    let (mut ours, mut theirs) = pair();
    let target = OwnedMemory::new(16);
    let remote = register(&mut theirs, &target, WRITE).remote;
    let remote = RemoteAddress { address: remote.address + 4, ..remote };
    let payload = filled(8, 9);
    assert_eq!(start(&mut ours, 1, Direction::Put, remote, &payload), Ok(CopyStatus::Pending));
    assert_eq!(next_result(&mut ours), (1, Ok(())));
    assert_eq!(contents(&target), [[0; 4], [9; 4], [9; 4], [0; 4]].concat());
}

#[test]
fn a_key_that_is_unknown_or_deregistered_fails_the_copy() {
    let (mut ours, mut theirs) = pair();
    let source = filled(8, 1);
    let registration = register(&mut theirs, &source, READ);
    assert_eq!(get(&mut ours, registration.remote), Ok(()));
    let unknown = RemoteAddress { key: registration.remote.key ^ 1, ..registration.remote };
    assert_eq!(get(&mut ours, unknown), Err(CopyFault::BadAddress));
    assert_eq!(get(&mut ours, RemoteAddress::NONE), Err(CopyFault::BadAddress));
    let target = OwnedMemory::new(8);
    assert_eq!(start(&mut ours, 1, Direction::Get, registration.remote, &target), Ok(CopyStatus::Pending));
    theirs.deregister(&registration); // while the copy is under way
    assert_eq!(next_result(&mut ours), (1, Err(CopyFault::BadAddress)));
    let again = register(&mut theirs, &source, READ);
    assert_ne!(again.remote.key, registration.remote.key);
}

#[test]
fn a_copy_outside_the_memory_or_without_the_right_fails() {
    let (mut ours, mut theirs) = pair();
    let memory = filled(16, 1);
    let readable = register(&mut theirs, &memory, READ).remote;
    let writable = register(&mut theirs, &memory, WRITE).remote;
    for address in [9, u64::MAX] {
        assert_eq!(get(&mut ours, RemoteAddress { address, ..readable }), Err(CopyFault::BadAddress));
    }
    assert_eq!(get(&mut ours, writable), Err(CopyFault::BadAddress));
    let payload = filled(8, 2);
    assert_eq!(start(&mut ours, 1, Direction::Put, readable, &payload), Ok(CopyStatus::Pending));
    assert_eq!(next_result(&mut ours), (1, Err(CopyFault::BadAddress)));
    assert_eq!(contents(&memory), [1; 16]);
}

#[test]
fn a_copy_from_an_endpoint_that_has_ended_says_how_it_ended() {
    for (dies, fault) in [(false, CopyFault::Closed), (true, CopyFault::Gone)] {
        let (mut ours, mut theirs) = pair();
        let source = filled(8, 1);
        let remote = register(&mut theirs, &source, READ).remote;
        if dies {
            theirs.abandon();
        } else {
            theirs.close();
        }
        assert_eq!(get(&mut ours, remote), Err(fault));
    }
}

#[test]
fn a_forgotten_peer_has_no_results() {
    let (mut ours, mut theirs) = pair();
    let source = filled(8, 1);
    let remote = register(&mut theirs, &source, READ).remote;
    let target = OwnedMemory::new(8);
    assert_eq!(start(&mut ours, 1, Direction::Get, remote, &target), Ok(CopyStatus::Pending));
    ours.forget(PEER);
    assert!((0..100).all(|_| ours.next_result().is_none()));
    assert_eq!(contents(&target), [0; 8]);
    assert_eq!(start(&mut ours, 2, Direction::Get, remote, &target), Err(CopyFault::Gone));
}

#[test]
fn an_attached_sender_can_be_read_without_a_lane_there() {
    let (mut ours, mut theirs) = pair();
    let source = filled(8, 5);
    let remote = register(&mut ours, &source, READ).remote;
    let Some(Arrival::Attached { lane, .. }) = theirs.poll() else { panic!("no lane") };
    theirs.accept(lane, PEER);
    assert_eq!(get(&mut theirs, remote), Ok(()));
}
