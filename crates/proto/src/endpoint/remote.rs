//! Remote reads and writes, requests for payload in packets, and the end of transfers, also of sends by an
//! acknowledgement. Copies of rendezvous payload, which [`super::receiving`] starts, end here too.
//!
//! Small operations travel in packets. For large ones, if copies between the two processes work, the target only checks
//! the bounds and returns the address. The initiator then copies between the processes by itself:
//! ```text
//! initiator  Locate { transfer 0, key, offset, length }  ->  target checks
//! initiator  <-  Located { transfer 0, address }
//! initiator  Copy { transfer 0 }, CopyDone: complete      (the target's processor has no part in it)
//! ```
//! If the kernel cannot make the copy, the transfer continues in packets. The driver has the addresses of memory of the
//! own process.

use super::backlog::{BacklogEntry, EntryKind};
use super::inbound::BufferRange;
use super::refusal::Refusal;
use super::state::Endpoint;
use crate::action::{Destination, Direction, MemoryCopy, Outcome, Source};
use crate::config::MAX_REMOTE_OPERATIONS;
use crate::driver::Driver;
use crate::event::{CopyFault, Peer, PeerFault, RemoteCommand, Transfer};
use crate::offload::MAX_ANSWERS;
use crate::packet::{Body, RemoteAddress};
use crate::transfer::{PayloadPath, SendStage, State};

impl Endpoint {
    pub(super) fn read<D: Driver>(&mut self, read: RemoteCommand, driver: &mut D) -> Result<(), Refusal> {
        let RemoteCommand { request, peer, key, offset, bytes, .. } = read;
        self.check_remote_bounds(peer, 0, driver)?;
        let request = driver.hold(request, false);
        self.count_remote(bytes);
        let path = self.choose_path(peer, bytes);
        let state = State::Read { request, key, offset, bytes, left: bytes, path };
        let transfer = self.payloads.transfers.begin(peer, state);
        let body = if path == PayloadPath::Locating {
            Body::Locate { transfer, key, offset, length: bytes, write: false }
        } else {
            Body::Read { transfer, key, offset, length: bytes }
        };
        self.paths.submit(peer, BacklogEntry::control(body), &mut self.payloads, driver);
        Ok(())
    }

    pub(super) fn write<D: Driver>(&mut self, write: RemoteCommand, driver: &mut D) -> Result<(), Refusal> {
        let RemoteCommand { request, peer, key, offset, bytes, data } = write;
        self.check_remote_bounds(peer, bytes, driver)?;
        let request = driver.hold(request, false);
        self.count_remote(bytes);
        let path = match self.choose_path(peer, bytes) {
            PayloadPath::Locating if !driver.may_write(peer) => PayloadPath::Packets,
            path => path,
        };
        let transfer =
            self.payloads.transfers.begin(peer, State::Write { request, key, offset, bytes, data, path });
        let entry = if path == PayloadPath::Locating {
            BacklogEntry::control(Body::Locate { transfer, key, offset, length: bytes, write: true })
        } else {
            let kind = EntryKind::Write { transfer, key, offset, data };
            BacklogEntry::payload(kind, bytes, Source::Request { request, offset: 0 })
        };
        self.paths.submit(peer, entry, &mut self.payloads, driver);
        Ok(())
    }

    fn check_remote_bounds<D: Driver>(&self, peer: Peer, bytes: u64, driver: &D) -> Result<(), Refusal> {
        if self.payloads.transfers.remote_operations(peer) >= MAX_REMOTE_OPERATIONS {
            return Err(Refusal::RemoteOperations);
        }
        self.paths.check_bounds(peer, bytes, driver)
    }

    /// Queues the answer to a remote read, write or atomic of `to`. Returns whether `to` keeps the bound.
    pub(super) fn answer<D: Driver>(&mut self, to: Peer, entry: BacklogEntry, driver: &mut D) -> bool {
        let pending = self.paths.peer(to).pending.as_deref();
        let waiting = pending.map_or(0, |pending| pending.backlog.answers());
        if waiting >= MAX_REMOTE_OPERATIONS + MAX_ANSWERS {
            return false;
        }
        self.paths.submit(to, entry, &mut self.payloads, driver);
        true
    }

