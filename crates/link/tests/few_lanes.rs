//! Test of one lane and eight senders: taking turns costs a few polls for each turn, and no time-out.
#![allow(missing_docs)]

use weir_link::shm::{ShmLink, ShmOptions};
use weir_link::{Address, Arrival, Link};
use weir_proto::{Body, Peer};

mod common;
use common::{detach, directory, open, options, send};

const SENDERS: usize = 8;
const READER: Peer = Peer(0);

/// A sender as the engine drives it: it asks for a lane while it has messages, and sends them all. It detaches behind
/// them if others wait for the lane, or when it is asked to.
struct Sender {
    link: ShmLink,
    backlog: u64,
    has_lane: bool,
}

impl Sender {
    fn step(&mut self, reader: &Address) {
        if let Some(Arrival::DetachRequested { by }) = self.link.poll()
            && std::mem::take(&mut self.has_lane)
        {
            detach(&mut self.link, by);
        }
        if self.backlog == 0 {
            return;
        }
        let Some(lease) = self.link.connect(READER, reader) else { return };
        self.has_lane = true;
        for number in 0..std::mem::take(&mut self.backlog) {
            send(&mut self.link, READER, number, b"message");
        }
        if lease.wanted {
            self.has_lane = false;
            detach(&mut self.link, READER);
        }
    }
}

/// Handles everything that has arrived. Returns the number of messages, of ended leases, and of leases that began while
/// others waited.
fn read(reader: &mut ShmLink, peers: &[Address]) -> (u64, u64, u64) {
    let (mut messages, mut leases, mut wanted) = (0, 0, 0);
    while let Some(arrival) = reader.poll() {
        match arrival {
            Arrival::Attached { lane, address, lease } => {
                wanted += u64::from(lease.wanted);
                let number = peers.iter().position(|peer| *peer == address).expect("one of the senders");
                reader.accept(lane, Peer(number as u32));
            }
            Arrival::Packet { from, packet } => {
                reader.retire();
                if packet.body == Body::Detach {
                    reader.release(from);
                    leases += 1;
                } else {
                    messages += 1;
                }
            }
            other => panic!("{other:?}"),
        }
    }
    (messages, leases, wanted)
}

#[test]
fn turns_on_one_lane_cost_few_polls_and_no_time_out() {
    for burst in [1, 5] {
        let dir = directory();
        let mut reader =
            ShmLink::open(&ShmOptions { max_lanes: 1, ..options(dir.path()) }).expect("a mailbox");
        let mut senders: Vec<Sender> =
            (0..SENDERS).map(|_| Sender { link: open(dir.path()), backlog: 0, has_lane: false }).collect();
        let address = reader.address();
        let peers: Vec<Address> = senders.iter().map(|sender| sender.link.address()).collect();
        let (mut rounds, mut leases, mut wanted) = (0, 0, 0);
        for _ in 0..50 {
            senders.iter_mut().for_each(|sender| sender.backlog = burst);
            let mut missing = burst * SENDERS as u64;
            while missing > 0 {
                // Each endpoint acts once in a round, so a round is half a round trip.
                senders.iter_mut().for_each(|sender| sender.step(&address));
                let read = read(&mut reader, &peers);
                missing -= read.0;
                leases += read.1;
                wanted += read.2;
                rounds += 1;
                assert!(rounds < 50 * 30, "{rounds} rounds, {leases} leases, {missing} messages missing");
            }
        }
        // One round for each sender, and some more for the one that has the lane when the others come.
        assert!(rounds <= 50 * (SENDERS as u64 + 4), "{rounds} rounds");
        assert!(leases <= 50 * SENDERS as u64, "{leases} leases for {} bursts", 50 * SENDERS);
        // The reader knows that others waited: all but the last sender of an exchange begin so.
        assert!(wanted >= 50 * (SENDERS as u64 - 2), "{wanted} of {leases} leases began while others waited");
    }
}
