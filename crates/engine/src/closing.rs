//! Closing: before its mailbox ends, an endpoint waits for a bounded time until peers have taken the messages of
//! its completed operations.
//!
//! It goes in steps, so that a caller can close several endpoints of a process together. Each step polls, so an
//! endpoint that closes still takes the messages of others. This file does not know matching, credits or libfabric.
//!
//! | waits for | bound |
//! |---|---|
//! | other members to close a group, payload that is being received, and operations that are not complete | `FI_WEIR_CLOSE_MS` in all |
//! | messages and acknowledgements of completed operations, until peers take them, close or die | `FI_WEIR_LINGER_S` since one was taken |
//!
//! If the program of a peer cannot act while the caller closes (`idle_peers`), the second bound is at most
//! [`IDLE_PEER_LINGER`].
//!
//! Worked example, two endpoints A and B of a process, and a peer that has stopped:
//! ```text
//! A.begin_close, B.begin_close
//! A.close_step, B.close_step, A.close_step ...     goodbyes cross; B is done and goes on polling
//! A.close_step                                     nothing was taken for FI_WEIR_LINGER_S: done
//! A.end_close -> GivenUp, B.end_close -> None
//! ```

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant as Clock};

use weir_link::{Address, Link};
use weir_proto::{Command, Undelivered};

use crate::observe::own_name;
use crate::{Engine, stalls};

/// Time between two looks at what is undelivered, which visits the whole backlog.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// The bound for peers that cannot act while the caller closes: enough steps for everything that progress delivers.
const IDLE_PEER_LINGER: Duration = Duration::from_millis(100);
/// At least so many steps belong to that bound: a caller without a core makes none in that time. After a step in which nothing
/// happens it waits for at most 1 ms.
const IDLE_PEER_STEPS: u32 = 500;
/// Peers that are named when messages are given up; the others are counted.
const MAX_NAMED_PEERS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Payload arrives for receives that have matched.
    Receiving,
    /// The goodbyes are posted. Peers take what this endpoint has for them.
    Delivering,
    /// Nothing is waited for any more.
    Done,
    /// The mailbox is closed.
    Ended,
}

/// The state of a close.
#[derive(Debug)]
pub(crate) struct Closing {
    phase: Phase,
    /// End of the wait for what is not complete.
    deadline: Clock,
    looked_at: Option<Clock>,
    /// The least that was undelivered so far: messages and acknowledgements, and bytes.
    least: (u64, u64),
    /// The time when it became less.
    taken_at: Clock,
    /// The steps since then.
    steps: u32,
    /// The user knows that this endpoint waits.
    reported: bool,
    given_up: Vec<Undelivered>,
    /// Packets that have left and that the sides of their receivers do not hold.
    unacknowledged_packets: u64,
}

/// The result of [`Engine::close_step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseStep {
    /// Events that the step has handled.
    pub events: usize,
    /// The endpoint waits for nothing any more.
    pub done: bool,
}

/// Messages of completed sends that an endpoint has given up when it closed. Its text is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// The endpoint: `rank 3`, or its process.
    pub endpoint: String,
    /// Time for which no receiver has taken anything.
    pub waited: Duration,
    /// The peers by name, and what each has not taken.
    pub peers: Vec<(String, Undelivered)>,
    /// Packets that have left for any peers, and that these have not acknowledged.
    pub packets: u64,
}

impl GivenUp {
    /// Messages to all peers.
    pub fn messages(&self) -> u64 {
        self.peers.iter().map(|(_, undelivered)| undelivered.messages).sum()
    }

    /// Their payload. Unit: bytes.
    pub fn bytes(&self) -> u64 {
        self.peers.iter().map(|(_, undelivered)| undelivered.bytes).sum()
    }
}

