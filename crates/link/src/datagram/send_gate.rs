//! The gate of admission before a network ([`SendGate`]): whether a packet may begin bundles now. It applies the
//! machines of [`weir_proto::admission`] to one endpoint. Its unit is a bundle, which leaves as one datagram.
//!
//! ```text
//! transmit    the packet needs bundles: `passage`; it passes: `took`; else the link is busy for this peer
//! poll        a peer has acknowledged bundles: `gave_back`; `may_resume`: the peer is ready
//! ```
//! - **Rate**: a delay between two packets that begin bundles. Nothing else is counted.
//! - **Tokens**: each bundle that peers have not acknowledged holds a token of the node. The endpoint shows its tokens to the
//!   others in its line ([`TokenLines`]). Without a node segment it is alone.
//! - **Tokens by a table**: the same, but the number of tokens depends on the length of the message and on the active
//!   ranks ([`Policer`]). What the table does not limit passes at once, and its bundles hold no tokens.
//!
//! Frames of the link and credit packets do not ask, but their bundles hold tokens, unless there is a table. A peer
//! that acknowledges nothing for [`HOLD_NS`] holds no more tokens: it may compute, and what was sent to it has left the
//! adapter. So no endpoint waits for what another program does. This file does not know paths; its time is the same for
//! all endpoints of a host.

use super::policer::Policer;
use crate::shm::node_segment::NodeHandle;
use crate::shm::token_lines::TokenLines;
use weir_proto::Instant;
use weir_proto::admission::{
    Allowance, HOLD_NS, LineSettings, LineTicket, RateThrottle, Task, TaskLine, TokenStep, TokenTable,
    request_tokens,
};

/// The longest time between two looks at the lines of the others while the endpoint sends. Unit: ns.
const LOOK_NS: u64 = 50_000;
/// The same far below the limit while it has one bundle under way at a time: much shorter than a line counts. Unit: ns.
const SINGLE_LOOK_NS: u64 = HOLD_NS / 5;
/// The time between two looks of an endpoint that waits for tokens and sleeps. Unit: ns.
const WAIT_NS: u64 = 100_000;

/// How a gate holds packets back.
#[derive(Debug)]
enum Mechanism {
    /// All packets pass.
    Open,
    Rate {
        throttle: RateThrottle,
        delay_ns: u64,
    },
    Tokens {
        settings: LineSettings,
        lines: Option<TokenLines>,
        /// It sets the number of tokens for each packet.
        policer: Option<Policer>,
    },
}

/// How a packet passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    /// It has asked. Its bundles hold tokens.
    Admitted,
    /// It has asked. Its bundles hold no tokens, but the next one has to keep its distance.
    Paced,
    /// It does not ask. Its bundles hold tokens.
    Unasked,
    /// Nothing limits it. Its bundles hold no tokens.
    Free,
}

/// See the head of this file.
#[derive(Debug)]
pub struct SendGate {
    mechanism: Mechanism,
    /// Bundles that count. With a delay none does.
    held: u32,
    /// With tokens: what it may take before it looks at the lines again.
    allowance: Allowance,
    /// Until then its line, which shows one token, keeps it if it comes back. 0: it keeps none.
    keeps_until: Instant,
    /// When bundles that count began last.
    took_at: Instant,
    /// Since when a packet waits, if one does, and when it may pass, as far as is known.
    waits: Option<Waiting>,
    /// The path whose packet is the next, while one waits.
    turn: Option<u32>,
    /// Paths were searched last for peers that acknowledge nothing.
    searched_at: Instant,
    counters: GateCounters,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    since: Instant,
    until: Instant,
    bundles: u32,
    /// Length of its message. Unit: bytes.
    bytes: u32,
}

/// What a gate has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateCounters {
    /// Waits that have begun.
    pub waits: u64,
    /// Their time, when they have ended. Unit: ns.
    pub waited_ns: u64,
    /// The most bundles that peers had not acknowledged.
    pub most_held: u64,
    /// The step that was in force for the last packet that held tokens; without a table only its tokens are set.
    pub step: Option<TokenStep>,
}

impl SendGate {
    fn new(mechanism: Mechanism) -> SendGate {
        let (searched_at, counters) = (Instant(0), GateCounters::default());
        SendGate {
            mechanism,
            held: 0,
            allowance: Allowance::default(),
            keeps_until: Instant(0),
            took_at: Instant(0),
            waits: None,
            turn: None,
            searched_at,
            counters,
        }
    }

    /// A gate with a delay between two packets that begin bundles. Unit: ns.
    pub fn with_delay(delay_ns: u64) -> SendGate {
        SendGate::new(Mechanism::Rate { throttle: RateThrottle::default(), delay_ns })
    }

    /// A gate with `tokens` tokens, at least 1, for all endpoints of the node of `node`. Without a node, or if it has no memory
    /// for a line, the endpoint has as many for itself.
    pub fn with_tokens(tokens: u32, node: Option<&NodeHandle>) -> SendGate {
        SendGate::tokens(tokens.max(1), node, None)
    }

