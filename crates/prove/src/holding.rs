//! Search of small worlds in which a receiver drops envelopes and asks the holders: no message is lost, doubled or
//! overtaken, and nothing hangs.
//!
//! Two senders and a receiver run fixed programs. In some worlds a sender is lost at any time, with what it holds. The search visits every order of their steps, of arrivals and of
//! copies, but only one of several orders that differ for no rank. A world with a program that ends has finitely many
//! states, so they need no canonical form: two states are equal if all their fields but counters are.

mod state;
mod world;

use std::collections::{BTreeSet, HashSet};

use weir_proto::HoldMutant;

use self::state::State;
pub use self::world::{Credits, Step, World, worlds};

/// What a search has found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// States visited.
    pub states: usize,
    /// The state limit ended the search.
    pub limited: bool,
    /// The first violation.
    pub violation: Option<String>,
    /// Most requests to holders in a state.
    pub requests: u64,
    /// All results of complete runs: the message of each receive.
    pub results: BTreeSet<Vec<Option<(u32, u32)>>>,
}

/// The orders of moves that a search visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orders {
    /// All orders.
    All,
    /// One of several orders that differ for no rank.
    Representative,
}

/// Visits every state of a world, at most `most_states`, with a wrong rule if one is given.
pub fn search(world: &World, mutant: Option<HoldMutant>, orders: Orders, most_states: usize) -> Found {
    let mut found = Found::default();
    let mut seen = HashSet::new();
    let mut open = vec![State::new(world, mutant)];
    while let Some(state) = open.pop() {
        if !seen.insert(state.hash()) {
            continue;
        }
        found.states += 1;
        found.requests = found.requests.max(state.requests);
        if found.states >= most_states {
            found.limited = true;
            return found;
        }
        let moves = state.moves(world, orders);
        if moves.is_empty() {
            if let Err(violation) = state.check_end(world) {
                found.violation = Some(violation);
                return found;
            }
            found.results.insert(state.result());
        }
        for chosen in moves {
            let mut after = state.clone();
            if let Err(violation) = after.apply(world, chosen) {
                found.violation = Some(violation);
                return found;
            }
            open.push(after);
        }
    }
    found
}

/// Searches all worlds and then shows that each wrong rule is detected. Prints a table. Returns whether all is well.
pub fn prove(most_states: usize) -> bool {
    println!("| holding: world | credits | envelopes | bytes | loss | states | result |");
    println!("|---|---|---|---|---|---|---|");
    let mut good = true;
    for world in worlds() {
        let Found { states, limited, violation, requests, .. } =
            search(&world, None, Orders::Representative, most_states);
        good &= violation.is_none() && (requests > 0 || world.envelopes > 0);
        let result = violation.unwrap_or(String::from(if limited { "ok, limited" } else { "ok" }));
        let World { name, envelopes, bytes, credits, loss, .. } = world;
        let loss = loss.map_or(String::from("-"), |fault| format!("{fault:?}"));
        println!("| {name} | {credits:?} | {envelopes} | {bytes} | {loss} | {states} | {result} |");
    }
    println!("\n| wrong rule of holding | detected in | as |\n|---|---|---|");
    for mutant in HoldMutant::ALL {
        let caught = worlds().into_iter().find_map(|world| {
            let violation = search(&world, Some(mutant), Orders::Representative, most_states).violation?;
            Some((world.name, violation))
        });
        good &= caught.is_some();
        let (name, violation) = caught.unwrap_or(("nowhere", String::new()));
        println!("| {mutant:?} | {name} | {} |", violation.chars().take(60).collect::<String>());
    }
    good
}
