//! Transfers: operations between us and a peer that need more than one packet, by the name that the peer answers to.
//!
//! This file stores their state, and counts the remote operations with each peer. It does not decide anything. Bounce
//! buffers have a table of their own.

use alloc::vec::Vec;

use crate::action::Envelope;
use crate::event::{Peer, Request, Transfer};
use crate::table::Table;

/// The state of one transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    /// A send waits for `Finished`. Its payload is to be received by rendezvous (then `length` bytes may be requested),
    /// or only the match is awaited. `awaits_match`: the match is awaited in any case.
    Send { request: Request, length: u64, stage: SendStage, awaits_match: bool },
    /// A rendezvous is being received.
    Receive {
        request: Request,
        multi: Option<u32>,
        sender: Transfer,
        envelope: Envelope,
        offset: u64,
        bytes: u64,
        /// Bytes that have not arrived, if they come in packets.
        left: u64,
        path: PayloadPath,
    },
    /// A remote read; `left` bytes have not arrived.
    Read { request: Request, key: u64, offset: u64, bytes: u64, left: u64, path: PayloadPath },
    /// A remote write.
    Write { request: Request, key: u64, offset: u64, bytes: u64, data: Option<u64>, path: PayloadPath },
}

/// The stage of a send. It determines which packets are valid next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendStage {
    /// Its first packet waits in the backlog.
    Queued,
    /// Its first packet has left. The rest is at the front of the backlog.
    Started,
    /// All its packets have left.
    Left,
    /// The peer has requested the payload in packets, and these wait in the backlog.
    Fetched,
}

/// The way of a transfer's payload. It determines which packets are valid next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PayloadPath {
    /// In packets. Those of a write have not all left.
    Packets,
    /// The packets of the write have all left.
    Left,
    /// The address was requested from the target.
    Locating,
    /// A copy between the processes is pending.
    Copying,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub peer: Peer,
    pub state: State,
}

/// All transfers of an endpoint except bounce buffers, which have their own table. Names are reused.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transfers {
    entries: Table<Entry>,
    /// By peer. May be shorter than the list of peers.
    counts: Vec<Counts>,
}

/// What is under way with one peer.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Remote reads and writes.
    remote_operations: u32,
    /// Messages that are being received.
    receiving: u32,
}

impl Counts {
    /// The count that includes a transfer in this state.
    fn of(&mut self, state: &State) -> Option<&mut u32> {
        match state {
            State::Read { .. } | State::Write { .. } => Some(&mut self.remote_operations),
            State::Receive { .. } => Some(&mut self.receiving),
            State::Send { .. } => None,
        }
    }
}

impl Transfers {
    pub fn begin(&mut self, peer: Peer, state: State) -> Transfer {
        if !matches!(state, State::Send { .. }) {
            let index = peer.0 as usize;
            if self.counts.len() <= index {
                self.counts.resize(index + 1, Counts::default());
            }
            if let Some(count) = self.counts[index].of(&state) {
                *count += 1;
            }
        }
        Transfer(self.entries.insert(Entry { peer, state }))
    }

    /// The transfer of this name with `peer`, if there is one. Names come from the wire.
    pub fn get(&mut self, transfer: Transfer, peer: Peer) -> Option<&mut State> {
        let entry = self.entries.get_mut(transfer.0)?;
        (entry.peer == peer).then_some(&mut entry.state)
    }

    /// One of our transfers, with any peer.
    pub fn entry(&self, transfer: Transfer) -> Option<Entry> {
        self.entries.get(transfer.0).copied()
    }

    /// A packet of our transfer with `peer` has left. `last`: no other one waits for it.
    pub fn packet_left(&mut self, transfer: Transfer, peer: Peer, last: bool) {
        match self.get(transfer, peer) {
            Some(State::Send { stage, .. }) if last => *stage = SendStage::Left,
            Some(State::Send { stage: stage @ SendStage::Queued, .. }) => *stage = SendStage::Started,
            Some(State::Write { path: path @ PayloadPath::Packets, .. }) if last => *path = PayloadPath::Left,
            _ => {}
        }
    }

    pub fn end(&mut self, transfer: Transfer) -> Option<Entry> {
        let entry = self.entries.remove(transfer.0)?;
        let counts = self.counts.get_mut(entry.peer.0 as usize);
        if let Some(count) = counts.and_then(|counts| counts.of(&entry.state)) {
            *count -= 1;
        }
        Some(entry)
    }

    /// Number of messages of `peer` that are being received.
    pub fn receiving(&self, peer: Peer) -> u32 {
        self.counts.get(peer.0 as usize).map_or(0, |counts| counts.receiving)
    }

    /// Number of our remote reads and writes with `peer`.
    pub fn remote_operations(&self, peer: Peer) -> u32 {
        self.counts.get(peer.0 as usize).map_or(0, |counts| counts.remote_operations)
    }

    pub fn with_peer(&self, peer: Peer) -> Vec<Transfer> {
        self.entries
            .iter()
            .filter(|(_, entry)| entry.peer == peer)
            .map(|(number, _)| Transfer(number))
            .collect()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.count() == 0
    }

    /// The peers with pending transfers, each at least once.
    pub fn peers(&self) -> impl Iterator<Item = Peer> {
        self.entries.iter().map(|(_, entry)| entry.peer)
    }

    /// Whether a peer may still request payload of ours.
    pub fn has_announced_payload(&self) -> bool {
        self.entries.iter().any(|(_, entry)| matches!(entry.state, State::Send { .. }))
    }

    /// Whether payload of a peer is still arriving for a receive.
    pub fn is_receiving_payload(&self) -> bool {
        self.entries.iter().any(|(_, entry)| matches!(entry.state, State::Receive { .. }))
    }
}