    /// An acknowledgement has arrived.
    pub(super) fn finished_arrived<D: Driver>(
        &mut self,
        from: Peer,
        transfer: Transfer,
        count: u32,
        refused: bool,
        driver: &mut D,
    ) -> bool {
        driver.announcements_ended(from, transfer, count);
        if let Some(first) = transfer.bounce_buffer() {
            return !refused
                && self.paths.bounce_buffers_finished(
                    from,
                    first,
                    count,
                    &mut self.payloads.bounce_buffers,
                    driver,
                );
        }
        if count != 1 {
            return false; // only bounce buffers are acknowledged together
        }
        let Some(state) = self.payloads.transfers.get(transfer, from).copied() else {
            // A goodbye has ended it already; the peer still acknowledges what it received before.
            return self.paths.peer(from).path.grants.said_goodbye;
        };
        // No operation may end before we have sent it: until then we use the program's buffer.
        let request = match state {
            State::Send { request, stage: SendStage::Left, .. } if !refused => request,
            State::Send { request, stage: SendStage::Started, .. } if !refused => {
                // The first packet of an eager message can match before its last packet has left.
                self.payloads.transfers.end(transfer);
                let pending = self.paths.peer(from).pending.as_deref_mut();
                let entry = pending.and_then(|pending| pending.backlog.front_mut());
                entry.expect("a started message is at the front of the backlog").await_last_packet(request);
                return true;
            }
            State::Write { request, path: PayloadPath::Left, .. } => request,
            State::Read { request, path: PayloadPath::Packets, .. } if refused => request,
            _ => return false,
        };
        self.payloads.transfers.end(transfer);
        self.paths.end_held(from, transfer, &mut self.payloads.bounce_buffers);
        driver.complete(request, if refused { Outcome::Refused } else { Outcome::Done });
        true
    }

    /// The receiver of a rendezvous requests the payload in packets. It may do so once.
    pub(super) fn fetch_arrived<D: Driver>(
        &mut self,
        from: Peer,
        transfer: Transfer,
        reply: Transfer,
        length: u64,
        driver: &mut D,
    ) -> bool {
        if let Some(number) = transfer.bounce_buffer() {
            let payload = Source::Bounce { transfer, offset: 0 };
            let known = self.payloads.bounce_buffers.fetch(number, from, length);
            if known {
                self.paths.end_held(from, transfer, &mut self.payloads.bounce_buffers);
                let kind = EntryKind::Pieces { transfer: reply, ours: None };
                self.paths.submit(
                    from,
                    BacklogEntry::payload(kind, length, payload),
                    &mut self.payloads,
                    driver,
                );
            }
            return known || self.paths.peer(from).path.grants.said_goodbye;
        }
        match self.payloads.transfers.get(transfer, from) {
            Some(State::Send { request, length: whole, stage: stage @ SendStage::Left, .. })
                if (1..=*whole).contains(&length) =>
            {
                let payload = Source::Request { request: *request, offset: 0 };
                (*stage, *whole) = (SendStage::Fetched, 0);
                let kind = EntryKind::Pieces { transfer: reply, ours: Some(transfer) };
                self.paths.end_held(from, transfer, &mut self.payloads.bounce_buffers);
                self.paths.submit(
                    from,
                    BacklogEntry::payload(kind, length, payload),
                    &mut self.payloads,
                    driver,
                );
                true
            }
            _ => false,
        }
    }

