//! Reliability: one path between two endpoints over a link that loses, repeats and reorders datagrams
//! ([`ReliablePath`]). Every bundle is delivered once and in order, or the path ends ([`PathFault`]).
//!
//! A *bundle* is the packets of one datagram. It keeps its *position*, which orders it. Each transmission has a new
//! *number*, which says what has arrived and how long it took. An *epoch* is one life of this machine. The link owns
//! the machine and is its driver ([`DatagramDriver`]): it keeps the bytes, the clock and the timer. The machine does not
//! know packets, credits, keys or checksums.
//!
//! - `sequence` has the numbers, `datagram` the border, `sender` and `receiver` the windows.
//! - `grants` is what a receiver lets its peers have under way. `path_mtu` finds that large datagrams do not pass.
//! - `question` asks a silent peer and knows the limit. `report` has counts and the state, for reports.
//! - `round_trip` has the timeouts, and `congestion` what losses and marks do. `mutant` has wrong rules for tests, and
//!   `canonical` compares states for searches.
//! - `delay` says how long acknowledgements may wait.
//! - This file has epochs: how a path opens, and how it finds that its peer has restarted. It has the timer.
//!
//! ```text
//! A, epoch 7: submit(1000 B)    A->B  number 0, from 7 to ?, asks                  A does not know B's epoch
//! B, epoch 9: arrived           B->A  number 0, from 9 to 7, latest 0              B sends no bundle yet
//! A: arrived                    A->B  number 1, from 7 to 9, bundle 0              lost
//! A: expired, after 200 us      A->B  number 2, from 7 to 9, bundle 0, asks
//! B: arrived, deliver(0)
//! B: expired, after 50 us       B->A  number 1, from 9 to 7, acknowledged 1, latest 2
//! A: arrived, acknowledged(1)
//! ```
//! After the first round trip, a probe repeats the oldest bundle before its timeout.
//! Sources: RFC 9000 and 9002 (QUIC), RFC 8985, RFC 6298, RFC 8257. `docs/notes/2026-11-25-reliability.md` has the
//! reasons.

#[cfg(feature = "explore")]
mod canonical;
mod congestion;
mod datagram;
mod delay;
mod grants;
mod mutant;
mod path_mtu;
mod question;
mod receiver;
mod report;
mod round_trip;
mod sender;
mod sequence;

use core::num::NonZeroU16;

pub use datagram::{Datagram, DatagramDriver, Header, PathFault, ReliabilityConfig, Standing};
pub use grants::{Grants, LEAST_GRANT};
pub use mutant::Mutant;
pub use report::{PathCounters, PathView};

use crate::driver::LinkBusy;
use crate::time::Instant;
use delay::doubled_ns;
use mutant::Broken;
use question::{Gaps, Question};
use receiver::{Age, Place, Receiver};
use sender::Sender;
use sequence::expand;

/// The earlier of two times.
#[inline]
fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        _ => one.or(other),
    }
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct ReliablePath {
    config: ReliabilityConfig,
    epoch: NonZeroU16,
    /// The peer's epoch. `None`: not known, and no bundle leaves or is taken.
    peer: Option<NonZeroU16>,
    /// Numbers from here on left after the path has opened.
    opened_at: u64,
    question: Option<Question>,
    gaps: Gaps,
    sender: Sender,
    receiver: Receiver,
    /// The time of the timer. It may be earlier than necessary.
    timer: Option<Instant>,
    /// When the pace allows the next bundle.
    paced_until: Option<Instant>,
    /// The driver has refused a datagram.
    is_busy: bool,
    /// A bundle was refused.
    has_refused: bool,
    fault: Option<PathFault>,
    counters: PathCounters,
    broken: Broken,
}

impl ReliablePath {
    /// A path that nobody has used. `epoch` differs from those of earlier paths between the two endpoints.
    ///
    /// # Panics
    /// If the window is no power of two, or less than 64, or there are more than 7 doublings.
    pub fn new(config: ReliabilityConfig, epoch: NonZeroU16) -> ReliablePath {
        assert!(config.max_delay_doublings <= 7, "{} doublings", config.max_delay_doublings);
        let sender = Sender::new(&config);
        ReliablePath {
            config,
            epoch,
            peer: None,
            opened_at: sender.next_number(),
            question: None,
            gaps: Gaps::default(),
            sender,
            receiver: Receiver::new(&config),
            timer: None,
            paced_until: None,
            is_busy: false,
            has_refused: false,
            fault: None,
            counters: PathCounters::default(),
            broken: Broken::default(),
        }
    }

