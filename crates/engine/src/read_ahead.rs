//! Announced messages, several with one system call: whoever floods a receiver leaves long rows of copies in its own memory, and most
//! are received in the order in which they were sent. A copy between processes costs some microseconds, however little it copies; so when
//! a receiver takes the second of a row, what follows is read with it, and handed out as it is received.
//!
//! Nothing is read that has not been announced, and nothing is handed out that may have changed since. A message lies unchanged in its
//! sender's memory from before its announcement until its end has been told. What is held is only the rest of a row, behind the message that
//! was taken last; should one of the rest end in another way and its place be used again, then the message that is there now has been announced
//! *after* the reading: and an announcement inside what is held ends it.

use std::collections::{BTreeMap, HashMap};

use weir_link::memory::OwnedMemory;
use weir_link::{Copied, Link};
use weir_proto::{Direction, Peer};

use crate::Engine;
use crate::operations::Outstanding;

/// What is read at once, at most: it stays in the second-level cache. Unit: bytes.
const HELD_BYTES: u64 = 64 << 10;
/// Longer messages are copied one by one. Unit: bytes.
const LONGEST_BYTES: u64 = HELD_BYTES / 4;
/// Rows that are known of a peer. More: the one at the lowest address is forgotten, and its messages are copied one by one.
const MOST_ROWS: usize = 4096;
/// Copies begin at multiples of this. Unit: bytes.
const ALIGNMENT: u64 = 16;

/// Memory of a peer with announced messages one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    start: u64,
    end: u64,
}

impl Row {
    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start < end && start < self.end
    }
}

/// The rows of a peer: from their starts to their ends. They do not overlap.
#[derive(Debug, Default)]
struct Rows {
    ends: BTreeMap<u64, u64>,
    /// The start of the one that grows.
    last: Option<u64>,
}

impl Rows {
    /// Forgets what overlaps with this range.
    fn remove(&mut self, start: u64, end: u64) {
        while let Some((&row, _)) =
            self.ends.range(..end).next_back().filter(|(_, row_end)| **row_end > start)
        {
            self.ends.remove(&row);
        }
    }

    fn add(&mut self, start: u64, end: u64) {
        let last = self.last.and_then(|last| self.ends.get_mut(&last));
        match last.filter(|last_end| last_end.next_multiple_of(ALIGNMENT) == start) {
            Some(last_end) => *last_end = end,
            None => {
                if self.ends.len() >= MOST_ROWS {
                    self.ends.pop_first();
                }
                self.ends.insert(start, end);
                self.last = Some(start);
            }
        }
    }

    /// Start and end of the row in which something lies there.
    fn row_at(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &end) = self.ends.range(..=address).next_back()?;
        (address < end).then_some((start, end))
    }

    /// What lies there is taken: its row begins at `after` from now on. What was skipped is copied by itself, so that no row stays
    /// when its last message has been taken.
    fn shorten(&mut self, address: u64, after: u64) {
        let Some((start, end)) = self.row_at(address) else { return };
        self.ends.remove(&start);
        if after < end {
            self.ends.insert(after, end);
            if self.last == Some(start) {
                self.last = Some(after);
            }
        }
    }
}

/// What peers have announced, and what of it has been read already.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    rows: HashMap<Peer, Rows>,
    /// Whose memory is held, and which of it.
    held: Option<(Peer, Row)>,
    /// Where the buffer begins.
    held_from: u64,
    buffer: Option<OwnedMemory>,
    /// Where the message would lie that follows the one that was taken last.
    next: Option<(Peer, u64)>,
}

/// How to come by a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// It is in the buffer.
    Held,
    /// Read so many bytes, of which it is the first.
    Read(u64),
    /// Copy it by itself.
    Alone,
}

