//! Lines of the endpoints of a node in the area of token pools ([`TokenLines`]): each shows the tokens that it holds and
//! whether it waits ([`weir_proto::admission::TaskLine`]). Its place is that of its entry in the directory. Nobody else
//! writes it, so all stores are plain ones.
//!
//! ```text
//! 0         word: lines that have been used; their memory is reserved
//! 64        line of entry 0: tokens and time of the last change; time of the ticket; time of the last look
//! 128       line of entry 1
//! ```
//! **Deaths.** Tokens and their time are one word, so no instruction leaves a line half written. A ticket appears after
//! the time of the look that makes it count. The line of a dead endpoint counts no more after
//! [`weir_proto::admission::HOLD_NS`], and the next endpoint with that entry writes it anew.
//!
//! This file does not know who may pass.

use super::counted_word::Word;
use super::mapping::Shared;
use super::node_segment::{Area, NodeHandle, SharedArea};
use super::segment_file::SystemError;
use super::sync::Ordering;
use weir_proto::Instant;
use weir_proto::admission::{LineTicket, Task, TaskLine};

/// Length of a line: one cache line. Unit: bytes.
const LINE_BYTES: u64 = 64;
/// Memory is reserved in such parts. Unit: bytes.
const PART_BYTES: u64 = 4096;
/// Bits of the time in the word of tokens. 8 years of microseconds.
const TIME_BITS: u32 = 48;

/// The line of an endpoint, as it lies in the segment.
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct Line {
    /// Tokens, and the time of their last change in the lower bits. Unit of the time: us.
    held: Word,
    /// When the ticket was drawn. 0: there is none. Unit: us.
    since: Word,
    /// When the endpoint has looked last. Unit: us.
    looked: Word,
}

/// The word before the lines: how many of them have been used. A look reads no others.
#[repr(transparent)]
#[derive(Debug)]
struct Used(Word);

// SAFETY: a structure of atomics.
unsafe impl Shared for Line {}
// SAFETY: an atomic.
unsafe impl Shared for Used {}

const _: () = assert!(!super::sync::NATIVE || size_of::<Line>() == LINE_BYTES as usize);

fn micros(at: Instant) -> u64 {
    at.0 / 1000
}

fn instant(micros: u64) -> Instant {
    Instant(micros.saturating_mul(1000))
}

impl Line {
    fn show_held(&self, held: u32, changed: Instant) {
        let held = u64::from(held.min(u16::MAX.into()));
        let time = micros(changed) & ((1 << TIME_BITS) - 1);
        self.held.store(held << TIME_BITS | time, Ordering::Release);
    }

    fn show_ticket(&self, ticket: Option<LineTicket>) {
        if let Some(ticket) = ticket {
            self.looked.store(micros(ticket.looked), Ordering::Release);
        }
        let since = ticket.map_or(0, |ticket| micros(ticket.since).max(1));
        self.since.store(since, Ordering::Release);
    }

    fn read(&self) -> TaskLine {
        let (held, since) = (self.held.load(Ordering::Acquire), self.since.load(Ordering::Acquire));
        let looked = self.looked.load(Ordering::Acquire);
        TaskLine {
            held: (held >> TIME_BITS) as u32,
            changed: instant(held & ((1 << TIME_BITS) - 1)),
            ticket: (since > 0).then(|| LineTicket { since: instant(since), looked: instant(looked) }),
        }
    }
}

/// The lines of a node, and which of them is that of this endpoint. See the head of this file.
#[derive(Debug)]
pub struct TokenLines {
    area: SharedArea,
    index: usize,
}

impl TokenLines {
    /// The lines of the node of `node`. Reserves the memory of the own line, which shows nothing then. `None`: its entry has
    /// no line, because there are too many endpoints.
    ///
    /// # Errors
    /// No space left, or the name is gone.
    pub fn open(node: &NodeHandle) -> Result<Option<TokenLines>, SystemError> {
        let index = node.index();
        let bytes = (LINE_BYTES * (index as u64 + 2)).next_multiple_of(PART_BYTES);
        if bytes > Area::TokenPools.bytes() {
            return Ok(None);
        }
        node.part(Area::TokenPools, 0, bytes)?;
        let area = node.reserved_part(Area::TokenPools, 0, Area::TokenPools.bytes());
        let lines = TokenLines { area, index };
        lines.used().fetch_max(index as u64 + 1, Ordering::AcqRel);
        lines.clear();
        Ok(Some(lines))
    }

    fn used(&self) -> &Word {
        &self.area.values::<Used>(0, 1)[0].0
    }

    /// The lines that have been used.
    fn lines(&self) -> &[Line] {
        let most = Area::TokenPools.bytes() / LINE_BYTES - 1;
        let used = self.used().load(Ordering::Acquire).min(most);
        self.area.values(LINE_BYTES, used as usize)
    }