    /// Takes a bundle of `bytes`, and returns its position. The driver keeps its bytes until
    /// [`DatagramDriver::acknowledged`]. The driver is asked to transmit position `p` only during or after this call, so it
    /// must be able to find the bytes of the position [`ReliablePath::next_position`].
    ///
    /// # Errors
    /// [`LinkBusy`]: the window is full; [`DatagramDriver::ready`] follows. Or the path has ended.
    pub fn submit<D: DatagramDriver>(
        &mut self,
        now: Instant,
        bytes: u32,
        driver: &mut D,
    ) -> Result<u64, LinkBusy> {
        debug_assert!(bytes <= self.config.datagram_bytes, "a bundle of {bytes} bytes");
        if self.fault.is_some() {
            return Err(LinkBusy);
        }
        if !self.sender.has_room() {
            self.has_refused = true;
            return Err(LinkBusy);
        }
        let position = self.sender.push(bytes);
        // With others under way, the timer is set, and nothing that leaves now makes it earlier.
        let is_timed = self.timer.is_some()
            && self.peer.is_some()
            && self.sender.is_outstanding()
            && !self.sender.has_lost();
        if self.peer.is_none() {
            self.ask(now, driver);
        }
        self.send_waiting(now, driver);
        if !is_timed || self.paced_until.is_some() {
            self.update_timer(driver);
        }
        Ok(position)
    }

    /// Replaces a rule by a wrong one.
    #[cfg(any(test, feature = "mutants"))]
    pub fn mutate(&mut self, mutant: Mutant) {
        self.broken.mutant = Some(mutant);
    }

    /// Bundles that wait until the window and the pace let them leave.
    #[inline]
    pub fn waiting_bundles(&self) -> u64 {
        self.sender.waiting()
    }

    /// Whether the pace holds the next bundle back, and nothing else.
    #[inline]
    pub fn is_paced(&self) -> bool {
        self.paced_until.is_some()
    }

    /// The position of the next bundle.
    pub fn next_position(&self) -> u64 {
        self.sender.first() + self.sender.held()
    }

    /// A datagram has arrived.
    pub fn arrived<D: DatagramDriver>(&mut self, now: Instant, datagram: &Datagram, driver: &mut D) {
        let header = &datagram.header;
        let Some(from) = NonZeroU16::new(header.epoch) else {
            self.counters.malformed += 1;
            return;
        };
        if self.fault.is_some() {
            return;
        }
        if header.destination_epoch != self.epoch.get() && !self.broken.has(Mutant::EpochsAreNotCompared) {
            self.arrived_for_another_epoch(now, datagram, driver);
            return;
        }
        match self.peer {
            None => self.open(now, from),
            Some(peer) if peer == from || self.broken.has(Mutant::EpochsAreNotCompared) => {}
            Some(_) => {
                self.arrived_from_another_epoch(now, datagram, driver);
                return;
            }
        }
        self.take(now, datagram, driver);
        self.send_waiting(now, driver);
        self.update_timer(driver);
    }

    /// All datagrams that were waiting have been passed to [`ReliablePath::arrived`]. An acknowledgement leaves if the peer
    /// asks, or if something is missing. [`ReliablePath::bundles_read`] follows.
    pub fn batch_ended<D: DatagramDriver>(&mut self, now: Instant, driver: &mut D) {
        if self.fault.is_none() && self.receiver.is_urgent() {
            self.transmit(now, None, false, driver);
        }
    }

    /// Whether [`ReliablePath::bundles_read`] would send an acknowledgement.
    #[inline]
    pub fn owes_acknowledgement(&self, is_crowded: bool) -> bool {
        self.fault.is_none() && self.receiver.is_due(is_crowded)
    }

    /// What was delivered has been read, and answers to it have been submitted. They have taken the acknowledgement along.
    /// Otherwise that of many leaves now, and that of a few waits for something to ride on.
    pub fn bundles_read<D: DatagramDriver>(&mut self, now: Instant, driver: &mut D) {
        if self.owes_acknowledgement(driver.is_crowded()) {
            self.transmit(now, None, false, driver);
        }
    }

