//! Random runs of larger worlds, by seed, for `make worlds`. They sample worlds that are too large for a search.
//!
//! A world has 3 to 8 processes. The seed determines its setup, for example the scheme, the quota, the pairs, and who
//! gets detach requests or fetches words. In every fourth world, drivers defer credits. A run has phases with different
//! active pairs and different rates of retrieval, so that activity changes.
//!
//! After each phase the programs stop and everything is retrieved. Then each pair in turn must be able to send while
//! all others are silent. This is the promise I4, checked in some states instead of all. The checks of [`crate::model`]
//! run after every move.

use std::num::NonZeroU32;

use fastrand::Rng;
use weir_proto::flow::static_connection::ecm_slots;
use weir_proto::{AttachPolicy, Config, DataRegion, Geometry, Growth, Scheme};

use crate::model::{Move, OffloadSetup, Rule, Setup, State, Violation, neighbours};

/// The setup of a seed.
pub fn setup(seed: u64) -> Setup {
    let rng = &mut Rng::with_seed(seed);
    let mut credit_slots = rng.u32(1..=3);
    let quota_slots = credit_slots + 1 + [0, 1, rng.u32(..6), rng.u32(..40)][rng.usize(..4)];
    let narrow = Geometry { max_packet_slots: rng.u32(1..=4), ..Geometry::SHARED_MEMORY };
    let geometry = [Geometry::EXTOLL, Geometry::SHARED_MEMORY, narrow][rng.usize(..3)];
    let scheme = scheme(rng);
    if let Scheme::StaticConnection { ecm_threshold } = scheme {
        credit_slots = ecm_slots(quota_slots, ecm_threshold);
    }
    let processes = rng.u32(3..=8);
    let mut pairs: Vec<(u32, u32)> = (0..processes)
        .flat_map(|from| (0..processes).filter(move |&to| to != from).map(move |to| (from, to)))
        .collect();
    rng.shuffle(&mut pairs);
    let senders = [3, 8, pairs.len()][rng.usize(..3)];
    pairs.truncate(rng.usize(2..=senders.min(pairs.len())));
    // All lanes in use, also those that return credits.
    let detaching = match rng.u8(..3) {
        0 => pairs.iter().flat_map(|&(from, to)| [(from, to), (to, from)]).collect(),
        _ => Vec::new(),
    };
    // After its first lease a sender uses rendezvous only until the receiver allows more, and exploration does not
    // model rendezvous: see tests/worlds.rs.
    let empty = !detaching.is_empty() && scheme.grants();
    let lengths = if empty { 1 } else { rng.usize(1..4) };
    let draw = |_| if empty { 0 } else { [0, rng.u64(..40), rng.u64(..600)][rng.usize(..3)] };
    let message_bytes = (0..lengths).map(draw).collect();
    let mut setup = Setup {
        name: format!("seed {seed:x}"),
        processes,
        neighbours: neighbours(processes, &pairs),
        pairs,
        config: Config {
            scheme,
            geometry,
            credit_slots,
            region: DataRegion {
                start_slots: credit_slots + rng.u32(..2),
                attach_policy: [AttachPolicy::Start, AttachPolicy::FirstContact][rng.usize(..2)],
                grace_points: rng.u8(..3),
                ..DataRegion::default()
            },
            eager_bytes: 1 << 20,
            cross_memory: false,
            remote_inline_bytes: 64,
            max_backlog: u32::MAX,
            max_unexpected: 16,
            unexpected_budget_bytes: 1 << 40,
            bounce_bytes: 0,
            envelope_budget_bytes: u64::MAX,
            planned_peers: processes,
            planned_quota_slots: 1 << 10,
        },
        quota_slots,
        extra_slots: 0,
        rule: Rule::Shipped,
        stealing: false,
        max_steals: None,
        cold: rng.u8(..3) == 0,
        detaching,
        max_detaches: None,
        overlap: rng.u8(..2),
        watch_activity: true,
        inner_checks: true,
        busy_links: false,
        deferring: seed % 4 == 1,
        may_crash: None,
        message_bytes,
        offload: OffloadSetup::default(),
    };
    if rng.bool() {
        setup.offload.max_fetches = rng.usize(1..=4);
        let turned = |&(from, to): &(u32, u32)| if rng.bool() { (from, to) } else { (to, from) };
        setup.offload.fetching = setup.pairs.iter().map(turned).collect();
        setup.offload.fetching.sort_unstable();
        setup.offload.fetching.dedup();
    }
    setup
}

