//! Diagnostics of an endpoint: its counter page, its trace, and lines in the log when a send waits for long or messages
//! are lost.
//!
//! The engine writes them where it reads the clock anyway: the page at most every 200 ms, the trace when a sample is
//! due. An endpoint that sleeps inside the library wakes at least every 100 ms for that. While the program is outside
//! the library nothing is written. Readers notice that by the age of the page.

use std::time::Instant as Clock;

use weir_link::Link;
use weir_proto::{Instant, PairView, Peer, PeerFault};

use crate::Engine;
use crate::loans::{Lending, Loan};
use crate::process_rank;
use crate::stalls::{self, Awaited, HeldCredits, MAX_REPORTED_STALLS, Stall};
use crate::stats::{self, EndpointReport, State};
use crate::trace::{Gauges, PairSample, Sample};

impl<L: Link> Engine<L> {
    /// Reports stalls through `warn`, one line each.
    pub fn on_stall(&mut self, warn: fn(&str)) {
        self.warn = Some(warn);
    }

    /// Stores the counters in the page, where they remain also after a crash.
    pub(crate) fn write_counters(&mut self) {
        if self.stats.is_none() {
            return;
        }
        let state = self.measure();
        if let Some(stats) = &self.stats {
            stats.update(self.machine.counters(), &state);
        }
    }

    /// The endpoint's memory and stalls, with the peak of its mailbox. Reads the entry of every peer.
    pub fn measure(&mut self) -> State {
        let state = self.state();
        self.peak_mailbox_bytes = state.peak_mailbox_bytes;
        state
    }

    /// The content of the page besides the counters. Reads the entry of every peer.
    pub(crate) fn state(&self) -> State {
        let now = self.io.clock();
        let (unexpected_messages, unexpected_bytes) = self.machine.unexpected();
        let mut stalls: Vec<Stall> =
            self.machine.pairs(now).filter_map(|pair| self.stall(&pair, now)).collect();
        stalls.sort_by_key(|stall| stall.since_ns);
        let mut held_credits: Vec<HeldCredits> =
            self.machine.pairs(now).filter_map(|pair| self.held_credits_of(&pair)).collect();
        held_credits.sort_by_key(|held_credits| std::cmp::Reverse(held_credits.retrieved));
        held_credits.truncate(stats::MAX_HELD_CREDITS);
        let mut loans = self.loans(now);
        loans.sort_by_key(Loan::rank);
        loans.truncate(stats::MAX_LOANS);
        let mailbox_bytes = self.io.link.mailbox_bytes();
        State {
            mailbox_bytes,
            peak_mailbox_bytes: self.peak_mailbox_bytes.max(mailbox_bytes),
            peers: self.io.peers.len() as u64,
            backlog: u64::from(self.machine.backlogged()),
            unexpected_messages: u64::from(unexpected_messages),
            unexpected_bytes,
            peer_state_bytes: self.machine.peer_state_bytes(),
            ranks: self.node.ranks,
            operations: self.operation_times().in_ns(),
            stalls,
            held_credits,
            lending: self.lending(),
            loans,
            network: self.io.link.network_report(),
        }
    }

    /// What this endpoint lends, with credits on demand.
    fn lending(&self) -> Option<Lending> {
        let pool = self.machine.demand_pool()?;
        let tally = pool.tally();
        Some(Lending {
            region_slots: pool.region_slots().into(),
            free_slots: pool.free_slots().into(),
            reserve_slots: pool.reserve_slots().into(),
            waiting_senders: pool.queued().into(),
            lent_slots: tally.lent_slots,
            prefetched_slots: tally.prefetched_slots,
            demands_queued: tally.queued,
            queue_turns: tally.rotations,
        })
    }

