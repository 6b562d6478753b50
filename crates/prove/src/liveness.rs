//! Liveness: checks that each sender can send again from every state, by a backward search over the explored graph.
//!
//! Each pair has two questions. *Can it ever send again?* Here all edges count. *Can it send again alone?* Here only
//! retrievals and other automatic moves ([`Move::is_automatic`]) and posts of the pair itself count. Programs rely on
//! the second: a sender must not need the next message of another program.
//!
//! Every sequence of retrievals ends, because each one removes a packet and no program adds one. If a send is reachable
//! by retrievals from a state and from all its successors, then every sequence of retrievals reaches it. So possible
//! everywhere means unavoidable. One assumption remains: a sender that asks for free slots or retries does not do so
//! for ever while its receiver retrieves nothing.
//!
//! States that were not expanded count as live. This file does not know moves in detail, only their labels.

use crate::explore::{Graph, UNEXPANDED};
use crate::model::{Effect, Move};

/// Maximum number of pairs: an edge label has three bits for the pair.
pub(crate) const MAX_PAIRS: usize = 8;

/// The label of an edge in 6 bits: three for its pair, whether the pair sent, and the kind of move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label(u32);

const ID_BITS: u32 = 26;
const SENT: u32 = 1 << 3;
const POSTED: u32 = 1 << 4;
const ENVIRONMENT: u32 = 2 << 4;

impl Label {
    pub fn new(step: Move, effect: Effect) -> Label {
        let kind = match step {
            step if step.is_automatic() => 0,
            Move::Post { pair, .. } | Move::Fetch { pair } => POSTED | pair as u32,
            _ => ENVIRONMENT,
        };
        let sent = effect.sent.map_or(0, |pair| SENT | pair as u32);
        Label(kind | sent)
    }

    /// The word of an edge to `target`.
    pub fn with_target(self, target: u32) -> u32 {
        target | self.0 << ID_BITS
    }

    /// The questions that an edge answers: bit `pair` for "ever", bit `8 + pair` for "alone".
    fn answers(self) -> u16 {
        if self.0 & SENT == 0 {
            return 0;
        }
        1 << (self.0 & 7) | (1 << (self.0 & 7 | 8)) & self.passes()
    }

    /// The questions for which the edge counts.
    fn passes(self) -> u16 {
        match self.0 & (POSTED | ENVIRONMENT) {
            0 => u16::MAX,
            POSTED => 0xff | 1 << (self.0 & 7 | 8),
            _ => 0xff,
        }
    }
}

/// A pair that cannot send again.
pub(crate) struct Starved {
    pub state: u32,
    pub pair: usize,
    /// It could if other programs posted more.
    pub alone: bool,
}

/// The first state from which some pair can never send again, ever or alone.
pub(crate) fn starved(graph: &Graph, pairs: usize) -> Option<Starved> {
    assert!(pairs <= MAX_PAIRS, "{pairs} pairs");
    let mut labels = [(0u16, 0u16); 64];
    for (bits, label) in labels.iter_mut().enumerate() {
        let kind = Label(bits as u32);
        *label = (kind.answers(), kind.passes());
    }
    let all = ((1u32 << pairs) - 1) as u16;
    let all = all | all << 8;
    let states = graph.edge_counts.len();
    let mut good: Vec<u16> =
        graph.edge_counts.iter().map(|&count| if count == UNEXPANDED { all } else { 0 }).collect();
    // Most edges lead to later states, so a pass from the last state to the first settles most of them.
    let mut changed = true;
    while changed {
        changed = false;
        let mut end = graph.edges.len();
        for state in (0..states).rev() {
            let count = graph.edge_counts[state];
            let begin = end - if count == UNEXPANDED { 0 } else { usize::from(count) };
            if good[state] != all {
                let mut mask = good[state];
                for edge in &graph.edges[begin..end] {
                    let (answers, passes) = labels[(edge >> ID_BITS) as usize];
                    mask |= answers | good[(edge & ((1 << ID_BITS) - 1)) as usize] & passes;
                }
                mask &= all;
                changed |= mask != good[state];
                good[state] = mask;
            }
            end = begin;
        }
    }
    let state = good.iter().position(|&mask| mask != all)?;
    let missing = all & !good[state];
    let ever = missing & 0xff;
    let pair = if ever != 0 { ever.trailing_zeros() } else { (missing >> 8).trailing_zeros() };
    Some(Starved { state: state as u32, pair: pair as usize, alone: ever == 0 })
}
