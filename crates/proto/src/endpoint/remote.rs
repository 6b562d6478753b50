//! Remote reads and writes, payload requests, and the end of transfers.
//!
//! Small operations travel in packets. For large ones the target only checks the bounds and returns the address. The
//! initiator then copies between the processes by itself:
//! ```text
//! initiator  Locate { transfer 0, key, offset, length }  ->  target checks
//! initiator  <-  Located { transfer 0, address }
//! initiator  Copy { transfer 0 }, CopyDone: complete      (the target's processor has no part in it)
//! ```
//! If the kernel forbids the copy, the transfer continues in packets. This file does not know addresses of memory of
//! its own process.

use alloc::vec::Vec;

use super::Endpoint;
use super::receiving::BufferRange;
use super::sending::{BacklogEntry, EntryKind};
use crate::action::{Action, Destination, Direction, Outcome, Source};
use crate::event::{CopyFault, Peer, PeerFault, RemoteCommand, Request, Transfer};
use crate::packet::Body;
use crate::time::Instant;
use crate::transfer::{PayloadPath, State};

impl Endpoint {
    pub(super) fn read(&mut self, now: Instant, read: RemoteCommand, actions: &mut Vec<Action>) {
        let RemoteCommand { request, peer, key, offset, bytes, .. } = read;
        self.count_remote(bytes);
        let path = self.choose_path(peer, bytes);
        let state = State::Read { request, key, offset, bytes, left: bytes, path };
        let transfer = self.transfers.begin(peer, state);
        let body = if path == PayloadPath::Locating {
            Body::Locate { transfer, key, offset, length: bytes, write: false }
        } else {
            Body::Read { transfer, key, offset, length: bytes }
        };
        self.submit(now, peer, BacklogEntry::control(body), actions);
    }

    pub(super) fn write(&mut self, now: Instant, write: RemoteCommand, actions: &mut Vec<Action>) {
        let RemoteCommand { request, peer, key, offset, bytes, data } = write;
        self.count_remote(bytes);
        let path = self.choose_path(peer, bytes);
        let transfer = self.transfers.begin(peer, State::Write { request, key, offset, bytes, data, path });
        let entry = if path == PayloadPath::Locating {
            BacklogEntry::control(Body::Locate { transfer, key, offset, length: bytes, write: true })
        } else {
            let kind = EntryKind::Write { transfer, key, offset, data };
            BacklogEntry::payload(kind, bytes, Source::Request { request, offset: 0 })
        };
        self.submit(now, peer, entry, actions);
    }

    /// An acknowledgement has arrived.
    pub(super) fn finished_arrived(
        &mut self,
        from: Peer,
        transfer: Transfer,
        count: u32,
        refused: bool,
        actions: &mut Vec<Action>,
    ) -> bool {
        if let Some(first) = transfer.bounce_buffer() {
            return !refused && self.bounce_buffers_finished(from, first, count, actions);
        }
        if count != 1 {
            return false; // only bounce buffers are acknowledged together
        }
        let Some(state) = self.transfers.get(transfer, from).copied() else {
            // A goodbye has ended it already; the peer still acknowledges what it received before.
            return self.peer(from).said_goodbye;
        };
        let request = match state {
            State::Send { request, .. } if !refused => request,
            State::Write { request, path: PayloadPath::Packets, .. } => request,
            State::Read { request, path: PayloadPath::Packets, .. } if refused => request,
            _ => return false,
        };
        if let Some(entry) = self.unsent(from, request) {
            // The first packet of an eager message can match before its last packet has left. We use the program's
            // buffer until then. No other operation may end before we have sent it.
            let EntryKind::Eager { acknowledge, .. } = &mut entry.kind else { return false };
            *acknowledge = None;
            entry.complete = Some(request);
            self.transfers.end(transfer);
            return true;
        }
        self.transfers.end(transfer);
        Self::complete(actions, request, if refused { Outcome::Refused } else { Outcome::Done });
        true
    }

    /// The backlog entry for `to` with payload from the buffer of `request`.
    pub(super) fn unsent(&mut self, to: Peer, request: Request) -> Option<&mut BacklogEntry> {
        let pending = self.peer(to).pending.as_deref_mut()?;
        pending.backlog.iter_mut().find(|entry| {
            matches!(entry.payload, Source::Request { request: of, .. } if of == request) && entry.bytes > 0
        })
    }

