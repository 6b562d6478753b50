//! The transport: the calls that every link has ([`Link`]), and the arrivals that a poll returns. A link also has an
//! address ([`Addressing`]), promises ([`Properties`]), and facts for reports ([`Inspect`]).
//!
//! ```text
//! A: connect(0, address of B)    None: not yet; call again    Some(lease): packets may leave
//! B: poll_into                   Attached { lane 5, address of A }    B: accept(5, peer 0)
//! A: transmit(0, packet)
//! B: poll_into                   Packet { from: 0 }    B: copy_payload, retire
//! B: poll_into                   Lost { peer: 0, Died }, after all packets of that peer
//! ```

use crate::memory::UserMemory;
use crate::{Address, Capabilities, LinkKind, NetworkReport, PathReport, unreachable};
use std::time::Instant;
use weir_proto::{Geometry, LinkBusy, Packet, Peer, PeerFault};

/// The slots that a sender can own in a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Data slots. With a scheme without credits: all slots of the lane.
    pub data_slots: u32,
    /// Data slots that the sender owns from the start. The scheme may grant the others later.
    pub start_slots: u32,
    /// Slots for credit packets.
    pub credit_slots: u32,
}

/// A lease: the sender now holds a lane of a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneLease {
    /// The slots that the sender can own there.
    pub quota: Quota,
    /// Number of the lease. It differs from that of the sender's previous lease there.
    pub epoch: u16,
    /// The slot sizes of the path, in both directions.
    pub geometry: Geometry,
    /// Others want the lane: the sender detaches as soon as everything that it can send now has left. In
    /// [`Arrival::Attached`]: others want a lane of this mailbox, so the sender may detach behind its next packet.
    pub wanted: bool,
}

/// Promises of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// The slot sizes of most paths.
    pub geometry: Geometry,
    /// Those of the others, if the link consists of several.
    pub other_geometries: Vec<Geometry>,
    /// The packets of a peer arrive in the order in which they were sent.
    pub ordered: bool,
    /// Every packet arrives once and unchanged, or the peer is reported as lost.
    pub reliable: bool,
}

/// The result of [`Link::poll`].
#[derive(Debug)]
pub enum Arrival {
    /// A packet. Its payload can be copied until [`Link::retire`], which the caller must call before the next poll.
    Packet {
        /// The sender.
        from: Peer,
        /// The checked header.
        packet: Packet,
    },
    /// A sender has claimed a lane of this mailbox. Answer with [`Link::accept`]; until then its packets wait.
    Attached {
        /// The lane.
        lane: u32,
        /// The sender's address.
        address: Address,
        /// Its lease of that lane.
        lease: LaneLease,
    },
    /// The owner of a mailbox asks this endpoint to detach, because others wait or because it wants the memory back.
    /// Answer with the packet `Detach` and [`Link::disconnect`]. Unfinished messages continue in the next lease.
    DetachRequested {
        /// The mailbox's owner.
        by: Peer,
    },
    /// The link takes packets to this peer again, after [`LinkBusy`].
    Ready {
        /// The peer.
        peer: Peer,
    },
    /// The receiver's side holds the first `packets` packets that were transmitted to it, counted over all leases. Only
    /// after [`Acknowledgements::awaited_packets`](crate::Acknowledgements::awaited_packets) has returned a number.
    Acknowledged {
        /// The receiver.
        peer: Peer,
        /// Unit: packets.
        packets: u64,
    },
    /// The peer has ended, cannot be reached, or has sent a malformed packet. All valid packets that it sent before have
    /// been polled. Answer with [`Link::forget`].
    Lost {
        /// The peer.
        peer: Peer,
        /// The reason.
        fault: PeerFault,
    },
}

/// The result of [`Link::poll_into`].
#[derive(Debug)]
pub enum Polled {
    /// A packet.
    Packet {
        /// The sender.
        from: Peer,
    },
    /// Something other than a packet. It is boxed to keep this type small, because it is rare.
    Other(Box<Arrival>),
}

/// The name of an endpoint for its peers, and the question whether a link reaches a peer.
pub trait Addressing {
    /// The kind of this link. If it consists of several: that of the first.
    fn kind(&self) -> LinkKind;

    /// The address of this endpoint, for its peers.
    fn address(&self) -> Address;

    /// From now on peers know this endpoint by `address`, which has a part for each of its links.
    fn introduce(&mut self, address: &Address);

    /// Whether the endpoint at `address` has a link of this kind that may be reached.
    fn reaches(&self, address: &Address) -> bool;

    /// Tells the user that no link of this endpoint reaches the one at `peer`. A link that knows the cause names it.
    fn report_unreachable(&self, peer: &Address) {
        unreachable::report(&self.address(), peer);
    }
}

