//! The sender's table of bounce buffers: copies of messages whose receivers have no memory left, and of injected
//! messages that cannot leave yet. It counts their bytes, and tells whether another one fits below the limit. It also
//! notes how much the peer knows of each ([`Stage`]), which decides what the peer may ask or acknowledge.
//!
//! The copies themselves belong to the driver.
//!
//! Worked exchange, budget used up: B sends A `credit, rendezvous_only`. A sends 2 KB: `FillBounce { r0 }`, `rendezvous
//! r0`, complete. B matches the message: `Copy`, complete. With 15 other acknowledgements, or when idle, B sends A
//! `finished r0, 16`, and A performs `FreeBounce { r0 }` and so on.

use alloc::vec::Vec;

use crate::config::{Config, ENVELOPE_BYTES};
use crate::event::{MessageId, Peer, Transfer};
use crate::table::{Number, Table};

/// A bounce buffer: a copy of one of our messages, until its receiver has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct BounceBuffer {
    peer: Peer,
    bytes: u32,
    stage: Stage,
    /// Its entry in the hold queue of the peer.
    held: Option<Number>,
}

impl BounceBuffer {
    /// The peer's knowledge of it.
    pub fn stage(&self) -> Stage {
        self.stage
    }
}

/// The peer's knowledge of a bounce buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing. The message waits for credit.
    Waiting,
    /// It was announced by a rendezvous packet.
    Announced,
    /// The peer has requested the payload in packets, and these wait in the backlog.
    Fetched,
    /// The requested packets have left.
    Left,
}

/// The sender's side: the bounce buffers for receivers without memory.
#[derive(Clone, Debug)]
pub(super) struct BounceBuffers {
    table: Table<BounceBuffer>,
    limit_bytes: u64,
    used_bytes: u64,
    /// Cost of one beside its payload, which is rounded up to 16 bytes. Unit: bytes.
    record_bytes: u64,
}

impl BounceBuffers {
    /// Memory for the record of a bounce buffer. Unit: bytes.
    const RECORD_BYTES: u64 = 32;

    pub fn new(config: &Config) -> BounceBuffers {
        // A message that is held has an envelope here too.
        let held_bytes = if config.holds() { ENVELOPE_BYTES } else { 0 };
        BounceBuffers {
            table: Table::default(),
            limit_bytes: config.bounce_bytes,
            used_bytes: 0,
            record_bytes: BounceBuffers::RECORD_BYTES + held_bytes,
        }
    }

    fn cost_bytes(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(16) + self.record_bytes
    }

    pub fn fits(&self, bytes: u64) -> bool {
        self.used_bytes + self.cost_bytes(bytes) <= self.limit_bytes && self.table.count() < 1 << 31
    }

    pub fn is_empty(&self) -> bool {
        self.table.count() == 0
    }

    /// The peer and the bytes of each.
    pub fn iter(&self) -> impl Iterator<Item = (Peer, u64)> {
        self.table.iter().map(|(_, buffer)| (buffer.peer, buffer.bytes.into()))
    }

    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Reserves a bounce buffer of `bytes` bytes, at most [`crate::MAX_EAGER_BYTES`], and returns its name.
    #[inline]
    pub fn begin(&mut self, peer: Peer, bytes: u64, stage: Stage) -> Transfer {
        self.used_bytes += self.cost_bytes(bytes);
        let buffer = BounceBuffer { peer, bytes: bytes as u32, stage, held: None };
        Transfer::of_bounce_buffer(self.table.insert(buffer))
    }

    /// Its entry in the hold queue of its peer, if `transfer` names a bounce buffer with one.
    pub fn held(&self, transfer: Transfer) -> Option<MessageId> {
        let buffer = self.table.get(transfer.bounce_buffer()?)?;
        buffer.held.map(|number| MessageId(number.get()))
    }

    /// Notes its entry in the hold queue of its peer. Returns whether `transfer` names a bounce buffer.
    pub fn set_held(&mut self, transfer: Transfer, message: Option<MessageId>) -> bool {
        let Some(buffer) = transfer.bounce_buffer().and_then(|number| self.table.get_mut(number)) else {
            return false;
        };
        buffer.held = message.map(|message| Number::of(message.0));
        true
    }

    /// A waiting bounce buffer is announced.
    pub fn announce(&mut self, transfer: Transfer) {
        if let Some(buffer) = transfer.bounce_buffer().and_then(|number| self.table.get_mut(number)) {
            buffer.stage = Stage::Announced;
        }
    }

    /// The bounce buffer of this number for `peer`.
    pub fn of_peer(&mut self, number: u32, peer: Peer) -> Option<&mut BounceBuffer> {
        self.table.get_mut(number).filter(|buffer| buffer.peer == peer)
    }

    /// `peer` requests the first `length` bytes of a bounce buffer in packets. Returns whether it may: it has not
    /// before.
    pub fn fetch(&mut self, number: u32, peer: Peer, length: u64) -> bool {
        let announced = |buffer: &&mut BounceBuffer| {
            buffer.stage == Stage::Announced && (1..=u64::from(buffer.bytes)).contains(&length)
        };
        let buffer = self.of_peer(number, peer).filter(announced);
        buffer.map(|buffer| buffer.stage = Stage::Fetched).is_some()
    }

    /// The last requested packet of a bounce buffer has left.
    pub fn pieces_left(&mut self, transfer: Transfer) {
        if let Some(buffer) = transfer.bounce_buffer().and_then(|number| self.table.get_mut(number)) {
            buffer.stage = Stage::Left;
        }
    }

    pub fn end(&mut self, transfer: Transfer) {
        if let Some(buffer) = transfer.bounce_buffer().and_then(|number| self.table.remove(number)) {
            self.used_bytes -= self.cost_bytes(u64::from(buffer.bytes));
        }
    }

    pub fn with_peer(&self, peer: Peer) -> Vec<Transfer> {
        let of_peer = self.table.iter().filter(|(_, buffer)| buffer.peer == peer);
        of_peer.map(|(number, _)| Transfer::of_bounce_buffer(number)).collect()
    }
}
