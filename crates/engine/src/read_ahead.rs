//! Read-ahead: one system call reads several announced messages that lie one after the other.
//!
//! A flood leaves long runs of bounce buffers in the sender's memory, and a receiver takes most in the order in which
//! they were sent. A copy between processes costs some microseconds, however little it copies. So when a receiver takes
//! the second message of a run, it reads the following ones too, and takes them from its buffer later.
//!
//! Only announced messages are read, and a buffered message cannot have changed. Its sender leaves it as it is from the
//! announcement until it has ended. A buffered message may end in another way, and its memory may be used again. Then
//! the new message there is announced *after* the read, and an announcement inside the buffered range drops the buffer.

use std::collections::{BTreeMap, HashMap};

use weir_link::memory::OwnedMemory;
use weir_link::{Link, RemoteCopy};
use weir_proto::{Direction, Peer, RemoteAddress};

use crate::operations::Outstanding;

/// Most bytes of one read: they stay in the second-level cache. Unit: bytes.
pub const BUFFER_BYTES: u64 = 64 << 10;
/// Longest message that is read ahead; longer ones are copied one by one. Unit: bytes.
const MAX_MESSAGE_BYTES: u64 = BUFFER_BYTES / 4;
/// Most runs that are stored for a peer. Beyond it the run at the lowest address is dropped, and its messages are
/// copied one by one.
const MAX_RUNS: usize = 4096;
/// Bounce buffers begin at multiples of this. Unit: bytes.
const ALIGNMENT: u64 = 16;

/// Memory of a peer in which announced messages lie one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    end: u64,
}

impl Run {
    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start < end && start < self.end
    }
}

/// The runs of a peer, from their starts to their ends. They do not overlap.
#[derive(Debug, Default)]
struct Runs {
    ends: BTreeMap<u64, u64>,
    /// The start of the run that grows.
    last: Option<u64>,
}

impl Runs {
    /// Removes the runs that overlap with this range.
    fn remove(&mut self, start: u64, end: u64) {
        while let Some((&run, _)) =
            self.ends.range(..end).next_back().filter(|(_, run_end)| **run_end > start)
        {
            self.ends.remove(&run);
        }
    }

    fn add(&mut self, start: u64, end: u64) {
        let last = self.last.and_then(|last| self.ends.get_mut(&last));
        match last.filter(|last_end| last_end.next_multiple_of(ALIGNMENT) == start) {
            Some(last_end) => *last_end = end,
            None => {
                if self.ends.len() >= MAX_RUNS {
                    self.ends.pop_first();
                }
                self.ends.insert(start, end);
                self.last = Some(start);
            }
        }
    }

    /// Start and end of the run that contains `address`.
    fn run_at(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &end) = self.ends.range(..=address).next_back()?;
        (address < end).then_some((start, end))
    }

    /// Called for a message that was taken: its run begins at `after` from now on. Messages that were skipped are
    /// copied one by one, so that every run ends with its last message.
    fn shorten(&mut self, address: u64, after: u64) {
        let Some((start, end)) = self.run_at(address) else { return };
        self.ends.remove(&start);
        if after < end {
            self.ends.insert(after, end);
            if self.last == Some(start) {
                self.last = Some(after);
            }
        }
    }
}

/// The announced messages of all peers, and what was read of them in advance.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    runs: HashMap<Peer, Runs>,
    /// The peer and the range that the buffer holds.
    buffered: Option<(Peer, Run)>,
    /// The address, in the peer's memory, of the first byte of the buffer.
    buffer_start: u64,
    buffer: Option<OwnedMemory>,
    /// The address at which the message after the last one would lie.
    next: Option<(Peer, u64)>,
}

/// The place from which a message is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadSource {
    /// From the buffer.
    Buffered,
    /// From the peer, with one read of this many bytes that begins with the message.
    Read(u64),
    /// From the peer, with a copy of its own.
    Single,
}