    /// The driver is going to sleep, so nothing will take an acknowledgement along soon. It leaves now, and the timer expires
    /// when it must.
    pub fn idle<D: DatagramDriver>(&mut self, now: Instant, driver: &mut D) {
        if self.fault.is_some() {
            return;
        }
        if self.receiver.due_at().is_some() {
            self.transmit(now, None, false, driver);
        }
        self.timer = None;
        self.update_timer(driver);
        if self.timer.is_none() {
            driver.cancel_timer();
        }
    }

    /// The timer has expired.
    pub fn expired<D: DatagramDriver>(&mut self, now: Instant, driver: &mut D) {
        let Some(timer) = self.timer.take() else { return };
        if self.fault.is_some() {
            return;
        }
        self.skip_gap(now.since_ns(timer));
        if let Some(fault) = self.fault_of_silence(now, driver) {
            self.lose(fault, driver);
            return;
        }
        if self.question.is_some_and(|question| question.next_at <= now) {
            self.ask_again(now, driver);
        }
        if self.sender.loss_at().is_some_and(|at| at <= now) {
            self.sender.detect_losses(now, driver, self.broken);
        }
        self.repeat_oldest(now, driver);
        self.send_waiting(now, driver);
        if self.receiver.is_overdue(now, driver.is_crowded()) {
            self.transmit(now, None, false, driver);
        }
        self.update_timer(driver);
    }

    /// The driver takes datagrams again, after it has refused one.
    pub fn writable<D: DatagramDriver>(&mut self, now: Instant, driver: &mut D) {
        self.is_busy = false;
        if self.fault.is_some() {
            return;
        }
        self.send_waiting(now, driver);
        if self.receiver.is_due(false) {
            self.transmit(now, None, false, driver);
        }
        self.update_timer(driver);
    }

    /// The peer has room for so many bundles under way. A retransmission after a timeout does not count.
    pub fn set_grant<D: DatagramDriver>(&mut self, now: Instant, bundles: u32, driver: &mut D) {
        self.sender.congestion.set_grant(bundles);
        if self.fault.is_none() {
            self.send_waiting(now, driver);
            self.update_timer(driver);
        }
    }

    /// The peer may have so many bundles under way to here. It needs an acknowledgement before it has used them up.
    pub fn granted(&mut self, bundles: u32) {
        self.receiver.granted(bundles);
    }

    /// Asks whether the peer lives, for an endpoint that depends on it. If it does not answer within the limit, it is lost.
    pub fn check<D: DatagramDriver>(&mut self, now: Instant, driver: &mut D) {
        if self.fault.is_none() {
            self.ask(now, driver);
            self.update_timer(driver);
        }
    }

    /// Somebody begins to wait for the acknowledgement of what is under way. If the peer may hold it back for longer than usual,
    /// the path asks.
    pub fn hurry<D: DatagramDriver>(&mut self, now: Instant, driver: &mut D) {
        if self.sender.some_delays_are_long() {
            self.sender.delay.shorten();
            self.check(now, driver);
        }
    }

    /// Whether the acknowledgement of something under way may wait for longer than usual.
    #[inline]
    pub fn allows_long_delays(&self) -> bool {
        self.sender.some_delays_are_long()
    }

    /// Whether nothing is under way whose acknowledgement should come soon. Then nothing makes the driver look soon.
    pub fn is_quiet(&self, now: Instant) -> bool {
        self.sender.is_quiet(now, &self.config)
    }

    /// Counts for reports.
    pub fn counters(&self) -> PathCounters {
        let sender = &self.sender.counts;
        PathCounters {
            sent_again: sender.sent_again,
            sent_needlessly: sender.needlessly,
            timeouts: sender.timeouts,
            marked: sender.marks,
            ..self.counters
        }
    }

    /// The state, for reports and tests.
    pub fn view(&self) -> PathView {
        PathView {
            is_open: self.peer.is_some(),
            fault: self.fault,
            first_unacknowledged: self.sender.first(),
            next_delivery: self.receiver.next(),
            unacknowledged_bundles: self.sender.held(),
            held_bundles: self.receiver.held(),
            window_bytes: self.sender.congestion.window_bytes(),
            in_flight_bytes: self.sender.congestion.in_flight_bytes(),
            grant_bundles: self.sender.congestion.grant_bundles(),
            round_trip_ns: self.sender.round_trip.smoothed_ns(),
            memory_bytes: self.sender.bytes() + self.config.window_bundles as usize / 8,
        }
    }