    /// A gate with the tokens that `table` has for the length of each message and the active endpoints of the node.
    /// `None`: the table limits nothing.
    pub fn with_table(table: TokenTable, node: Option<&NodeHandle>) -> Option<SendGate> {
        Policer::new(table).map(|policer| SendGate::tokens(1, node, Some(policer)))
    }

    fn tokens(tokens: u32, node: Option<&NodeHandle>, policer: Option<Policer>) -> SendGate {
        let lines = node.and_then(|node| TokenLines::open(node).ok().flatten());
        let settings = LineSettings { tokens, look_ns: LOOK_NS, single_look_ns: SINGLE_LOOK_NS };
        SendGate::new(Mechanism::Tokens { settings, lines, policer })
    }

    /// How a packet passes that does not ask.
    pub(super) fn unasked(&self) -> Passage {
        match &self.mechanism {
            Mechanism::Rate { .. } | Mechanism::Tokens { policer: Some(_), .. } => Passage::Free,
            Mechanism::Open | Mechanism::Tokens { policer: None, .. } => Passage::Unasked,
        }
    }

    /// How a packet passes at `now` that begins `bundles` bundles, as far as that needs no look at the lines: most packets
    /// pass here. Its message has `bytes()` bytes. `None`: [`SendGate::passage`] says it.
    #[inline]
    pub(super) fn passage_at_once(
        &self,
        now: Instant,
        bundles: u32,
        bytes: impl FnOnce() -> u32,
    ) -> Option<Passage> {
        match &self.mechanism {
            // It has no effect on such a message, whatever the other endpoints do.
            Mechanism::Tokens { policer: Some(policer), .. } => {
                policer.ignores(bytes()).then_some(Passage::Free)
            }
            _ if self.waits.is_some() => None,
            Mechanism::Tokens { settings, policer: None, .. } => self
                .allowance
                .covers(now, self.held, bundles.min(settings.tokens))
                .then_some(Passage::Admitted),
            Mechanism::Rate { throttle, delay_ns } => {
                throttle.allows(now, *delay_ns).then_some(Passage::Paced)
            }
            Mechanism::Open => Some(Passage::Admitted),
        }
    }

    /// How a packet of `path` passes at `now` that begins `bundles` bundles, and whose message has `bytes` bytes.
    /// `None`: it waits, and the caller asks again. While a packet waits, only the path with the turn may pass, so that
    /// small packets do not overtake a large one, unless nothing limits them.
    pub(super) fn passage(&mut self, now: Instant, path: u32, bundles: u32, bytes: u32) -> Option<Passage> {
        if !self.limits(now, bytes) {
            if self.has_turn(path) {
                self.end_wait(now);
            }
            return Some(Passage::Free);
        }
        let passes = (self.waits.is_none() || self.has_turn(path)) && self.is_open(now, bundles, bytes);
        let is_paced = matches!(self.mechanism, Mechanism::Rate { .. });
        passes.then_some(if is_paced { Passage::Paced } else { Passage::Admitted })
    }

    /// Whether it limits a message of `bytes` bytes at `now`. If so, the number of tokens is set.
    fn limits(&mut self, now: Instant, bytes: u32) -> bool {
        let Mechanism::Tokens { settings, lines, policer: Some(policer) } = &mut self.mechanism else {
            return true;
        };
        let Some(step) = policer.step(now, bytes, (self.held, &mut self.keeps_until), lines.as_ref()) else {
            return false;
        };
        self.counters.step = Some(step);
        if settings.tokens != step.tokens {
            settings.tokens = step.tokens;
            self.allowance = Allowance::default(); // it was a share of another number
            self.end_keeping(now);
        }
        true
    }

    fn is_open(&mut self, now: Instant, bundles: u32, bytes: u32) -> bool {
        let waits_until = match &mut self.mechanism {
            Mechanism::Open => None,
            Mechanism::Rate { throttle, delay_ns } => {
                let mut probe = *throttle; // `took` says what has left
                probe.inject(now, *delay_ns).err()
            }
            Mechanism::Tokens { settings, lines, .. } => {
                let tokens = bundles.min(settings.tokens);
                if self.waits.is_none() && self.allowance.covers(now, self.held, tokens) {
                    return true;
                }
                let ticket = self.waits.map(|waiting| LineTicket { since: waiting.since, looked: now });
                let own = TaskLine { held: self.held, changed: now, ticket };
                let task = lines.as_ref().map_or(Task(0), TokenLines::task);
                let others = lines.iter().flat_map(TokenLines::others);
                self.allowance =
                    request_tokens(settings, now, (task, &own), others, tokens).unwrap_or_default();
                if self.allowance == Allowance::default() {
                    Some(now.plus_ns(WAIT_NS))
                } else {
                    self.keeps_until = Instant(0); // so that the others see at times that it goes on
                    None
                }
            }
        };
        if let Some(until) = waits_until {
            self.wait(now, until, bundles, bytes);
        }
        waits_until.is_none()
    }

