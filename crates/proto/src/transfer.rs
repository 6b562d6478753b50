//! Transfers: what is under way between us and a peer beyond single packets, by the name the peer answers to.

use alloc::vec::Vec;

use crate::action::Envelope;
use crate::event::{Peer, Request, Transfer};
use crate::table::Table;

/// One transfer. The peer that may answer to it is part of it, and checked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    /// A send waits for `Finished`: its payload is to be taken (then `length` bytes may be fetched) or matched.
    Send { request: Request, length: u64 },
    /// A rendezvous is being taken into a receive.
    Receive {
        request: Request,
        multi: Option<u32>,
        sender: Transfer,
        envelope: Envelope,
        offset: u64,
        bytes: u64,
        /// Bytes that have not come, if they come in pieces.
        left: u64,
        path: PayloadPath,
    },
    /// A remote read: `left` bytes have not come.
    Read { request: Request, key: u64, offset: u64, bytes: u64, left: u64, path: PayloadPath },
    /// A remote write.
    Write { request: Request, key: u64, offset: u64, bytes: u64, data: Option<u64>, path: PayloadPath },
}

/// How the payload of a transfer travels: what may be heard of it next depends on that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PayloadPath {
    /// In packets.
    Packets,
    /// The target has been asked for the address.
    Locating,
    /// A copy between the processes is under way.
    Copying,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub peer: Peer,
    pub state: State,
}

/// All transfers of an endpoint but copies, which have their own table. Names are used again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transfers {
    entries: Table<Entry>,
}

impl Transfers {
    pub fn begin(&mut self, peer: Peer, state: State) -> Transfer {
        Transfer(self.entries.insert(Entry { peer, state }))
    }

    /// The transfer of that name with `peer`, if there is one: names come from the wire.
    pub fn get(&mut self, transfer: Transfer, peer: Peer) -> Option<&mut State> {
        let entry = self.entries.get_mut(transfer.0)?;
        (entry.peer == peer).then_some(&mut entry.state)
    }

    /// Our own transfer, whoever the peer is.
    pub fn entry(&self, transfer: Transfer) -> Option<Entry> {
        self.entries.get(transfer.0).copied()
    }

    pub fn end(&mut self, transfer: Transfer) -> Option<Entry> {
        self.entries.remove(transfer.0)
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

    /// The peers that transfers are under way with, each at least once.
    pub fn peers(&self) -> impl Iterator<Item = Peer> {
        self.entries.iter().map(|(_, entry)| entry.peer)
    }

    /// Whether a peer may still come for payload of ours.
    pub fn has_announced_payload(&self) -> bool {
        self.entries.iter().any(|(_, entry)| matches!(entry.state, State::Send { .. }))
    }

    /// Whether payload of a peer is still coming to a receive.
    pub fn is_receiving_payload(&self) -> bool {
        self.entries.iter().any(|(_, entry)| matches!(entry.state, State::Receive { .. }))
    }
}