    /// What each sender has and wants, with credits on demand.
    fn loans(&self, now: Instant) -> Vec<Loan> {
        let loan_of = |pair: PairView| {
            let receiving = pair.receiving?;
            let loan = receiving.loan?;
            Some(Loan {
                from: self.identity(pair.peer),
                demand: loan.demand.into(),
                held: receiving.current.unwrap_or(0).into(),
                idle: loan.idle.into(),
                window: loan.window.into(),
                granted_total: receiving.granted_total.unwrap_or(0).into(),
                ahead: loan.ahead.map(u64::from),
            })
        };
        self.machine.pairs(now).filter_map(loan_of).collect()
    }

    fn identity(&self, peer: Peer) -> u64 {
        self.address_of(peer).identity()
    }

    fn stall(&self, pair: &PairView, now: Instant) -> Option<Stall> {
        let (since, awaits) = stalled(pair)?;
        let sending = pair.sending.unwrap_or_default();
        let wide = |number: Option<u32>| number.map(u64::from);
        Some(Stall {
            to: self.identity(pair.peer),
            since_ns: stats::now_ns().saturating_sub(now.since_ns(since)),
            credits: u64::from(sending.credits),
            quota_slots: wide(sending.quota_slots),
            granted_total: wide(sending.granted_total),
            spent_total: wide(sending.spent_total),
            backlog: u64::from(pair.backlog),
            backlog_bytes: self.machine.backlog_bytes(pair.peer),
            awaits,
        })
    }

    fn held_credits_of(&self, pair: &PairView) -> Option<HeldCredits> {
        let receiving = pair.receiving?;
        Some(HeldCredits {
            from: self.identity(pair.peer),
            retrieved: u64::from(receiving.retrieved?),
            threshold: receiving.threshold.map(u64::from),
            granted_total: u64::from(receiving.granted_total?),
            quota_slots: receiving.quota_slots.map(u64::from),
        })
    }

    /// Adds a sample to the trace, if there is one. A trace that cannot be written ends.
    #[cold]
    pub(crate) fn sample(&mut self, now: Clock) {
        let Some(mut recorder) = self.trace.take() else { return };
        let sample = self.sampled(recorder.process_bytes(now));
        if recorder.record(now, sample, |number| self.identity(Peer(number))).is_ok() {
            self.trace = Some(recorder);
        }
    }

    fn sampled(&self, process_bytes: u64) -> Sample {
        let now = self.io.clock();
        let (unexpected_messages, unexpected_bytes) = self.machine.unexpected();
        let gauges = Gauges {
            mailbox_bytes: self.io.link.mailbox_bytes(),
            peer_state_bytes: self.machine.peer_state_bytes(),
            unexpected_messages: u64::from(unexpected_messages),
            unexpected_bytes,
            backlog: u64::from(self.machine.backlogged()),
            process_bytes,
            free_slots: self.lending().map_or(0, |lending| lending.free_slots),
            waiting_senders: self.lending().map_or(0, |lending| lending.waiting_senders),
        };
        let mut counters = *self.machine.counters();
        let mut pairs = std::collections::BTreeMap::new();
        for pair in self.machine.pairs(now) {
            counters.stalled_ns += pair.stalled_since.map_or(0, |since| now.since_ns(since));
            let (sending, receiving) = (pair.sending, pair.receiving.unwrap_or_default());
            let path = self.io.link.path_report(pair.peer).unwrap_or_default();
            let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
            let sample = PairSample {
                credits: sending.map(|sending| sending.credits),
                granted_total: sending.and_then(|sending| sending.granted_total),
                spent_total: sending.and_then(|sending| sending.spent_total),
                current: receiving.current,
                quota_slots: receiving.quota_slots,
                retrieved: receiving.retrieved,
                demand: receiving.loan.map(|loan| loan.demand),
                idle: receiving.loan.map(|loan| loan.idle),
                backlog: pair.backlog,
                stalled_ns: pair.stalled_ns,
                round_trip_us: narrow(path.round_trip_ns.div_ceil(1000)),
                sent_again: narrow(path.sent_again),
            };
            pairs.insert(pair.peer.0, sample);
        }
        Sample { at_ns: 0, gauges, counters, pairs }
    }

