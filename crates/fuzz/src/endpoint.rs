//! The machine of an endpoint, which gets the packets of a peer in any order.

use weir_proto::wire::{SLOT_BYTES, decode, encode};
use weir_proto::{
    AttachPolicy, Body, Command, Config, DataRegion, Endpoint, Event, Geometry, Instant, Packet, Pattern,
    Peer, ReceiveCommand, Recorder, Request, Scheme, Space,
};

const PEER: Peer = Peer(1);
/// Slots that the peer may fill.
const QUOTA_SLOTS: u32 = 64;
/// Unexpected messages that the machine keeps.
const MOST_UNEXPECTED: u32 = 1 << 12;
/// What it may spend on their payload. Unit: bytes.
const BUDGET_BYTES: u64 = 1 << 16;
/// Slots that all peers share, with dynamic credits: those of the region, and the first ones of two peers.
const REGION_SLOTS: u32 = 256 + 2 * QUOTA_SLOTS;

fn config(scheme: Scheme) -> Config {
    Config {
        scheme,
        geometry: Geometry { max_packet_slots: 4, ..Geometry::SHARED_MEMORY },
        credit_slots: 2,
        region: DataRegion {
            slots: REGION_SLOTS - 2 * QUOTA_SLOTS,
            peers: 2,
            start_slots: QUOTA_SLOTS,
            attach_policy: AttachPolicy::FirstContact,
            grace_points: 0,
        },
        eager_bytes: 1000,
        cross_memory: false,
        remote_inline_bytes: 100,
        max_backlog: 64,
        max_unexpected: MOST_UNEXPECTED,
        unexpected_budget_bytes: BUDGET_BYTES,
        bounce_bytes: 1 << 16,
        envelope_budget_bytes: 1 << 12,
        planned_peers: 1,
        planned_quota_slots: QUOTA_SLOTS,
    }
}

/// The first byte chooses the scheme, and whether receives are posted. Then slots follow.
pub fn packets_of_a_peer(bytes: &[u8]) {
    let Some((&first, slots)) = bytes.split_first() else { return };
    let scheme = match first & 3 {
        0 => Scheme::Static { piggyback: true },
        1 => Scheme::Static { piggyback: false },
        _ => Scheme::Dynamic { piggyback: first & 3 == 2 },
    };
    let mut endpoint = Endpoint::new(config(scheme));
    let mut actions = Vec::new();
    let mut happens = |endpoint: &mut Endpoint, event: Event<'_>| {
        actions.clear();
        let _ = endpoint.handle(event, Recorder::new(Instant(1), &mut actions));
    };
    let lease = (QUOTA_SLOTS, QUOTA_SLOTS);
    let (quota_slots, start_slots) = lease;
    happens(
        &mut endpoint,
        Event::Connected { peer: PEER, quota_slots, start_slots, credit_slots: 2, epoch: 0 },
    );
    happens(&mut endpoint, Event::Attached { peer: PEER, quota_slots, start_slots, epoch: 0 });
    // Four slots, of which the header takes at least a third of one.
    let most_payload = 4 * SLOT_BYTES as u32 - 20;
    for (number, chunk) in slots.chunks(SLOT_BYTES).enumerate() {
        if first & 4 != 0 && number % 2 == 0 {
            let receive = ReceiveCommand {
                request: Request(number as u32),
                pattern: Pattern { space: Space::Tagged, from: None, tag: 0, ignore: u64::MAX },
                capacity_bytes: 100,
                multi: None,
            };
            happens(&mut endpoint, Event::Posted(Command::Receive(receive)));
        }
        let mut slot = [0; SLOT_BYTES];
        slot[..chunk.len()].copy_from_slice(chunk);
        if let Ok(packet) = decode(&slot, most_payload) {
            happens(&mut endpoint, Event::Arrived { from: PEER, packet: &packet });
        }
        let (unexpected, unexpected_bytes) = endpoint.unexpected();
        // Where senders share a region, a peer that ignores the marks can add what the region's slots bring.
        let most_bytes = BUDGET_BYTES + u64::from(REGION_SLOTS) * SLOT_BYTES as u64;
        assert!(
            unexpected <= MOST_UNEXPECTED && unexpected_bytes <= most_bytes,
            "{unexpected} of {unexpected_bytes} bytes"
        );
    }
}

pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let body = Body::Eager { space: Space::Tagged, tag: 7, data: None, length: 4, acknowledge: None };
    let slots: Vec<u8> = (0..4)
        .flat_map(|number| encode(&Packet { number, ..Packet::new(body, 4) }))
        .chain(encode(&Packet::new(Body::Credit, 0)))
        .collect();
    (0..8).map(|first| ("endpoint", [&[first], slots.as_slice()].concat())).collect()
}