    fn own(&self) -> &Line {
        &self.area.values(LINE_BYTES * (self.index as u64 + 1), 1)[0]
    }

    /// A time as others read it in a line. A ticket must have it: if two endpoints compared a more exact time of their own with
    /// what the other shows, each could find the other earlier, and wait for ever.
    pub fn shown_time(time: Instant) -> Instant {
        instant(micros(time).max(1))
    }

    /// The task of this endpoint.
    pub fn task(&self) -> Task {
        Task(self.index as u32)
    }

    /// The lines of the others. Some may have died.
    pub fn others(&self) -> impl Iterator<Item = (Task, TaskLine)> {
        let lines = self.lines().iter().enumerate().filter(|(index, _)| *index != self.index);
        lines.map(|(index, line)| (Task(index as u32), line.read()))
    }

    /// Shows how many tokens this endpoint holds since `changed`.
    #[inline]
    pub fn show_held(&self, held: u32, changed: Instant) {
        self.own().show_held(held, changed);
    }

    /// Shows whether this endpoint waits.
    pub fn show_ticket(&self, ticket: Option<LineTicket>) {
        self.own().show_ticket(ticket);
    }

    /// Shows nothing.
    pub fn clear(&self) {
        self.show_ticket(None);
        self.show_held(0, Instant(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::sync::{Arc, explore, thread};
    use weir_proto::admission::{HOLD_NS, LineSettings, request_tokens};

    const NOW: Instant = Instant(7 * HOLD_NS);
    const ONE: LineSettings = LineSettings { tokens: 1, look_ns: 0, single_look_ns: 0 };

    /// What an endpoint does that sends and completes a message, up to a step. Returns whether it has passed.
    fn exchange(lines: &[Line; 2], index: usize, steps: u32) -> bool {
        let own = &lines[index];
        let ticket = LineTicket { since: NOW, looked: NOW };
        let other = (Task(1 - index as u32), lines[1 - index].read());
        let may_pass =
            request_tokens(&ONE, NOW, (Task(index as u32), &own.read()), [other].into_iter(), 1).is_some();
        if !may_pass {
            own.show_ticket(Some(ticket));
        } else if steps > 0 {
            own.show_held(1, NOW);
            if steps > 1 {
                own.show_ticket(None);
            }
            if steps > 2 {
                own.show_held(0, NOW);
            }
        }
        may_pass
    }

    #[test]
    fn a_line_shows_what_its_owner_has_written() {
        explore(1, || {
            let line = Line::default();
            assert_eq!(line.read(), TaskLine::default());
            line.show_held(5, NOW);
            let ticket = LineTicket { since: NOW, looked: NOW.plus_ns(3000) };
            line.show_ticket(Some(ticket));
            assert_eq!(line.read(), TaskLine { held: 5, changed: NOW, ticket: Some(ticket) });
            line.show_held(1 << 20, NOW);
            assert_eq!(line.read().held, u16::MAX.into(), "no bit of the time");
            line.show_ticket(None);
            assert_eq!(line.read().ticket, None);
        });
    }

    #[test]
    fn loom_others_never_see_tokens_with_the_time_of_another_change_or_a_ticket_before_its_look() {
        explore(2, || {
            let line = Arc::new(Line::default());
            let writer = {
                let line = Arc::clone(&line);
                thread::spawn(move || {
                    line.show_ticket(Some(LineTicket { since: NOW, looked: NOW }));
                    line.show_held(1, NOW);
                    line.show_ticket(None);
                    line.show_held(2, NOW.plus_ns(2000));
                })
            };
            let seen = line.read();
            let changed = [Instant(0), NOW, NOW.plus_ns(2000)][seen.held as usize];
            assert_eq!(seen.changed, changed);
            assert!(seen.ticket.is_none_or(|ticket| ticket.looked == NOW), "{seen:?}");
            writer.join().unwrap();
        });
    }

    /// One of two endpoints dies at any step. The other passes at the latest when the line of the dead one counts no more.
    #[test]
    fn loom_an_endpoint_passes_whatever_the_other_has_written_before_it_died() {
        for steps in 0..=3 {
            explore(2, move || {
                let lines = Arc::new([Line::default(), Line::default()]);
                let dead = {
                    let lines = Arc::clone(&lines);
                    thread::spawn(move || exchange(&lines, 0, steps))
                };
                exchange(&lines, 1, 3);
                dead.join().unwrap();
                let later = NOW.plus_ns(HOLD_NS);
                let own = (Task(1), &lines[1].read());
                let others = || [(Task(0), lines[0].read())].into_iter();
                assert!(request_tokens(&ONE, later, own, others(), 1).is_some(), "{:?}", lines[0].read());
            });
        }
    }
}
