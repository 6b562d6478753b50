//! The peer entry: everything that an endpoint stores about one peer with contact.

use alloc::boxed::Box;

use super::backlog::BacklogEntry;
use super::budget::Reservation;
use super::path::{Outbound, Path, announced};
use super::pending::PendingWork;
use crate::flow;
use crate::packet::Geometry;

/// The state of one peer, from the first contact until both sides have detached. Thousands of peers may be idle, so
/// this structure is small.
#[derive(Clone, Debug)]
pub(super) struct PeerEntry {
    pub path: Path,
    /// State that few peers have at a time.
    pub pending: Option<Box<PendingWork>>,
    /// Number of the next message. Restarts at 0 when the entry is removed, which requires that no message is pending.
    pub next_number: u32,
    /// Its reservation in our budget.
    pub reserved: Option<Reservation>,
}

impl PeerEntry {
    /// The entry of a new peer.
    pub fn new(cross_memory: bool) -> PeerEntry {
        PeerEntry { path: Path::new(cross_memory), pending: None, next_number: 0, reserved: None }
    }

    /// The backlog, in order.
    pub fn backlog(&self) -> impl Iterator<Item = &BacklogEntry> {
        self.pending.as_deref().into_iter().flat_map(|pending| pending.backlog.iter())
    }

    pub fn backlog_len(&self) -> usize {
        self.pending.as_deref().map_or(0, |pending| pending.backlog.len())
    }

    #[inline]
    pub fn has_backlog(&self) -> bool {
        self.pending.as_deref().is_some_and(|pending| !pending.backlog.is_empty())
    }

    /// Whether a message to it must wait behind others or for the link.
    #[inline]
    pub fn must_queue(&self) -> bool {
        self.pending.as_deref().is_some_and(PendingWork::must_queue)
    }

    /// Whether the message `number` is the next packet that leaves, and there is a credit for it.
    pub fn sends_next(&self, number: u32) -> bool {
        let Outbound::Connected(sender) = &self.path.outbound else { return false };
        sender.credits() > 0 && self.pending.as_deref().is_some_and(|pending| pending.sends_next(number))
    }

    /// See [`PendingWork::receives_on_common_path`].
    #[inline]
    pub fn receives_on_common_path(&self) -> bool {
        self.pending.as_deref().is_none_or(PendingWork::receives_on_common_path)
    }

    /// See [`PendingWork::sends_on_common_path`].
    #[inline]
    pub fn sends_on_common_path(&self) -> bool {
        self.pending.as_deref().is_none_or(PendingWork::sends_on_common_path)
    }

    /// The geometry of the path. `own`: that of the endpoint.
    #[inline]
    pub fn geometry(&self, own: &Geometry) -> Geometry {
        self.pending.as_deref().map_or(*own, |pending| pending.geometry(own))
    }

    /// What a packet that fills no data slot says of the slots that we have spent and want there. `own`: the geometry of
    /// the endpoint.
    #[inline]
    pub fn announced_demand(&self, own: &Geometry, pool: &flow::Pool) -> u32 {
        match &self.path.outbound {
            Outbound::Connected(sender) if sender.announces_demand() => {
                let queued_slots =
                    self.pending.as_deref().map_or(0, |pending| pending.queued_slots(&pending.geometry(own)));
                announced(sender, 0, queued_slots, pool)
            }
            _ => 0,
        }
    }

    /// Whether nothing waits to be sent to it, with or without credit.
    #[inline]
    pub fn has_nothing_to_send(&self) -> bool {
        self.pending.as_deref().is_none_or(PendingWork::has_nothing_to_send)
    }

    /// Whether acknowledgements to it are due now.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.pending.as_deref().is_some_and(|pending| pending.acks.is_due())
    }

    /// Whether messages are held for it. Then all further ones are.
    #[inline]
    pub fn holds(&self) -> bool {
        self.pending.as_deref().is_some_and(PendingWork::holds)
    }

    /// Whether messages to it must be announced: it has no memory, or earlier messages are held for it.
    #[inline]
    pub fn announces(&self) -> bool {
        self.path.grants.rendezvous_only || self.holds()
    }

    /// Whether the link has refused a packet and is not ready yet.
    #[inline]
    pub fn is_link_busy(&self) -> bool {
        self.pending.as_deref().is_some_and(|pending| pending.busy_link.busy)
    }
}

#[cfg(test)]
impl PeerEntry {
    /// An idle entry with `number` messages sent, and `room` free slots if we have a lane there.
    pub fn at_rest(number: u32, room: Option<u32>, attached: bool) -> PeerEntry {
        let mut state = PeerEntry { next_number: number, ..PeerEntry::new(true) };
        if let Some(room) = room {
            state.path.outbound =
                Outbound::Connected(flow::Sender::with_room(flow::RoomQuery::WhenFree, room));
            state.path.grants.credit_slots = 2;
        }
        state.path.grants.receiver = attached.then_some(flow::Receiver::Unlimited);
        state
    }
}
