//! Search of small worlds of reliable paths: two endpoints on a network that loses, repeats and reorders datagrams. Timers
//! expire at any moment, and endpoints restart.
//!
//! The search runs [`weir_proto::reliability::ReliablePath`] itself, and visits every order of what can happen. The faults
//! and the expirations of a world are limited in number, so its states are finite. Each endpoint has a clock of its own,
//! which stands still except when a timer expires: a timer expires at its own time, however much the peer has done since. Two
//! states are equal if everything that decides about their future is (`reliability/canonical.rs`). Times count from the
//! clock of their endpoint.
//!
//! - **Safety**, after each move: the bundles of one life of an endpoint arrive at one life of the other, once and in order.
//!   What counts as acknowledged has arrived. A path ends only if its peer has restarted.
//! - **Liveness**, from each state: if the network loses nothing from now on, everything that was submitted arrives, and the
//!   world comes to rest.
//!
//! A damaged datagram is a lost one here: the link drops it. This file does not know what a move is.

mod end;
mod state;
mod world;

use std::collections::HashSet;

use weir_proto::reliability::Mutant;

use self::state::{Flaw, State};
pub use self::world::{World, full, quick, wrong_rules};

/// What must have happened in some state of a search, as most of one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Bundles that were sent again.
    pub sent_again: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Datagrams that had arrived before.
    pub repeated: u64,
    /// Bundles that waited for an earlier one.
    pub held: u64,
    /// Datagrams of other epochs.
    pub stale: u64,
    /// Paths that ended because their peer had restarted, in one world.
    pub ended: u64,
}

impl Evidence {
    fn raise(&mut self, other: Evidence) {
        let Evidence { sent_again, timeouts, repeated, held, stale, ended } = other;
        self.sent_again = self.sent_again.max(sent_again);
        self.timeouts = self.timeouts.max(timeouts);
        self.repeated = self.repeated.max(repeated);
        self.held = self.held.max(held);
        self.stale = self.stale.max(stale);
        self.ended = self.ended.max(ended);
    }

    /// Kinds that this world must show and has not.
    pub fn missing(&self, world: &World) -> Vec<&'static str> {
        let loses = world.losses > 0;
        let restarts = world.restarts != [0, 0];
        let wanted = [
            ("sent again", loses, self.sent_again),
            ("timeouts", loses && world.expirations[0] > 1, self.timeouts),
            ("repeated", world.repetitions > 0, self.repeated),
            ("held", world.bundles.iter().any(|&bundles| bundles > 1), self.held),
            ("stale", restarts, self.stale),
            ("ended", restarts, self.ended),
        ];
        wanted
            .into_iter()
            .filter(|(_, wanted, count)| *wanted && *count == 0)
            .map(|(name, ..)| name)
            .collect()
    }
}

/// What a search has found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// States visited.
    pub states: usize,
    /// Moves between them.
    pub moves: usize,
    /// The state limit ended the search.
    pub limited: bool,
    /// The first violation.
    pub flaw: Option<Flaw>,
    /// What has happened.
    pub evidence: Evidence,
}

/// Visits every state of a world, at most `most_states`, with a wrong rule if one is given.
pub fn search(world: &World, mutant: Option<Mutant>, most_states: usize) -> Found {
    let mut found = Found::default();
    let (mut seen, mut settled) = (HashSet::new(), HashSet::new());
    let mut open = vec![State::new(world, mutant)];
    seen.insert(open[0].hash());
    while let Some(state) = open.pop() {
        found.states += 1;
        found.evidence.raise(state.evidence());
        if found.states > most_states {
            found.limited = true;
            return found;
        }
        if let Err(flaw) = state.comes_to_rest(&mut settled) {
            found.flaw = Some(flaw);
            return found;
        }
        for chosen in state.moves() {
            found.moves += 1;
            let mut after = state.clone();
            if let Err(flaw) = after.apply(chosen) {
                found.flaw = Some(flaw);
                return found;
            }
            if seen.insert(after.hash()) {
                open.push(after);
            }
        }
    }
    found
}

/// The flaw that a wrong rule shows in a world, in words. A broken assertion of the machine counts.
pub fn flaw_of(world: &World, mutant: Mutant, most_states: usize) -> Option<String> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = std::panic::catch_unwind(|| search(world, Some(mutant), most_states).flaw);
    std::panic::set_hook(hook);
    match result {
        Ok(flaw) => flaw.map(|flaw| flaw.what),
        Err(_) => Some(String::from("an assertion of the machine")),
    }
}

/// Searches worlds and then shows that each wrong rule is detected. Prints a table. Returns whether all is well.
pub fn prove(worlds: &[World], most_states: usize) -> bool {
    println!(
        "\n| paths: world | states | moves | sent again, timeouts, repeated, held, stale, ended | result |"
    );
    println!("|---|---|---|---|---|");
    let mut good = true;
    for world in worlds {
        let Found { states, moves, limited, flaw, evidence } = search(world, None, most_states);
        let missing = evidence.missing(world);
        // A search that its limit ended may have seen less.
        good &= flaw.is_none() && (limited || missing.is_empty());
        let result = match flaw {
            Some(flaw) => flaw.to_string(),
            None if !limited && !missing.is_empty() => {
                format!("NO EVIDENCE, never seen: {}", missing.join(", "))
            }
            None if limited => String::from("ok, limited"),
            None => String::from("ok"),
        };
        let Evidence { sent_again, timeouts, repeated, held, stale, ended } = evidence;
        let seen = format!("{sent_again}, {timeouts}, {repeated}, {held}, {stale}, {ended}");
        println!("| {} | {states} | {moves} | {seen} | {result} |", world.name);
    }
    println!("\n| wrong rule of a path | detected in | as |\n|---|---|---|");
    for mutant in wrong_rules() {
        let caught =
            quick().into_iter().find_map(|world| Some((world.name, flaw_of(&world, mutant, most_states)?)));
        good &= caught.is_some();
        let (name, what) = caught.unwrap_or(("NOWHERE", String::new()));
        println!("| {mutant:?} | {name} | {what} |");
    }
    good
}