impl Display for GivenUp {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let of =
            |messages, bytes| format!("{} ({})", stalls::plural(messages, "message"), stalls::bytes(bytes));
        write!(
            formatter,
            "{} closes and gives up {} of completed sends, because no receiver took any for {}: ",
            self.endpoint,
            of(self.messages(), self.bytes()),
            stalls::time(self.waited.as_nanos() as u64),
        )?;
        for (nth, (peer, undelivered)) in self.peers.iter().take(MAX_NAMED_PEERS).enumerate() {
            let Undelivered { messages, bytes, acknowledgements, .. } = *undelivered;
            let comma = if nth > 0 { ", " } else { "" };
            write!(formatter, "{comma}{} to {peer}", of(messages, bytes))?;
            if acknowledgements > 0 {
                write!(formatter, " and {}", stalls::plural(acknowledgements, "acknowledgement"))?;
            }
        }
        if self.peers.len() > MAX_NAMED_PEERS {
            write!(formatter, " and to {} more peers", self.peers.len() - MAX_NAMED_PEERS)?;
        }
        if self.packets > 0 {
            let separator = if self.peers.is_empty() { "" } else { ", and " };
            let packets = stalls::plural(self.packets, "packet");
            write!(formatter, "{separator}{packets} that their receivers have not acknowledged")?;
        }
        write!(formatter, "; set FI_WEIR_LINGER_S to wait longer")
    }
}

impl<L: Link> Engine<L> {
    /// Sends queued messages, waits until peers have taken what only this endpoint holds, and closes the mailbox. Posted
    /// receives are dropped. Returns what was given up.
    pub fn close(&mut self) -> Option<GivenUp> {
        self.begin_close();
        loop {
            match self.close_step(&[]) {
                CloseStep { done: true, .. } => return self.end_close(),
                CloseStep { events: 0, .. } => self.pause(),
                CloseStep { .. } => {}
            }
        }
    }

    /// Begins to close. Follow it by calls of [`Engine::close_step`].
    pub fn begin_close(&mut self) {
        let now = Clock::now();
        self.closing.get_or_insert_with(|| {
            Box::new(Closing {
                phase: Phase::Receiving,
                deadline: now + Duration::from_millis(u64::from(self.close_ms)),
                looked_at: None,
                least: (u64::MAX, u64::MAX),
                taken_at: now,
                steps: 0,
                reported: false,
                given_up: Vec::new(),
                unacknowledged_packets: 0,
            })
        });
    }

    /// The next step of closing. Never sleeps. Repeat it until it is done, and further while other endpoints of the
    /// process close: they may have something to deliver to this one.
    ///
    /// `idle_peers`: peers whose program cannot act while the caller closes. For messages that only they could take the
    /// endpoint waits no longer than progress needs.
    pub fn close_step(&mut self, idle_peers: &[Address]) -> CloseStep {
        if self.closing.as_ref().is_none_or(|closing| closing.phase == Phase::Ended) {
            return CloseStep { events: 0, done: true };
        }
        let events = self.progress();
        let now = Clock::now();
        self.check_peers_if_due(now);
        let Some(mut closing) = self.closing.take() else { unreachable!("progress does not end a close") };
        closing.steps = closing.steps.saturating_add(1);
        let waits = self.machine.is_receiving() || self.waits_for_groups(&closing, idle_peers, now);
        if closing.phase == Phase::Receiving && (!waits || now >= closing.deadline) {
            closing.phase = Phase::Delivering;
            self.post(Command::Close);
        }
        if closing.phase == Phase::Delivering
            && (!self.has_undelivered() || closing.is_look_due(now))
            && !self.waits_to_close(&mut closing, idle_peers, now)
        {
            closing.phase = Phase::Done;
        }
        let done = closing.phase == Phase::Done;
        self.closing = Some(closing);
        CloseStep { events, done }
    }

    /// Whether members of a group may still take part in its last operation. Those that cannot act now get little time.
    fn waits_for_groups(&self, closing: &Closing, idle_peers: &[Address], now: Clock) -> bool {
        let mut members = self.io.collectives.members_of_closing().peekable();
        if members.peek().is_none() {
            return false;
        }
        let own = self.address();
        let is_idle = |address: Address| address != own && idle_peers.contains(&address);
        !members.any(|peer| is_idle(self.address_of(peer)))
            || now.duration_since(closing.taken_at) < IDLE_PEER_LINGER
    }

    /// Whether closing now would lose something, in the endpoint machine or on the link.
    fn has_undelivered(&mut self) -> bool {
        self.machine.has_undelivered() || self.io.unacknowledged_packets() > 0
    }