impl ReadAhead {
    /// A message of `bytes` bytes waits at this address of the peer's.
    pub fn announced(&mut self, peer: Peer, address: u64, bytes: u64) {
        let Some(end) = address.checked_add(bytes).filter(|_| address > 0 && bytes > 0) else { return };
        if self.held.is_some_and(|(whose, held)| whose == peer && held.overlaps(address, end)) {
            self.held = None;
        }
        if let Some(rows) = self.rows.get_mut(&peer) {
            rows.remove(address, end);
        }
        if bytes <= LONGEST_BYTES {
            self.rows.entry(peer).or_default().add(address, end);
        }
    }

    /// Nothing that the peer has announced counts any more.
    pub fn forget(&mut self, peer: Peer) {
        self.rows.remove(&peer);
        self.held.take_if(|(whose, _)| *whose == peer);
        self.let_go();
    }

    /// The message there is taken now.
    fn plan(&mut self, peer: Peer, address: u64, bytes: u64) -> Plan {
        let follows = self.next.replace((peer, (address + bytes).next_multiple_of(ALIGNMENT)));
        if let Some((whose, held)) = self.held
            && whose == peer
            && held.start <= address
            && address + bytes <= held.end
        {
            return Plan::Held;
        }
        match self.rows.get(&peer).and_then(|rows| rows.row_at(address)) {
            Some((_, end)) if follows == Some((peer, address)) && address + bytes < end => {
                Plan::Read((end - address).min(HELD_BYTES))
            }
            _ => Plan::Alone,
        }
    }

    /// The message there has been taken: it is no part of its row any more, nor of what is held.
    fn taken(&mut self, peer: Peer, address: u64, bytes: u64) {
        let after = (address + bytes).next_multiple_of(ALIGNMENT);
        if let Some((_, held)) = self.held.as_mut().filter(|(whose, _)| *whose == peer) {
            // What lies before it would have been taken first if it was still to come: it is copied by itself.
            held.start = held.start.max(after);
            if held.start >= held.end {
                self.held = None;
            }
        }
        if let Some(rows) = self.rows.get_mut(&peer) {
            rows.shorten(address, after);
            if rows.ends.is_empty() {
                self.rows.remove(&peer);
                self.let_go();
            }
        }
    }

    /// Gives the memory back if nothing is announced.
    fn let_go(&mut self) {
        if self.rows.is_empty() && self.held.is_none() {
            self.buffer = None;
            self.next = None;
        }
    }
}

