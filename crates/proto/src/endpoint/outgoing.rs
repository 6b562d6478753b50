//! Packets of offloaded machines: they leave over the paths of the endpoint, behind everything that waits there.
//!
//! This file does not know what such a packet is for. [`crate::machine`] has a worked exchange.

use super::backlog::{BacklogEntry, EntryKind};
use super::path::Outbound;
use super::state::Endpoint;
use crate::action::Source;
use crate::driver::Driver;
use crate::event::{Outgoing, Peer, PeerFault};
use crate::flow::Mutant;

impl Endpoint {
    /// An offloaded machine sends a packet. If the peer is lost already, its operations with that peer end.
    pub(super) fn send_outgoing<D: Driver>(&mut self, outgoing: Outgoing, driver: &mut D) {
        let Outgoing { to, number, packet, payload } = outgoing;
        let (bytes, from) =
            payload.map_or((0, Source::None), |payload| (u64::from(payload.bytes), payload.memory.into()));
        let entry =
            BacklogEntry { number, ..BacklogEntry::payload(EntryKind::Offloaded(packet), bytes, from) };
        if let Some(fault) = self.fault(to) {
            entry.owned_buffer().into_iter().for_each(|buffer| driver.answer_left(buffer));
            driver.peer_lost(to, fault);
            return;
        }
        if self.paths.pool.breaks(Mutant::AnswersBehindABacklogAreDropped)
            && packet.is_answer()
            && self.backlog_waits(to)
        {
            return;
        }
        if !packet.is_answer() {
            self.paths.submit(to, entry, &mut self.payloads, driver);
        } else if !self.answer(to, entry, driver) {
            entry.owned_buffer().into_iter().for_each(|buffer| driver.answer_left(buffer));
            self.lose(to, PeerFault::Malformed, driver); // it has asked for more than it may
        }
        if self.paths.pool.breaks(Mutant::OffloadedPacketsTakeNoCredit)
            && !self.backlog_waits(to)
            && let Outbound::Connected(sender) = &mut self.paths.peer(to).path.outbound
        {
            sender.refund(1);
        }
    }

    /// Whether a packet of an offloaded machine to one of the peers `of` waits to leave: for credit, for room or behind others.
    pub fn machine_packets_wait(&self, mut of: impl FnMut(Peer) -> bool) -> bool {
        let waits = |peer: &Peer| {
            let pending =
                self.paths.peers.full_entry(peer.0 as usize).and_then(|entry| entry.pending.as_deref());
            pending.is_some_and(|pending| {
                pending.backlog.iter().any(|entry| matches!(entry.kind, EntryKind::Offloaded(_)))
            })
        };
        self.paths.backlogged > 0 && self.paths.peers.contacted().filter(waits).any(&mut of)
    }

    fn backlog_waits(&mut self, to: Peer) -> bool {
        let pending = self.paths.peer(to).pending.as_deref();
        pending.is_some_and(|pending| !pending.backlog.is_empty())
    }
}