impl ReadAhead {
    /// Notes a message of `bytes` bytes that was announced at `address` of the peer's memory.
    pub fn rts_arrived(&mut self, peer: Peer, address: u64, bytes: u64) {
        let Some(end) = address.checked_add(bytes).filter(|_| address > 0 && bytes > 0) else { return };
        if self
            .buffered
            .is_some_and(|(source_peer, buffered)| source_peer == peer && buffered.overlaps(address, end))
        {
            self.buffered = None;
        }
        if let Some(runs) = self.runs.get_mut(&peer) {
            runs.remove(address, end);
        }
        if bytes <= MAX_MESSAGE_BYTES {
            self.runs.entry(peer).or_default().add(address, end);
        }
    }

    /// Drops all announced messages of a peer.
    pub fn forget(&mut self, peer: Peer) {
        self.runs.remove(&peer);
        self.buffered.take_if(|(source_peer, _)| *source_peer == peer);
        self.free_buffer_if_idle();
    }

    /// Decides where the message at `address`, which is being received, is taken from.
    fn choose_source(&mut self, peer: Peer, address: u64, bytes: u64) -> ReadSource {
        let follows = self.next.replace((peer, (address + bytes).next_multiple_of(ALIGNMENT)));
        if let Some((source_peer, buffered)) = self.buffered
            && source_peer == peer
            && buffered.start <= address
            && address + bytes <= buffered.end
        {
            return ReadSource::Buffered;
        }
        match self.runs.get(&peer).and_then(|runs| runs.run_at(address)) {
            Some((_, end)) if follows == Some((peer, address)) && address + bytes < end => {
                ReadSource::Read((end - address).min(BUFFER_BYTES))
            }
            _ => ReadSource::Single,
        }
    }

    /// Notes that the message was taken: it is no longer part of its run and of the buffer.
    fn was_read(&mut self, peer: Peer, address: u64, bytes: u64) {
        let after = (address + bytes).next_multiple_of(ALIGNMENT);
        if let Some((_, buffered)) = self.buffered.as_mut().filter(|(source_peer, _)| *source_peer == peer) {
            // Messages before it would have been taken first. If one still comes, it is copied alone.
            buffered.start = buffered.start.max(after);
            if buffered.start >= buffered.end {
                self.buffered = None;
            }
        }
        if let Some(runs) = self.runs.get_mut(&peer) {
            runs.shorten(address, after);
            if runs.ends.is_empty() {
                self.runs.remove(&peer);
                self.free_buffer_if_idle();
            }
        }
    }

    /// Frees the buffer if no message is announced.
    fn free_buffer_if_idle(&mut self) {
        if self.runs.is_empty() && self.buffered.is_none() {
            self.buffer = None;
            self.next = None;
        }
    }
}