impl<L: Link> Engine<L> {
    /// Takes the announced message of `bytes` bytes at `address` of the peer's memory to the front of a receive's buffer, and reads ahead if
    /// that is worth while. `false`: it has to be copied by itself.
    pub(crate) fn take_announced(
        link: &mut L,
        ahead: &mut ReadAhead,
        peer: Peer,
        address: u64,
        outstanding: &Outstanding,
        bytes: u64,
    ) -> bool {
        // The address comes from the peer.
        if bytes == 0 || bytes > LONGEST_BYTES || address.checked_add(bytes + ALIGNMENT).is_none() {
            return false;
        }
        let plan = ahead.plan(peer, address, bytes);
        if let Plan::Read(span) = plan {
            let buffer = ahead.buffer.get_or_insert_with(|| OwnedMemory::new(HELD_BYTES as usize));
            let read = link.copy(peer, Direction::Get, address, &buffer.view(), 0, span);
            ahead.held = None;
            // If it fails, the message itself may still be there; or the failure is told of it.
            if read == Ok(Copied::Done) {
                ahead.held = Some((peer, Row { start: address, end: address + span }));
                ahead.held_from = address;
            }
        }
        let held = match (&ahead.held, &ahead.buffer) {
            (Some(_), Some(buffer)) if plan != Plan::Alone => buffer,
            _ => {
                ahead.taken(peer, address, bytes);
                return false;
            }
        };
        held.view().copy_to(address - ahead.held_from, bytes, &outstanding.memory, 0);
        ahead.taken(peer, address, bytes);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Peer = Peer(3);

    /// Announces `count` messages of 2 KiB one behind the other.
    fn row(ahead: &mut ReadAhead, start: u64, count: u64) {
        (0..count).for_each(|number| ahead.announced(FROM, start + number * 2048, 2048));
    }

    /// Takes a message as the engine does, with a link that copies everything.
    fn take(ahead: &mut ReadAhead, address: u64) -> Plan {
        let plan = ahead.plan(FROM, address, 2048);
        if let Plan::Read(span) = plan {
            ahead.held = Some((FROM, Row { start: address, end: address + span }));
        }
        ahead.taken(FROM, address, 2048);
        plan
    }

    #[test]
    fn from_the_second_of_a_row_on_what_follows_is_read_with_it() {
        let mut ahead = ReadAhead::default();
        row(&mut ahead, 0x10000, 40);
        assert_eq!(take(&mut ahead, 0x10000), Plan::Alone);
        assert_eq!(take(&mut ahead, 0x10800), Plan::Read(HELD_BYTES));
        for number in 2..33 {
            assert_eq!(take(&mut ahead, 0x10000 + number * 2048), Plan::Held, "{number}");
        }
        assert_eq!(take(&mut ahead, 0x10000 + 33 * 2048), Plan::Read(7 * 2048));
        (34..40).for_each(|number| assert_eq!(take(&mut ahead, 0x10000 + number * 2048), Plan::Held));
        assert!(ahead.rows.is_empty() && ahead.held.is_none() && ahead.buffer.is_none());
    }

    #[test]
    fn a_place_that_is_used_again_is_read_again() {
        let mut ahead = ReadAhead::default();
        row(&mut ahead, 0x10000, 8);
        take(&mut ahead, 0x10000);
        assert_eq!(take(&mut ahead, 0x10800), Plan::Read(7 * 2048));
        // The fourth has ended in another way, and something else lies there.
        ahead.announced(FROM, 0x11800, 100);
        assert_ne!(take(&mut ahead, 0x11000), Plan::Held);
        assert_ne!(take(&mut ahead, 0x11800), Plan::Held);
    }

    #[test]
    fn what_was_skipped_is_not_taken_from_what_is_held() {
        let mut ahead = ReadAhead::default();
        row(&mut ahead, 0x10000, 8);
        take(&mut ahead, 0x10000);
        take(&mut ahead, 0x10800);
        assert_eq!(take(&mut ahead, 0x12000), Plan::Held);
        assert_ne!(take(&mut ahead, 0x11000), Plan::Held);
    }

    #[test]
    fn nothing_is_left_of_a_row_whose_messages_were_skipped_or_taken_in_part() {
        let mut ahead = ReadAhead::default();
        row(&mut ahead, 0x10000, 4);
        take(&mut ahead, 0x10800);
        ahead.plan(FROM, 0x11000, 100);
        ahead.taken(FROM, 0x11000, 100);
        take(&mut ahead, 0x11800);
        assert!(ahead.rows.is_empty() && ahead.held.is_none());
    }

    #[test]
    fn nobody_gets_what_another_has_announced_and_the_dead_have_announced_nothing() {
        let mut ahead = ReadAhead::default();
        row(&mut ahead, 0x10000, 8);
        take(&mut ahead, 0x10000);
        take(&mut ahead, 0x10800);
        assert_eq!(ahead.plan(Peer(4), 0x11000, 2048), Plan::Alone);
        ahead.forget(FROM);
        assert_eq!(ahead.plan(FROM, 0x11000, 2048), Plan::Alone);
    }

    #[test]
    fn rows_are_as_many_as_allowed_and_end_where_memory_does() {
        let mut ahead = ReadAhead::default();
        (0..2 * MOST_ROWS as u64).for_each(|number| ahead.announced(FROM, 0x10000 + number * 4096, 2048));
        assert_eq!(ahead.rows[&FROM].ends.len(), MOST_ROWS);
        ahead.announced(FROM, u64::MAX - 10, 2048);
        ahead.announced(FROM, 0, 2048);
        assert_eq!(ahead.rows[&FROM].ends.len(), MOST_ROWS);
    }
}
