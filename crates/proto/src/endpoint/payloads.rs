//! The state behind the names that peers use in packets: transfers, bounce buffers and registered regions.
//!
//! Packets carry these names, and the peer answers to them. This file checks what peers may access in a region. It
//! names the payload of an eager message that becomes a rendezvous, and ends the transfer of an entry that will not be
//! sent.

use alloc::collections::BTreeMap;

use super::backlog::{BacklogEntry, EntryKind};
use super::bounce::{BounceBuffers, Stage};
use crate::action::Source;
use crate::config::Config;
use crate::event::{Peer, Request, Transfer};
use crate::packet::Body;
use crate::transfer::{SendStage, State, Transfers};

/// A registered region.
#[derive(Clone, Copy, Debug)]
struct Region {
    bytes: u64,
    readable: bool,
    writable: bool,
}

/// Transfers, bounce buffers and regions, by the names that peers use in packets.
#[derive(Clone, Debug)]
pub(super) struct Payloads {
    pub transfers: Transfers,
    pub bounce_buffers: BounceBuffers,
    /// By key.
    regions: BTreeMap<u64, Region>,
}

impl Payloads {
    /// Nothing to name.
    pub fn new(config: &Config) -> Payloads {
        Payloads {
            transfers: Transfers::default(),
            bounce_buffers: BounceBuffers::new(config),
            regions: BTreeMap::new(),
        }
    }

    /// Registers a region of `bytes` bytes.
    pub fn register(&mut self, key: u64, bytes: u64, readable: bool, writable: bool) {
        self.regions.insert(key, Region { bytes, readable, writable });
    }

    /// Ends the registration of a region.
    pub fn deregister(&mut self, key: u64) {
        self.regions.remove(&key);
    }

    /// Whether a peer can name nothing.
    #[cfg(feature = "explore")]
    pub fn is_empty(&self) -> bool {
        let Payloads { transfers, bounce_buffers, regions } = self;
        transfers.is_empty() && bounce_buffers.is_empty() && regions.is_empty()
    }

    /// Whether peers may read or `write` these bytes of a region.
    pub fn allows(&self, key: u64, offset: u64, bytes: u64, write: bool) -> bool {
        self.regions.get(&key).is_some_and(|region| {
            let right = if write { region.writable } else { region.readable };
            right && offset.checked_add(bytes).is_some_and(|end| end <= region.bytes)
        })
    }

    /// Ends the transfer of an entry that will not be sent. Returns the request that the entry serves.
    pub fn end_unsent(&mut self, entry: &BacklogEntry) -> Option<Request> {
        let transfer = match entry.kind {
            EntryKind::Eager { acknowledge, .. } => acknowledge,
            EntryKind::Write { transfer, .. } => Some(transfer),
            EntryKind::Control(
                Body::Rendezvous { transfer, .. }
                | Body::Read { transfer, .. }
                | Body::Locate { transfer, .. },
            ) => Some(transfer),
            // These carry names of the peer's transfers, or none.
            EntryKind::Control(_) | EntryKind::Offloaded(_) | EntryKind::Pieces { .. } => None,
        };
        let of_transfer =
            transfer.and_then(|transfer| self.transfers.end(transfer)).map(|entry| match entry.state {
                State::Send { request, .. }
                | State::Receive { request, .. }
                | State::Read { request, .. }
                | State::Write { request, .. } => request,
            });
        entry.complete.or(of_transfer)
    }

    /// Names the payload of an eager message, which becomes a rendezvous because `to` has no memory. Returns the name
    /// and where the payload lies. `None`: the message is not announced.
    pub fn announce(
        &mut self,
        entry: &BacklogEntry,
        acknowledge: Option<Transfer>,
        delivered: bool,
        to: Peer,
    ) -> Option<(Transfer, Source)> {
        let request = match entry.payload {
            Source::Request { request, .. } => request,
            Source::Bounce { transfer, .. } => {
                self.bounce_buffers.announce(transfer); // it was copied while it waited for credit
                return Some((transfer, entry.payload));
            }
            Source::None | Source::Region { .. } | Source::Buffer { .. } => return None,
        };
        if let Some(transfer) = acknowledge {
            // The send waits for the match in any case, so the payload can stay in the program's buffer.
            if let Some(State::Send { length, .. }) = self.transfers.get(transfer, to) {
                *length = entry.bytes;
            }
            return Some((transfer, entry.payload));
        }
        // A bounce buffer ends with us. So a delivered send waits until the receiver has the payload.
        if !delivered && self.bounce_buffers.fits(entry.bytes) {
            let transfer = self.bounce_buffers.begin(to, entry.bytes, Stage::Announced);
            return Some((transfer, Source::Bounce { transfer, offset: 0 }));
        }
        let stage = SendStage::Queued;
        let send = State::Send { request, length: entry.bytes, stage, awaits_match: false };
        Some((self.transfers.begin(to, send), entry.payload))
    }
}