/// Takes the announced message of `bytes` bytes at `address` of the peer's memory into a receive's buffer, and
/// reads ahead if that helps. `false`: the caller has to copy the message alone.
pub(crate) fn read_rendezvous<L: Link>(
    link: &mut L,
    ahead: &mut ReadAhead,
    peer: Peer,
    remote: RemoteAddress,
    outstanding: &Outstanding,
    bytes: u64,
) -> bool {
    let address = remote.address;
    // The address comes from the peer.
    if bytes == 0 || bytes > MAX_MESSAGE_BYTES || address.checked_add(bytes + ALIGNMENT).is_none() {
        return false;
    }
    let source = ahead.choose_source(peer, address, bytes);
    if let ReadSource::Read(span) = source {
        let buffer = ahead.buffer.get_or_insert_with(|| OwnedMemory::new(BUFFER_BYTES as usize));
        let direction = Direction::Get;
        let copy = RemoteCopy { context: 0, peer, direction, remote, offset: 0, bytes: span };
        let read = link.remote_memory().map(|link| link.read_at_once(&copy, &buffer.view()));
        ahead.buffered = None;
        // If the read fails, the message itself may still be there. If not, its own copy reports that.
        if read == Some(Ok(())) {
            ahead.buffered = Some((peer, Run { start: address, end: address + span }));
            ahead.buffer_start = address;
        }
    }
    let buffered = match (&ahead.buffered, &ahead.buffer) {
        (Some(_), Some(buffer)) if source != ReadSource::Single => buffer,
        _ => {
            ahead.was_read(peer, address, bytes);
            return false;
        }
    };
    buffered.view().copy_to(address - ahead.buffer_start, bytes, &outstanding.memory, 0);
    ahead.was_read(peer, address, bytes);
    true
}
#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Peer = Peer(3);

    /// Announces `count` messages of 2 KiB one after the other.
    fn run(ahead: &mut ReadAhead, start: u64, count: u64) {
        (0..count).for_each(|number| ahead.rts_arrived(FROM, start + number * 2048, 2048));
    }

    /// Takes a message as the engine does, with a link that copies everything.
    fn take(ahead: &mut ReadAhead, address: u64) -> ReadSource {
        let source = ahead.choose_source(FROM, address, 2048);
        if let ReadSource::Read(span) = source {
            ahead.buffered = Some((FROM, Run { start: address, end: address + span }));
        }
        ahead.was_read(FROM, address, 2048);
        source
    }

    #[test]
    fn the_second_message_of_a_run_reads_the_following_ones() {
        let mut ahead = ReadAhead::default();
        run(&mut ahead, 0x10000, 40);
        assert_eq!(take(&mut ahead, 0x10000), ReadSource::Single);
        assert_eq!(take(&mut ahead, 0x10800), ReadSource::Read(BUFFER_BYTES));
        for number in 2..33 {
            assert_eq!(take(&mut ahead, 0x10000 + number * 2048), ReadSource::Buffered, "{number}");
        }
        assert_eq!(take(&mut ahead, 0x10000 + 33 * 2048), ReadSource::Read(7 * 2048));
        (34..40)
            .for_each(|number| assert_eq!(take(&mut ahead, 0x10000 + number * 2048), ReadSource::Buffered));
        assert!(ahead.runs.is_empty() && ahead.buffered.is_none() && ahead.buffer.is_none());
    }

    #[test]
    fn an_rts_for_a_buffered_address_drops_the_buffer() {
        let mut ahead = ReadAhead::default();
        run(&mut ahead, 0x10000, 8);
        take(&mut ahead, 0x10000);
        assert_eq!(take(&mut ahead, 0x10800), ReadSource::Read(7 * 2048));
        // The fourth message has ended in another way, and another lies there.
        ahead.rts_arrived(FROM, 0x11800, 100);
        assert_ne!(take(&mut ahead, 0x11000), ReadSource::Buffered);
        assert_ne!(take(&mut ahead, 0x11800), ReadSource::Buffered);
    }

    #[test]
    fn a_skipped_message_is_not_read_from_the_buffer() {
        let mut ahead = ReadAhead::default();
        run(&mut ahead, 0x10000, 8);
        take(&mut ahead, 0x10000);
        take(&mut ahead, 0x10800);
        assert_eq!(take(&mut ahead, 0x12000), ReadSource::Buffered);
        assert_ne!(take(&mut ahead, 0x11000), ReadSource::Buffered);
    }

    #[test]
    fn a_run_ends_with_its_last_message() {
        let mut ahead = ReadAhead::default();
        run(&mut ahead, 0x10000, 4);
        take(&mut ahead, 0x10800);
        ahead.choose_source(FROM, 0x11000, 100);
        ahead.was_read(FROM, 0x11000, 100);
        take(&mut ahead, 0x11800);
        assert!(ahead.runs.is_empty() && ahead.buffered.is_none());
    }

    #[test]
    fn a_buffer_serves_only_its_peer_and_ends_with_it() {
        let mut ahead = ReadAhead::default();
        run(&mut ahead, 0x10000, 8);
        take(&mut ahead, 0x10000);
        take(&mut ahead, 0x10800);
        assert_eq!(ahead.choose_source(Peer(4), 0x11000, 2048), ReadSource::Single);
        ahead.forget(FROM);
        assert_eq!(ahead.choose_source(FROM, 0x11000, 2048), ReadSource::Single);
    }

    #[test]
    fn runs_are_bounded_and_end_at_the_address_limit() {
        let mut ahead = ReadAhead::default();
        (0..2 * MAX_RUNS as u64).for_each(|number| ahead.rts_arrived(FROM, 0x10000 + number * 4096, 2048));
        assert_eq!(ahead.runs[&FROM].ends.len(), MAX_RUNS);
        ahead.rts_arrived(FROM, u64::MAX - 10, 2048);
        ahead.rts_arrived(FROM, 0, 2048);
        assert_eq!(ahead.runs[&FROM].ends.len(), MAX_RUNS);
    }
}