    /// The receiver of a rendezvous requests the payload in packets.
    pub(super) fn fetch_arrived(
        &mut self,
        now: Instant,
        from: Peer,
        transfer: Transfer,
        reply: Transfer,
        length: u64,
        actions: &mut Vec<Action>,
    ) -> bool {
        if let Some(number) = transfer.bounce_buffer() {
            let payload = Source::Bounce { transfer, offset: 0 };
            let known = self.bounce_buffers.fetch(number, from).is_some_and(|whole| length <= whole);
            if known {
                let pieces = BacklogEntry::payload(EntryKind::Pieces { transfer: reply }, length, payload);
                self.submit(now, from, pieces, actions);
            }
            return known || self.peer(from).said_goodbye;
        }
        match self.transfers.get(transfer, from) {
            Some(&mut State::Send { request, length: whole }) if length <= whole => {
                let payload = Source::Request { request, offset: 0 };
                let pieces = BacklogEntry::payload(EntryKind::Pieces { transfer: reply }, length, payload);
                self.submit(now, from, pieces, actions);
                true
            }
            _ => false,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of the packet")]
    pub(super) fn piece_arrived(
        &mut self,
        now: Instant,
        from: Peer,
        transfer: Transfer,
        offset: u64,
        last: bool,
        bytes: u64,
        actions: &mut Vec<Action>,
    ) -> bool {
        match self.transfers.get(transfer, from).copied() {
            Some(State::Receive {
                request,
                multi,
                sender,
                envelope,
                offset: start,
                bytes: whole,
                left,
                path: PayloadPath::Packets,
            }) => {
                if offset != whole - left || bytes > left || last != (bytes == left) {
                    return false;
                }
                let to = Destination::Request { request, offset: start + offset };
                actions.push(Action::Place { to, bytes });
                if last {
                    self.transfers.end(transfer);
                    let range = BufferRange { request, multi, offset: start, bytes: whole };
                    self.rendezvous_received(now, from, range, &envelope, sender, actions);
                } else if let Some(State::Receive { left, .. }) = self.transfers.get(transfer, from) {
                    *left -= bytes;
                }
                true
            }
            Some(State::Read { request, bytes: whole, left, path: PayloadPath::Packets, .. }) => {
                if offset != whole - left || bytes > left || last != (bytes == left) {
                    return false;
                }
                if bytes > 0 {
                    actions.push(Action::Place { to: Destination::Request { request, offset }, bytes });
                }
                if last {
                    self.transfers.end(transfer);
                    Self::complete(actions, request, Outcome::Done);
                } else if let Some(State::Read { left, .. }) = self.transfers.get(transfer, from) {
                    *left -= bytes;
                }
                true
            }
            _ => false,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of the packet")]
    pub(super) fn write_arrived(
        &mut self,
        now: Instant,
        from: Peer,
        transfer: Transfer,
        key: u64,
        offset: u64,
        left: u64,
        data: Option<u64>,
        bytes: u64,
        actions: &mut Vec<Action>,
    ) -> bool {
        let allowed = bytes.checked_add(left).is_some_and(|whole| self.allows(key, offset, whole, true));
        self.peer(from);
        let Endpoint { peers, spare, .. } = self;
        let pending = spare.begin(&mut peers[from.0 as usize].pending);
        pending.write_refused |= !allowed;
        pending.write_bytes += bytes;
        let refused = pending.write_refused;
        let written_bytes = pending.write_bytes;
        if left == 0 {
            (pending.write_refused, pending.write_bytes) = (false, 0);
        }
        if !refused && bytes > 0 {
            actions.push(Action::Place { to: Destination::Region { key, offset }, bytes });
        }
        if left == 0 {
            if let Some(data) = data
                && !refused
            {
                actions.push(Action::Notify { from, data, bytes: written_bytes });
            }
            if refused {
                let finished = Body::Finished { transfer, count: 1, refused };
                self.submit(now, from, BacklogEntry::control(finished), actions);
            } else {
                self.acknowledge_transfer(now, from, transfer, 0, actions);
            }
        }
        true
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of the packet")]
    pub(super) fn read_arrived(
        &mut self,
        now: Instant,
        from: Peer,
        transfer: Transfer,
        key: u64,
        offset: u64,
        length: u64,
        actions: &mut Vec<Action>,
    ) -> bool {
        let entry = if self.allows(key, offset, length, false) {
            BacklogEntry::payload(EntryKind::Pieces { transfer }, length, Source::Region { key, offset })
        } else {
            BacklogEntry::control(Body::Finished { transfer, count: 1, refused: true })
        };
        self.submit(now, from, entry, actions);
        true
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of the packet")]
    pub(super) fn locate_arrived(
        &mut self,
        now: Instant,
        from: Peer,
        transfer: Transfer,
        key: u64,
        offset: u64,
        length: u64,
        write: bool,
        actions: &mut Vec<Action>,
    ) -> bool {
        let refused = !self.allows(key, offset, length, write);
        let located = Body::Located { transfer, key, offset, address: 0, refused };
        self.submit(now, from, BacklogEntry::control(located), actions);
        true
    }

    pub(super) fn located_arrived(
        &mut self,
        from: Peer,
        transfer: Transfer,
        address: u64,
        refused: bool,
        actions: &mut Vec<Action>,
    ) -> bool {
        let (request, bytes, direction, path) = match self.transfers.get(transfer, from) {
            Some(State::Read { request, bytes, path, .. }) => (*request, *bytes, Direction::Get, path),
            Some(State::Write { request, bytes, path, .. }) => (*request, *bytes, Direction::Put, path),
            _ => return false,
        };
        if *path != PayloadPath::Locating {
            return false; // not requested, or answered before
        }
        *path = PayloadPath::Copying;
        if refused {
            self.transfers.end(transfer);
            Self::complete(actions, request, Outcome::Refused);
            return true;
        }
        self.counters.cross_memory_copies += 1;
        self.counters.cross_memory_bytes += bytes;
        actions.push(Action::Copy { transfer, request, peer: from, direction, address, offset: 0, bytes });
        true
    }

    pub(super) fn copy_done(
        &mut self,
        now: Instant,
        transfer: Transfer,
        result: Result<(), CopyFault>,
        actions: &mut Vec<Action>,
    ) {
        // Unknown: its peer was lost in the meantime.
        let Some(entry) = self.transfers.entry(transfer) else { return };
        let peer = entry.peer;
        match result {
            Ok(()) => self.copied(now, transfer, actions),
            Err(CopyFault::Gone) => self.lose(peer, PeerFault::Died, actions),
            // The kernel forbids all copies, or cannot copy at these addresses.
            Err(fault @ (CopyFault::Forbidden | CopyFault::BadAddress)) => {
                if fault == CopyFault::Forbidden {
                    self.peer(peer).cross_memory = false;
                }
                let entry = match entry.state {
                    State::Receive { sender, bytes, .. } => BacklogEntry::control(Body::Fetch {
                        transfer: sender,
                        reply: transfer,
                        length: bytes,
                    }),
                    State::Read { key, offset, bytes, .. } => {
                        BacklogEntry::control(Body::Read { transfer, key, offset, length: bytes })
                    }
                    State::Write { request, key, offset, bytes, data, .. } => {
                        let kind = EntryKind::Write { transfer, key, offset, data };
                        BacklogEntry::payload(kind, bytes, Source::Request { request, offset: 0 })
                    }
                    State::Send { .. } => return,
                };
                if let Some(
                    State::Receive { path, .. } | State::Read { path, .. } | State::Write { path, .. },
                ) = self.transfers.get(transfer, peer)
                {
                    *path = PayloadPath::Packets;
                }
                self.submit(now, peer, entry, actions);
            }
        }
    }

    fn copied(&mut self, now: Instant, transfer: Transfer, actions: &mut Vec<Action>) {
        let Some(entry) = self.transfers.end(transfer) else { return };
        match entry.state {
            State::Receive { request, multi, sender, envelope, offset, bytes, .. } => {
                let range = BufferRange { request, multi, offset, bytes };
                self.rendezvous_received(now, entry.peer, range, &envelope, sender, actions);
            }
            State::Read { request, .. } => Self::complete(actions, request, Outcome::Done),
            State::Write { request, bytes, data, .. } => {
                if let Some(data) = data {
                    self.submit(
                        now,
                        entry.peer,
                        BacklogEntry::control(Body::Written { data, bytes }),
                        actions,
                    );
                }
                Self::complete(actions, request, Outcome::Done);
            }
            State::Send { .. } => {}
        }
    }

    fn choose_path(&mut self, peer: Peer, bytes: u64) -> PayloadPath {
        let large = bytes > self.config.remote_inline_bytes;
        if large && self.peer(peer).cross_memory { PayloadPath::Locating } else { PayloadPath::Packets }
    }

    fn allows(&self, key: u64, offset: u64, bytes: u64, write: bool) -> bool {
        self.regions.get(&key).is_some_and(|region| region.allows(offset, bytes, write))
    }

    fn count_remote(&mut self, bytes: u64) {
        self.counters.remote_operations += 1;
        self.counters.remote_bytes += bytes;
    }
}