    /// The peer has named our epoch, so it lives and its epoch is current.
    fn open(&mut self, now: Instant, peer: NonZeroU16) {
        self.peer = Some(peer);
        self.opened_at = self.sender.next_number();
        // The first bundle may have waited for the limit already. The path is new, so it counts from now.
        if let Some(question) = &mut self.question {
            question.since = now;
        }
    }

    /// A datagram for an epoch of ours that is over, or from a peer that does not know ours. The answer names our epoch
    /// and the number that it answers. It changes nothing here: the datagram may be late, and its sender dead.
    fn arrived_for_another_epoch<D: DatagramDriver>(
        &mut self,
        now: Instant,
        datagram: &Datagram,
        driver: &mut D,
    ) {
        let header = &datagram.header;
        let is_question = header.destination_epoch == 0;
        if is_question && datagram.position.is_some() {
            self.counters.malformed += 1;
            return;
        }
        self.counters.stale += u64::from(!is_question);
        if self.is_busy || !(header.asks || datagram.position.is_some()) {
            return;
        }
        let answer = Header {
            destination_epoch: header.epoch,
            acknowledged: self.config.start,
            latest: header.number,
            arrived: 0,
            marks: 0,
            ..self.header(false)
        };
        self.transmit_header(now, &answer, None, driver);
    }

    /// The peer says that it has another epoch. It is believed if it acknowledges what has left since this path opened:
    /// its earlier epoch was alive then, so only a later one can. Otherwise the datagram may be a late one, and if it wants an
    /// answer, that is a question, which only a living peer answers. It acknowledges nothing.
    fn arrived_from_another_epoch<D: DatagramDriver>(
        &mut self,
        now: Instant,
        datagram: &Datagram,
        driver: &mut D,
    ) {
        let header = &datagram.header;
        let next_number = self.sender.next_number();
        let latest = expand(header.latest, next_number);
        if (self.opened_at..next_number).contains(&latest) || self.broken.has(Mutant::RestartNeedsNoProof) {
            self.lose(PathFault::Restarted, driver);
            return;
        }
        self.counters.stale += 1;
        let wants_answer = header.asks || datagram.position.is_some();
        if !self.is_busy && wants_answer && !self.broken.has(Mutant::LaterEpochsAreNotAsked) {
            let start = self.config.start;
            let question = Header {
                destination_epoch: header.epoch,
                acknowledged: start,
                latest: start.wrapping_sub(1),
                arrived: 0,
                marks: 0,
                ..self.header(true)
            };
            self.transmit_header(now, &question, None, driver);
        }
    }

    /// Handles a datagram of the peer's epoch, for ours.
    fn take<D: DatagramDriver>(&mut self, now: Instant, datagram: &Datagram, driver: &mut D) {
        let Datagram { header, position, marked } = datagram;
        let (number, age) = self.receiver.age_of(header.number);
        let place = position.map(|position| self.receiver.place_of(position, self.broken));
        let acknowledgement =
            self.sender.check(header.acknowledged, header.latest, header.arrived, header.marks);
        let Some(acknowledgement) = acknowledgement.filter(|_| !matches!(place, Some((_, Place::Outside))))
        else {
            self.counters.malformed += 1;
            return;
        };
        if age == Age::Repeated {
            self.counters.repeated += 1;
            return;
        }
        let has_gap = self.receiver.note_number(number, age, *marked);
        // The newest datagram knows at least as much as all before it.
        if age == Age::Newest {
            if self.question.is_some_and(|question| acknowledgement.latest >= question.first_number) {
                self.question = None;
            }
            let rides = position.is_some();
            if self.sender.acknowledge(now, &acknowledgement, rides, driver, &self.config, self.broken) {
                driver.acknowledged(self.sender.first());
                if self.has_refused {
                    self.has_refused = false;
                    driver.ready();
                }
            }
        }
        let mut wants_answer = header.asks || self.broken.has(Mutant::AcknowledgementsAreAcknowledged);
        let mut is_urgent = wants_answer;
        if let Some((position, place)) = place {
            self.counters.repeated += u64::from(place == Place::Repeated);
            // A replay must not make this end talk: an old number with a known bundle is not answered.
            if !(place == Place::Repeated && age == Age::Old) {
                wants_answer = true;
                is_urgent |= has_gap || place != Place::Next;
            }
            self.receiver.take(position, place, driver, self.broken);
        }
        let delay_ns = doubled_ns(&self.config, header.delay_doublings);
        if wants_answer && self.receiver.want_acknowledgement(now, is_urgent, delay_ns, driver, self.broken) {
            self.transmit(now, None, false, driver);
        }
    }