    /// Whether closing waits for peers.
    fn waits_to_close(&mut self, closing: &mut Closing, idle_peers: &[Address], now: Clock) -> bool {
        closing.looked_at = Some(now);
        closing.given_up.clear();
        let undelivered = self.machine.undelivered();
        let incomplete = now < closing.deadline && self.machine.has_incomplete();
        let packets = self.io.unacknowledged_packets();
        closing.unacknowledged_packets = 0;
        if undelivered.is_empty() && packets == 0 {
            if closing.reported && !incomplete {
                self.report_closing(
                    "closes: the receivers of those messages have taken them, closed or died",
                );
            }
            return incomplete;
        }
        let all = undelivered.iter().fold((packets, 0), |(count, bytes), one| {
            (count + one.messages + one.acknowledgements, bytes + one.bytes)
        });
        if all < closing.least {
            (closing.least, closing.taken_at, closing.steps) = (all, now, 0);
        }
        let only_idle =
            packets == 0 && undelivered.iter().all(|one| idle_peers.contains(&self.address_of(one.peer)));
        let linger = if only_idle { self.linger.min(IDLE_PEER_LINGER) } else { self.linger };
        let has_steps_left = only_idle && !linger.is_zero() && closing.steps < IDLE_PEER_STEPS;
        if has_steps_left || now.duration_since(closing.taken_at) < linger {
            if now >= closing.deadline && !std::mem::replace(&mut closing.reported, true) {
                self.report_closing(&format!(
                    "waits to close: live receivers have not taken {} of the messages that it has sent",
                    all.0
                ));
            }
            return true;
        }
        closing.given_up = undelivered;
        closing.unacknowledged_packets = packets;
        incomplete
    }

    fn report_closing(&self, what: &str) {
        if let Some(warn) = self.warn {
            warn(&format!("{} {what}", own_name()));
        }
    }

    /// Ends a close whose last step was done, and closes the mailbox. Returns what was given up. Peers then see an end
    /// that was not in good order, so that none of them waits for a message that does not come.
    pub fn end_close(&mut self) -> Option<GivenUp> {
        let closing = self.closing.as_mut().filter(|closing| closing.phase == Phase::Done)?;
        closing.phase = Phase::Ended;
        let given_up = std::mem::take(&mut closing.given_up);
        let packets = closing.unacknowledged_packets;
        let waited = closing.taken_at.elapsed();
        self.sample(Clock::now());
        self.trace = None;
        self.node.look();
        let state = self.state();
        if let Some(stats) = self.stats.take() {
            stats.close(self.machine.counters(), &state);
        }
        self.io.link.give_back_shared(); // while others still find this endpoint in the node segment
        self.node.leave();
        if given_up.is_empty() && packets == 0 {
            self.io.link.close();
            return None;
        }
        let peers = given_up.into_iter().map(|one| (self.name_of(one.peer, None), one)).collect();
        self.io.link.abandon();
        Some(GivenUp { endpoint: own_name(), waited, peers, packets })
    }

    /// Whether closing has begun.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }
}

impl Closing {
    fn is_look_due(&self, now: Clock) -> bool {
        self.looked_at.is_none_or(|looked_at| now.duration_since(looked_at) >= LOOK_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::Peer;

    #[test]
    fn the_line_names_messages_bytes_and_peers() {
        let undelivered =
            |messages, bytes| Undelivered { peer: Peer(0), messages, bytes, acknowledgements: 0 };
        let mut given_up = GivenUp {
            endpoint: "rank 3".into(),
            waited: Duration::from_secs(300),
            peers: vec![("rank 1".into(), undelivered(1, 8)), ("process 77".into(), undelivered(20, 40_960))],
            packets: 0,
        };
        given_up.peers[1].1.acknowledgements = 2;
        assert_eq!(
            given_up.to_string(),
            "rank 3 closes and gives up 21 messages (40 KiB) of completed sends, because no receiver took any for \
             300.0 s: 1 message (8 B) to rank 1, 20 messages (40 KiB) to process 77 and 2 acknowledgements; set \
             FI_WEIR_LINGER_S to wait longer"
        );
        given_up.peers = vec![("rank 1".into(), undelivered(1, 8)); 10];
        assert!(given_up.to_string().contains("rank 1 and to 2 more peers;"), "{given_up}");
        given_up.packets = 1;
        assert!(
            given_up
                .to_string()
                .contains("more peers, and 1 packet that their receivers have not acknowledged;"),
            "{given_up}"
        );
    }
}