/// Facts about a link, for reports and messages to users.
pub trait Inspect {
    /// The process of a peer that this endpoint sends to. `None`: not known.
    fn process(&self, peer: Peer) -> Option<u32> {
        let _ = peer;
        None
    }

    /// Memory for arriving packets that this link occupies now. Reserved but untouched memory does not count. Unit:
    /// bytes.
    fn mailbox_bytes(&self) -> u64 {
        0
    }

    /// What it has done over a network. `None`: it uses none.
    fn network_report(&self) -> Option<NetworkReport> {
        None
    }

    /// What is known of the path to a peer over a network. `None`: there is none.
    fn path_report(&self, peer: Peer) -> Option<PathReport> {
        let _ = peer;
        None
    }

    /// Whether admission before a network holds back what goes to a peer.
    fn is_held_back(&self, peer: Peer) -> bool {
        let _ = peer;
        false
    }
}

/// A way for packets between endpoints. It has one owner at a time. It is `Send`, so that another thread can take
/// over.
pub trait Link: Addressing + Capabilities + Inspect + Send {
    /// The promises of this link.
    fn properties(&self) -> Properties;

    /// Claims a lane at the endpoint at `address`, from now on called `peer`. `None`: not yet, for example because the
    /// endpoint waits in the queue for a lane. Call again until there is a lease, or until [`Arrival::Lost`] says that
    /// there will be none.
    fn connect(&mut self, peer: Peer, address: &Address) -> Option<LaneLease>;

    /// Ends the lease at `to`, after the packet `Detach`. Nothing is written there until the next [`Link::connect`].
    fn disconnect(&mut self, to: Peer);

    /// Writes `packet` and its payload (from `memory`, at `offset`) to a connected peer, and wakes that peer if it
    /// sleeps. Never waits. The caller owns the slots, by credit or by [`crate::FreeSlots`]. `Ok`: the receiver's side holds
    /// the packet, unless the link has [`crate::Acknowledgements`].
    ///
    /// # Errors
    /// [`LinkBusy`]: the link takes nothing for this peer now, and has kept nothing. [`Arrival::Ready`] follows.
    fn transmit(
        &mut self,
        to: Peer,
        packet: &Packet,
        payload: Option<(&UserMemory, u64)>,
    ) -> Result<(), LinkBusy>;

    /// The next arrival, or `None`. Packets that this endpoint has sent to itself come first. The others follow in
    /// fair order.
    fn poll(&mut self) -> Option<Arrival> {
        let mut packet = Packet::blank();
        Some(match self.poll_into(&mut packet)? {
            Polled::Packet { from } => Arrival::Packet { from, packet },
            Polled::Other(arrival) => *arrival,
        })
    }

    /// As [`Link::poll`], but writes the header of a packet to `packet`. This serves drivers that poll often.
    fn poll_into(&mut self, packet: &mut Packet) -> Option<Polled>;

    /// Whether a poll may find something. Cheap, so that a waiting caller can repeat it.
    fn may_have_arrivals(&self) -> bool;

    /// Names the sender of a lane that was reported as [`Arrival::Attached`].
    fn accept(&mut self, lane: u32, peer: Peer);

    /// Frees the lane of `peer` in this mailbox. The caller has retired its `Detach`.
    fn release(&mut self, peer: Peer);

    /// Copies the first `bytes` payload bytes of the last polled packet to `memory` at `offset`.
    fn copy_payload(&self, memory: &UserMemory, offset: u64, bytes: u64);

    /// Frees the slots of the last polled packet.
    fn retire(&mut self);

    /// Checks whether `peer`, the endpoint at `address`, still runs. If not, [`Arrival::Lost`] follows. The caller
    /// repeats this for peers that it depends on. A link that notices losses by itself does nothing.
    fn check_peer(&mut self, peer: Peer, address: &Address);

    /// Forgets a lost peer. Its lane is not read any more, and nothing is written to it.
    fn forget(&mut self, peer: Peer);

    /// The time when the link must be polled, even if nothing wakes the endpoint before. It is `now`.
    fn deadline(&self, now: Instant) -> Option<Instant> {
        let _ = now;
        None
    }

    /// Gives back what this endpoint holds of things that endpoints of the node share
    /// ([`NodeHandle`](crate::shm::node_segment::NodeHandle)). The endpoint leaves the node segment after this call and
    /// before [`Link::close`]. A link that shares nothing does nothing.
    fn give_back_shared(&mut self) {}

    /// Closes the mailbox and removes its name. Peers then find that this endpoint is closed.
    fn close(&mut self);

    /// As [`Link::close`], but peers find that this endpoint has died. For an endpoint with undelivered messages for
    /// a peer: that peer must not wait for them.
    fn abandon(&mut self);
}