fn scheme(rng: &mut Rng) -> Scheme {
    let ecm_threshold = NonZeroU32::new(rng.u32(..6));
    let growth = match NonZeroU32::new(rng.u32(..4)) {
        Some(slots) => Growth::Linear { slots },
        None => Growth::Exponential,
    };
    match rng.u8(..10) {
        0 => Scheme::Dynamic { piggyback: rng.bool() },
        1 | 2 => Scheme::Dynamic { piggyback: true },
        3 => Scheme::Unlimited,
        4 => Scheme::Hardware { rnr_timer_ns: 1, rnr_retries: [7, 7, 3][rng.usize(..3)] },
        5 => Scheme::StaticConnection { ecm_threshold },
        8 | 9 => Scheme::Demand,
        6 => Scheme::AdaptiveBacklog { growth, ecm_threshold },
        _ => Scheme::Static { piggyback: rng.bool() },
    }
}

/// Runs the world of `seed`. Returns the number of moves.
///
/// # Errors
/// The violated check. [`setup`] gives the world.
pub fn walk(seed: u64) -> Result<u64, Violation> {
    let setup = setup(seed);
    // Not the seed itself, because the setup has used that sequence.
    let mut walker = Walker { setup: &setup, rng: Rng::with_seed(!seed), moves: Vec::new(), made: 0 };
    walker.phases()?;
    Ok(walker.made)
}

struct Walker<'a> {
    setup: &'a Setup,
    rng: Rng,
    moves: Vec<Move>,
    made: u64,
}

impl Walker<'_> {
    fn phases(&mut self) -> Result<(), Violation> {
        let mut state = self.setup.initial();
        for _ in 0..self.rng.usize(1..6) {
            let pairs = self.setup.pairs.len() + self.setup.offload.fetching.len();
            let active: Vec<bool> = (0..pairs).map(|_| self.rng.u8(..3) > 0).collect();
            let posts_of_16 = self.rng.u8(1..=15);
            for _ in 0..self.rng.usize(1..150) {
                let post = self.rng.u8(..16) < posts_of_16;
                let leave = self.rng.u8(..32) == 0;
                let step = match post || leave {
                    false => self.choose_automatic(&state),
                    true => self.choose(&state, |step| match *step {
                        Move::Post { pair, .. } | Move::Fetch { pair } => post && active[pair],
                        Move::Detach { .. } => leave,
                        _ => false,
                    }),
                };
                if let Some(step) = step {
                    self.step(&mut state, step)?;
                }
            }
            self.drain(&mut state.clone())?;
        }
        Ok(())
    }

    /// Retrieves everything; then each pair sends alone, several times its quota.
    fn drain(&mut self, state: &mut State) -> Result<(), Violation> {
        self.retrieve_all(state)?;
        let messages = 2 * self.setup.quota_slots as usize + 2;
        for pair in 0..self.setup.pairs.len() {
            for _ in 0..messages {
                self.moves.clear();
                self.moves.extend(self.setup.posts(state, pair));
                let step = self.rng.choice(&self.moves).copied();
                self.step(state, step.expect("nothing of the pair waits"))?;
                if self.setup.waiting(state, pair) || self.rng.u8(..4) == 0 {
                    self.retrieve_all(state)?;
                }
            }
        }
        self.retrieve_all(state)
    }

    fn retrieve_all(&mut self, state: &mut State) -> Result<(), Violation> {
        while let Some(step) = self.choose_automatic(state) {
            self.step(state, step)?;
        }
        Ok(()) // the check after the last move ensures that no sender waits
    }

    fn choose_automatic(&mut self, state: &State) -> Option<Move> {
        self.setup.automatic_moves(state, &mut self.moves);
        self.rng.choice(&self.moves).copied()
    }

    fn choose(&mut self, state: &State, accept: impl Fn(&Move) -> bool) -> Option<Move> {
        self.setup.moves(state, &mut self.moves);
        self.moves.retain(accept);
        self.rng.choice(&self.moves).copied()
    }

    fn step(&mut self, state: &mut State, step: Move) -> Result<(), Violation> {
        self.made += 1;
        self.setup.advance(state, step).map(|_| ())
    }
}
