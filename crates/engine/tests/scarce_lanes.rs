//! What leaves before a `Detach`, and what does not: exact packets of one engine whose senders take turns.

#[path = "common/stub_link.rs"]
mod stub_link;

use std::sync::Arc;

use stub_link::{Calls, LEASE, StubLink, address, engine_before};
use weir_engine::{Engine, Post, SendArguments};
use weir_link::memory::OwnedMemory;
use weir_link::{Arrival, LaneLease};
use weir_proto::{Body, Packet, Pattern, Peer, SendLevel, Space, Transfer};

const SENDER: Peer = Peer(0);
/// Eager messages after which their sender is due credits.
const DUE_AFTER: usize = 4;

fn attached(wanted: bool) -> Arrival {
    Arrival::Attached { lane: 0, address: address(1), lease: LaneLease { wanted, ..LEASE } }
}

fn arrived(body: Body) -> Arrival {
    Arrival::Packet { from: SENDER, packet: Packet::new(body, 0) }
}

fn eager(acknowledge: Option<Transfer>) -> Arrival {
    arrived(Body::Eager { space: Space::Tagged, tag: 0, data: None, length: 0, acknowledge })
}

/// Handles all arrivals. The first packets go to the sender, so that the engine has a lane there.
fn sent_with_a_lane_to_the_sender(arrivals: impl IntoIterator<Item = Arrival>) -> Vec<Body> {
    let (mut engine, calls): (Engine<StubLink>, Arc<Calls>) = engine_before(arrivals.into_iter().collect());
    let peer = engine.peer(&address(1));
    assert_eq!(peer, SENDER);
    let memory = OwnedMemory::new(0);
    let send = SendArguments {
        to: peer,
        space: Space::Tagged,
        tag: 0,
        data: None,
        level: SendLevel::Buffered,
        memory: memory.view(),
        inject: false,
    };
    engine.send(Post::default(), send).expect("taken");
    for _ in 0..DUE_AFTER {
        let any = Pattern { space: Space::Tagged, from: None, tag: 0, ignore: 0 };
        engine.receive(Post::default(), any, memory.view(), None).expect("taken");
    }
    calls.sent.lock().expect("no panic").clear();
    engine.progress();
    calls.sent.lock().expect("no panic").clone()
}

fn messages() -> impl Iterator<Item = Arrival> {
    (0..DUE_AFTER).map(|_| eager(None))
}

/// In a gather only the lanes of the root are scarce. Its senders detach behind their messages.
#[test]
fn credits_for_a_sender_that_detaches_behind_its_messages_do_not_leave() {
    let arrivals = |wanted| [attached(wanted)].into_iter().chain(messages()).chain([arrived(Body::Detach)]);
    assert_eq!(sent_with_a_lane_to_the_sender(arrivals(false)), [Body::Credit], "nobody waits for the lane");
    assert_eq!(sent_with_a_lane_to_the_sender(arrivals(true)), []);
}

#[test]
fn deferred_credits_leave_before_a_requested_detach() {
    let asked = Arrival::DetachRequested { by: SENDER };
    let arrivals = [attached(true)].into_iter().chain(messages()).chain([asked]);
    assert_eq!(sent_with_a_lane_to_the_sender(arrivals), [Body::Credit, Body::Detach]);
}

#[test]
fn coalesced_acknowledgements_leave_before_a_requested_detach() {
    let transfer = Transfer(1 << 31); // its payload is in a bounce buffer, so no operation waits for it
    let asked = Arrival::DetachRequested { by: SENDER };
    let sent = sent_with_a_lane_to_the_sender([attached(false), eager(Some(transfer)), asked]);
    assert_eq!(sent, [Body::Finished { transfer, count: 1, refused: false }, Body::Detach]);
}