    pub(super) fn piece_arrived<D: Driver>(
        &mut self,
        from: Peer,
        transfer: Transfer,
        offset: u64,
        last: bool,
        bytes: u64,
        driver: &mut D,
    ) -> bool {
        match self.payloads.transfers.get(transfer, from).copied() {
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
                driver.place(to, bytes);
                if last {
                    self.payloads.transfers.end(transfer);
                    let range = BufferRange { request, multi, offset: start, bytes: whole };
                    self.rendezvous_received(from, range, &envelope, sender, driver);
                    self.continue_with_holder(from, driver); // a request may have waited for that
                } else if let Some(State::Receive { left, .. }) = self.payloads.transfers.get(transfer, from)
                {
                    *left -= bytes;
                }
                true
            }
            Some(State::Read { request, bytes: whole, left, path: PayloadPath::Packets, .. }) => {
                if offset != whole - left || bytes > left || last != (bytes == left) {
                    return false;
                }
                if bytes > 0 {
                    driver.place(Destination::Request { request, offset }, bytes);
                }
                if last {
                    self.payloads.transfers.end(transfer);
                    driver.complete(request, Outcome::Done);
                } else if let Some(State::Read { left, .. }) = self.payloads.transfers.get(transfer, from) {
                    *left -= bytes;
                }
                true
            }
            _ => false,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of the packet")]
    pub(super) fn write_arrived<D: Driver>(
        &mut self,
        from: Peer,
        transfer: Transfer,
        key: u64,
        offset: u64,
        left: u64,
        data: Option<u64>,
        bytes: u64,
        driver: &mut D,
    ) -> bool {
        let allowed =
            bytes.checked_add(left).is_some_and(|whole| self.payloads.allows(key, offset, whole, true));
        self.paths.peer(from);
        let pending = self.paths.pending(from);
        pending.write_refused |= !allowed;
        pending.write_bytes += bytes;
        let refused = pending.write_refused;
        let written_bytes = pending.write_bytes;
        if left == 0 {
            (pending.write_refused, pending.write_bytes) = (false, 0);
        }
        if !refused && bytes > 0 {
            driver.place(Destination::Region { key, offset }, bytes);
        }
        if left == 0 {
            if let Some(data) = data
                && !refused
            {
                driver.notify(from, data, written_bytes);
            }
            if refused {
                let finished = Body::Finished { transfer, count: 1, refused };
                return self.answer(from, BacklogEntry::control(finished), driver);
            } else {
                self.paths.acknowledge_transfer(from, transfer, 0, &mut self.payloads, driver);
            }
        }
        true
    }

    pub(super) fn read_arrived<D: Driver>(
        &mut self,
        from: Peer,
        transfer: Transfer,
        key: u64,
        offset: u64,
        length: u64,
        driver: &mut D,
    ) -> bool {
        let entry = if self.payloads.allows(key, offset, length, false) {
            BacklogEntry::payload(
                EntryKind::Pieces { transfer, ours: None },
                length,
                Source::Region { key, offset },
            )
        } else {
            BacklogEntry::control(Body::Finished { transfer, count: 1, refused: true })
        };
        self.answer(from, entry, driver)
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of the packet")]
    pub(super) fn locate_arrived<D: Driver>(
        &mut self,
        from: Peer,
        transfer: Transfer,
        key: u64,
        offset: u64,
        length: u64,
        write: bool,
        driver: &mut D,
    ) -> bool {
        let refused = !self.payloads.allows(key, offset, length, write);
        let located = Body::Located { transfer, key, offset, address: RemoteAddress::NONE, refused };
        self.answer(from, BacklogEntry::control(located), driver)
    }

    pub(super) fn located_arrived<D: Driver>(
        &mut self,
        from: Peer,
        transfer: Transfer,
        address: RemoteAddress,
        refused: bool,
        driver: &mut D,
    ) -> bool {
        let (request, bytes, direction, path) = match self.payloads.transfers.get(transfer, from) {
            Some(State::Read { request, bytes, path, .. }) => (*request, *bytes, Direction::Get, path),
            Some(State::Write { request, bytes, path, .. }) => (*request, *bytes, Direction::Put, path),
            _ => return false,
        };
        if *path != PayloadPath::Locating {
            return false; // not requested, or answered before
        }
        *path = PayloadPath::Copying;
        if refused {
            self.payloads.transfers.end(transfer);
            driver.complete(request, Outcome::Refused);
            return true;
        }
        self.paths.counters.cross_memory_copies += 1;
        self.paths.counters.cross_memory_bytes += bytes;
        driver.copy(MemoryCopy { transfer, request, peer: from, direction, address, offset: 0, bytes });
        true
    }

    pub(super) fn copy_done<D: Driver>(
        &mut self,
        transfer: Transfer,
        result: Result<(), CopyFault>,
        driver: &mut D,
    ) {
        // Unknown: its peer was lost in the meantime.
        let Some(entry) = self.payloads.transfers.entry(transfer) else { return };
        let peer = entry.peer;
        match result {
            Ok(()) => self.copied(transfer, driver),
            Err(CopyFault::Gone) => self.lose(peer, PeerFault::Died, driver),
            Err(CopyFault::Closed) => self.lose(peer, PeerFault::Closed, driver),
            // The kernel forbids all copies, or cannot copy at these addresses.
            Err(fault @ (CopyFault::Forbidden | CopyFault::BadAddress)) => {
                if fault == CopyFault::Forbidden {
                    self.paths.peer(peer).path.grants.cross_memory = false;
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
                ) = self.payloads.transfers.get(transfer, peer)
                {
                    *path = PayloadPath::Packets;
                }
                self.paths.submit(peer, entry, &mut self.payloads, driver);
            }
        }
    }

    fn copied<D: Driver>(&mut self, transfer: Transfer, driver: &mut D) {
        let Some(entry) = self.payloads.transfers.end(transfer) else { return };
        match entry.state {
            State::Receive { request, multi, sender, envelope, offset, bytes, .. } => {
                let range = BufferRange { request, multi, offset, bytes };
                self.rendezvous_received(entry.peer, range, &envelope, sender, driver);
                self.continue_with_holder(entry.peer, driver); // a request may have waited for that
            }
            State::Read { request, .. } => driver.complete(request, Outcome::Done),
            State::Write { request, bytes, data, .. } => {
                let Some(data) = data else { return driver.complete(request, Outcome::Done) };
                // The write ends when its notification is in the target's mailbox.
                let written = BacklogEntry::control(Body::Written { data, bytes });
                self.paths.submit(
                    entry.peer,
                    BacklogEntry { complete: Some(request), ..written },
                    &mut self.payloads,
                    driver,
                );
            }
            State::Send { .. } => {}
        }
    }

    fn choose_path(&mut self, peer: Peer, bytes: u64) -> PayloadPath {
        let large = bytes > self.paths.config.remote_inline_bytes;
        if large && self.paths.peer(peer).path.grants.cross_memory {
            PayloadPath::Locating
        } else {
            PayloadPath::Packets
        }
    }

    fn count_remote(&mut self, bytes: u64) {
        self.paths.counters.remote_operations += 1;
        self.paths.counters.remote_bytes += bytes;
    }
}