    fn wait(&mut self, now: Instant, until: Instant, bundles: u32, bytes: u32) {
        self.counters.waits += u64::from(self.waits.is_none());
        let since = self.waits.map_or(TokenLines::shown_time(now), |waiting| waiting.since);
        self.waits = Some(Waiting { since, until, bundles, bytes });
        self.end_keeping(now);
        self.show_ticket(Some(LineTicket { since, looked: now }));
    }

    /// Whether a packet waits.
    pub(super) fn has_waiting(&self) -> bool {
        self.waits.is_some()
    }

    /// Whether the packet that waits may pass at `now`, if one does.
    pub(super) fn may_resume(&mut self, now: Instant) -> bool {
        let Some(Waiting { bundles, bytes, .. }) = self.waits else { return true };
        !self.limits(now, bytes) || self.is_open(now, bundles, bytes)
    }

    /// The next packet is one of `path`.
    pub(super) fn give_turn(&mut self, path: u32) {
        self.turn = Some(path);
    }

    /// Whether the next packet is one of `path`.
    pub(super) fn has_turn(&self, path: u32) -> bool {
        self.turn == Some(path)
    }

    /// No packet waits any more: it has passed, or there is nobody to send it to.
    #[inline]
    pub(super) fn end_wait(&mut self, now: Instant) {
        self.turn = None;
        if self.waits.is_some() {
            self.note_end_of_wait(now);
        }
    }

    #[cold]
    fn note_end_of_wait(&mut self, now: Instant) {
        if let Some(waiting) = self.waits.take() {
            self.counters.waited_ns += now.since_ns(waiting.since);
            self.show_ticket(None);
        }
    }

    /// The time until the caller must ask again, if a packet waits. Unit: ns.
    pub(super) fn wait_ns(&self, now: Instant) -> Option<u64> {
        self.waits.map(|waiting| waiting.until.since_ns(now))
    }

    /// Bundles of a packet have begun that hold no tokens ([`Passage::Paced`]).
    #[inline]
    pub(super) fn paced(&mut self, now: Instant) {
        if let Mechanism::Rate { throttle, .. } = &mut self.mechanism {
            throttle.injected(now);
        }
        self.end_wait(now);
    }

    /// So many bundles have begun, at least one. `asked`: those of a packet that has asked.
    #[inline]
    pub(super) fn took(&mut self, now: Instant, bundles: u32, asked: bool) {
        self.held += bundles;
        self.took_at = now;
        self.counters.most_held = self.counters.most_held.max(self.held.into());
        self.allowance.took(bundles);
        self.show_held(now);
        if asked {
            self.end_wait(now);
        }
    }

    /// So many bundles count no more.
    #[inline]
    pub(super) fn gave_back(&mut self, now: Instant, bundles: u32) {
        debug_assert!(bundles <= self.held, "{bundles} of {}", self.held);
        self.held = self.held.saturating_sub(bundles);
        self.show_held(now);
    }

    /// When bundles began last, of any path.
    pub(super) fn took_at(&self) -> Instant {
        self.took_at
    }

    /// Whether it is time to search for peers that acknowledge nothing: a packet waits for tokens.
    pub(super) fn must_search(&mut self, now: Instant) -> bool {
        let waits = self.waits.is_some() && self.held > 0;
        let must = waits && now.since_ns(self.searched_at) >= HOLD_NS / 4;
        if must {
            self.searched_at = now;
        }
        must
    }

    /// From now on all packets pass, and the endpoint shows nothing.
    pub(super) fn open(&mut self, now: Instant) {
        self.end_wait(now);
        self.lines().into_iter().for_each(TokenLines::clear);
        self.mechanism = Mechanism::Open;
    }

    /// Bundles that count: those that peers have not acknowledged.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// What it has done.
    pub fn counters(&self) -> GateCounters {
        match &self.mechanism {
            Mechanism::Tokens { settings, policer: None, .. } if self.counters.most_held > 0 => {
                let step = Some(TokenStep { bytes: 0, tasks: 0, tokens: settings.tokens });
                GateCounters { step, ..self.counters }
            }
            _ => self.counters,
        }
    }

    fn lines(&self) -> Option<&TokenLines> {
        match &self.mechanism {
            Mechanism::Tokens { lines, .. } => lines.as_ref(),
            _ => None,
        }
    }

    /// Shows what it holds. Far below the limit its line keeps a single token that has come back, for the next bundle: at most
    /// as long as a line counts.
    #[inline]
    fn show_held(&mut self, now: Instant) {
        if self.held <= 1 && now < self.keeps_until {
            return;
        }
        if let Some(lines) = self.lines() {
            lines.show_held(self.held, now);
            self.keeps_until = if self.held == 1 { self.allowance.single_until() } else { Instant(0) };
        }
    }

    /// Nobody waits for a token that it only keeps.
    fn end_keeping(&mut self, now: Instant) {
        if std::mem::replace(&mut self.keeps_until, Instant(0)) > Instant(0) {
            self.show_held(now);
        }
    }

    fn show_ticket(&self, ticket: Option<LineTicket>) {
        self.lines().into_iter().for_each(|lines| lines.show_ticket(ticket));
    }
}