    fn lose<D: DatagramDriver>(&mut self, fault: PathFault, driver: &mut D) {
        self.fault = Some(fault);
        driver.lost(fault);
    }

    /// Sends what waits, as far as window, pace and driver allow.
    #[inline]
    fn send_waiting<D: DatagramDriver>(&mut self, now: Instant, driver: &mut D) {
        self.paced_until = None;
        if let Some(bytes) = self.sender.mtu.change(now) {
            driver.largest_datagram(bytes);
        }
        if self.peer.is_none() {
            return;
        }
        while !self.is_busy
            && let Some(position) = self.sender.next_to_send()
        {
            if let Err(at) = self.sender.may_send(now, position) {
                self.paced_until = at;
                return;
            }
            self.transmit(now, Some(position), false, driver);
        }
    }

    #[inline]
    fn header(&self, asks: bool) -> Header {
        let (destination_epoch, latest) = match self.peer {
            Some(peer) => (peer.get(), self.receiver.latest()),
            None => (0, 0),
        };
        Header {
            epoch: self.epoch.get(),
            destination_epoch,
            number: self.sender.next_number() as u32,
            acknowledged: self.receiver.acknowledged(self.broken) as u32,
            latest: latest as u32,
            arrived: self.receiver.arrived(),
            marks: self.receiver.marks(),
            asks,
            delay_doublings: 0,
        }
    }

    /// Sends a datagram with what this end has received. Returns whether it has left.
    #[inline]
    fn transmit<D: DatagramDriver>(
        &mut self,
        now: Instant,
        position: Option<u64>,
        asks: bool,
        driver: &mut D,
    ) -> bool {
        let mut header = self.header(asks);
        // The answer to a question may not cover it.
        let is_free = !asks && self.question.is_none();
        if let Some(position) = position.filter(|_| is_free && !driver.awaits_acknowledgement()) {
            header.delay_doublings = self.sender.delay_doublings(position);
        }
        let has_left = !self.is_busy && self.transmit_header(now, &header, position, driver);
        if has_left && self.peer.is_some() {
            self.receiver.acknowledgement_left();
        }
        has_left
    }

    #[inline]
    fn transmit_header<D: DatagramDriver>(
        &mut self,
        now: Instant,
        header: &Header,
        position: Option<u64>,
        driver: &mut D,
    ) -> bool {
        self.is_busy = driver.transmit(header, position).is_err();
        if !self.is_busy {
            self.sender.sent(now, position, header.asks, header.delay_doublings, self.broken);
            self.counters.datagrams += 1;
            self.counters.bare += u64::from(position.is_none());
        }
        !self.is_busy
    }

    /// Sets the timer if it must expire earlier than it does. So a path that makes progress sets it once in a timeout.
    #[inline]
    fn update_timer<D: DatagramDriver>(&mut self, driver: &mut D) {
        let (config, broken) = (&self.config, self.broken);
        let mut due = earlier(self.receiver.due_at().filter(|_| !self.is_busy), self.paced_until);
        due = earlier(due, self.question.map(|question| question.next_at));
        if self.sender.is_outstanding() {
            let sent_again =
                earlier(self.sender.timeout_at(config, broken), self.sender.probe_at(config, broken));
            due = earlier(due, earlier(self.sender.loss_at(), sent_again));
        }
        let Some(at) = due else { return };
        if self.timer.is_none_or(|timer| at < timer) && self.fault.is_none() {
            self.timer = Some(at);
            driver.set_timer(at);
        }
    }
}

#[cfg(test)]
mod tests;
