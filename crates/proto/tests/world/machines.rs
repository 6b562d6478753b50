//! The offloaded machines of a test world, beside its endpoints. Their driver acts at once; the packets that they
//! send follow as events.

use weir_proto::offload::{Offload, OffloadCommand, Offloaded, WordUpdate};
use weir_proto::{Event, Machine, MachineDriver, MachineEvent, Outcome, Outgoing, Peer, PeerFault, Request};

use super::{TestRank, World};

/// The driver of one event.
struct Driver<'rank> {
    rank: &'rank mut TestRank,
    rejected: Vec<Peer>,
}

impl MachineDriver for Driver<'_> {
    fn send(&mut self, to: Peer, number: u32, packet: Offloaded) {
        self.rank.events.push_back(Event::Outgoing(Outgoing { to, number, packet }));
    }

    fn reject(&mut self, from: Peer) {
        self.rejected.push(from);
        self.rank.events.push_back(Event::Lost { peer: from, fault: PeerFault::Malformed });
    }

    fn update_word(&mut self, key: u64, offset: u64, update: &WordUpdate) -> Option<u64> {
        let bytes = update.word_type.bytes() as usize;
        let region = self.rank.regions.get_mut(&key).expect("the machine checked the key");
        if !offset.is_multiple_of(bytes as u64) {
            return None;
        }
        let word = &mut region[offset as usize..][..bytes];
        let mut old = [0; 8];
        old[..bytes].copy_from_slice(word);
        let old = u64::from_le_bytes(old);
        word.copy_from_slice(&update.apply(old).to_le_bytes()[..bytes]);
        Some(old)
    }

    fn place_word(&mut self, request: Request, word: u64, bytes: u32) {
        let buffer = self.rank.buffers[request.0 as usize].as_mut().expect("outstanding");
        buffer[..bytes as usize].copy_from_slice(&word.to_le_bytes()[..bytes as usize]);
    }

    fn complete(&mut self, request: Request, outcome: Outcome) {
        let buffer = self.rank.buffers[request.0 as usize].take().expect("completed once");
        self.rank.completions.push_back((request, outcome, buffer));
    }
}

impl World {
    /// Passes an event to the offloaded machines of `rank`. Packets that they send wait in the rank's events.
    pub(super) fn offload(&mut self, rank: u32, event: MachineEvent<OffloadCommand, Offloaded>) {
        let rank = &mut self.ranks[rank as usize];
        let mut offload: Offload = std::mem::take(&mut rank.offload);
        let mut driver = Driver { rank, rejected: Vec::new() };
        offload.handle(event, &mut driver).expect("within the bounds");
        assert_eq!(driver.rejected, [], "the machines of a world send only packets that make sense");
        rank.offload = offload;
    }

    /// The program of `rank` asks one of the machines for something.
    pub fn post_offloaded(&mut self, rank: u32, command: OffloadCommand) {
        self.offload(rank, MachineEvent::Posted(command));
        if let Some(event) = self.ranks[rank as usize].events.pop_front() {
            self.handle(rank, event);
        }
    }
}