    /// Reports sends that wait for long.
    pub(crate) fn watch_stalls(&mut self) {
        let now = self.io.clock();
        let Some(warn) = self.warn else { return };
        let mut waits = Vec::new();
        if self.machine.backlogged() > 0 {
            waits.extend(self.machine.pairs(now).filter_map(|pair| Some((pair.peer, stalled(&pair)?.0))));
        }
        let reported = self.stall_watch.stalls_to_report(now, &waits);
        if reported.is_empty() {
            return;
        }
        let pages = self.pages();
        for &peer in reported.iter().take(MAX_REPORTED_STALLS) {
            let Some(pair) = self.machine.pairs(now).find(|pair| pair.peer == peer) else { continue };
            let Some(stall) = self.stall(&pair, now) else { continue };
            let page = pages.iter().find(|page| page.identity == stall.to);
            let own = self.io.link.address().identity();
            let (sender, receiver) = (own_name(), self.name_of(peer, page));
            warn(&stalls::stall_line(&sender, own, &receiver, &stall, page, stats::now_ns()));
        }
        if reported.len() > MAX_REPORTED_STALLS {
            warn(&format!(
                "{} also waits for {} more peers",
                own_name(),
                reported.len() - MAX_REPORTED_STALLS
            ));
        }
    }

    /// The pages of all endpoints of this job; empty if they write none.
    pub(crate) fn pages(&self) -> Vec<EndpointReport> {
        let read = self.stats.as_ref().and_then(|stats| stats::read_dir(stats.path().parent()?).ok());
        read.unwrap_or_default().endpoints
    }

    /// Reports messages that a loss has destroyed although their sends are complete. Nothing else shows it.
    #[cold]
    pub(crate) fn report_lost_messages(&mut self) {
        let lost = std::mem::take(&mut self.io.lost_messages);
        let Some(warn) = self.warn else { return };
        for (peer, process, count, fault) in lost {
            let receiver = match process.and_then(process_rank::rank_of_process) {
                Some(rank) => format!("rank {rank}"),
                None => {
                    process.map_or_else(|| self.name_of(peer, None), |process| format!("process {process}"))
                }
            };
            let messages = if count == 1 { "message" } else { "messages" };
            let why = match fault {
                PeerFault::Died => "it has died",
                PeerFault::Unreachable => "it cannot be reached",
                PeerFault::Malformed => "it sent a malformed packet",
                PeerFault::Closed => "it has closed",
                PeerFault::NotReady => "it was not ready for as long as FI_WEIR_RNR_RETRIES allows",
            };
            warn(&format!(
                "{} has lost {count} {messages} to {receiver} whose sends are complete: {why}",
                own_name()
            ));
        }
    }

    /// A name for the log: `rank 3`, or the process, or the endpoint with its socket.
    pub(crate) fn name_of(&self, peer: Peer, page: Option<&EndpointReport>) -> String {
        let process = self.io.link.process(peer);
        let rank = match page {
            Some(page) => page.rank,
            None => process.and_then(process_rank::rank_of_process),
        };
        match (rank, process) {
            (Some(rank), _) => format!("rank {rank}"),
            (None, Some(process)) => format!("process {process}"),
            (None, None) => match self.address_of(peer).place() {
                Some(place) => format!("endpoint {:016x} at {place}", self.identity(peer)),
                None => format!("endpoint {:016x}", self.identity(peer)),
            },
        }
    }
}

/// Since when the head of the backlog waits, and for what. `None`: it does not.
fn stalled(pair: &PairView) -> Option<(Instant, Awaited)> {
    let at_link = || Some((pair.link_busy_since?, Awaited::Link));
    pair.stalled_since.map(|since| (since, Awaited::Credit)).or_else(at_link)
}

pub(crate) fn own_name() -> String {
    let (rank, pid, _) = stats::rank_pid_time();
    rank.map_or_else(|| format!("process {pid}"), |rank| format!("rank {rank}"))
}
