//! Multi-send: one message, a list of destinations, and credit at all of them before the first copy leaves. This file
//! decides when the copies of a multi-send may leave.
//!
//! A copy is a message of its path like others, with its own header: number, credits, request. It keeps its place in
//! the order of its path. At the head of the path it is *held* until the copies to all other destinations are at the
//! heads of theirs, with a credit each. Then all leave in one event, one after the other, so a link that can clone a
//! packet needs the payload once.
//! ```text
//! multi-send of 8 B to 1, 2     1 has a credit, 2 has none: both copies are held
//! message to 1                  waits behind the copy
//! credit of 2                   Eager to 1, Eager to 2; then the message to 1
//! ```
//! **No deadlock.** A multi-send waits for what is before its copies, and for credits. On all paths that two
//! multi-sends of an endpoint share, the older one is first, so the oldest waits for no other. A held copy keeps no
//! more than one credit of a path, and each attached sender has at least one that others cannot get. Only lanes are
//! shared. So a multi-send whose lane a receiver wants back is given up: its copies leave as they can, like the
//! messages of a loop of sends. The same holds if a destination closes. A destination that is lost is waited for no
//! more.
//!
//! This file does not know paths and credits. The endpoint does (`endpoint/transmit.rs`).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::event::Peer;

/// Bound: multi-sends of an endpoint that wait.
pub const MAX_MULTI_SENDS: usize = 1 << 6;

/// Bound: destinations of a multi-send.
pub const MAX_DESTINATIONS: usize = 1 << 8;

/// A copy that is held, or was until now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldCopy {
    /// The destination.
    pub to: Peer,
    /// Its number among the messages of the path.
    pub number: u32,
}

/// The multi-sends that wait. Most endpoints never have one.
#[derive(Clone, Debug, Default)]
pub struct MultiSends(Option<Box<Waiting>>);

#[derive(Clone, Debug, Default)]
struct Waiting {
    /// From the oldest. There is at least one.
    multi_sends: VecDeque<Vec<HeldCopy>>,
    /// A copy was at the head of its path since we last looked, or a destination is waited for no more.
    changed: bool,
}

impl MultiSends {
    /// Whether none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether as many wait as allowed.
    pub fn is_full(&self) -> bool {
        self.waiting().count() >= MAX_MULTI_SENDS
    }

    /// Holds the copies of a multi-send. A destination comes once.
    ///
    /// # Panics
    /// If there are too many multi-sends or destinations.
    pub fn hold(&mut self, copies: Vec<HeldCopy>) {
        assert!(!self.is_full() && copies.len() <= MAX_DESTINATIONS, "{} copies are held", copies.len());
        if copies.len() > 1 {
            self.0.get_or_insert_default().multi_sends.push_back(copies);
        }
    }

    /// The message `number` is at the head of the path to `to`, with a credit. Returns whether it is held.
    pub fn holds(&mut self, to: Peer, number: u32) -> bool {
        let Some(waiting) = &mut self.0 else { return false };
        let copy = HeldCopy { to, number };
        let is_held = waiting.multi_sends.iter().any(|copies| copies.contains(&copy));
        waiting.changed |= is_held;
        is_held
    }

    /// Whether [`MultiSends::take_ready`] might find one.
    #[inline]
    pub fn has_changed(&self) -> bool {
        self.0.as_deref().is_some_and(|waiting| waiting.changed)
    }

    /// The copies of the oldest multi-send of which all are ready. They are held no more, and leave now, in this order.
    /// `is_ready`: a copy is at the head of its path, with a credit.
    pub fn take_ready(&mut self, is_ready: impl Fn(HeldCopy) -> bool) -> Option<Vec<HeldCopy>> {
        let waiting = self.0.as_deref_mut()?;
        let all_ready = |copies: &Vec<HeldCopy>| copies.iter().all(|copy| is_ready(*copy));
        let ready = waiting.multi_sends.iter().position(all_ready);
        waiting.changed = ready.is_some();
        self.take(ready?)
    }

    /// The copies of the oldest multi-send with one to `to`. They are held no more, and leave as they can.
    pub fn take_with(&mut self, to: Peer) -> Option<Vec<HeldCopy>> {
        let with = self.waiting().position(|copies| copies.iter().any(|copy| copy.to == to));
        self.take(with?)
    }

    fn take(&mut self, index: usize) -> Option<Vec<HeldCopy>> {
        let taken = self.0.as_deref_mut()?.multi_sends.remove(index);
        self.end_if_none_waits();
        taken
    }

    /// No multi-send waits for `peer` any more: it is lost.
    pub fn forget(&mut self, peer: Peer) {
        let Some(Waiting { multi_sends, changed }) = self.0.as_deref_mut() else { return };
        for copies in multi_sends.iter_mut() {
            let before = copies.len();
            copies.retain(|copy| copy.to != peer);
            *changed |= copies.len() < before;
        }
        multi_sends.retain(|copies| !copies.is_empty());
        self.end_if_none_waits();
    }

    fn end_if_none_waits(&mut self) {
        self.0.take_if(|waiting| waiting.multi_sends.is_empty());
    }

    /// The held copies, by multi-send, from the oldest.
    pub fn waiting(&self) -> impl Iterator<Item = &[HeldCopy]> {
        self.0.iter().flat_map(|waiting| waiting.multi_sends.iter().map(Vec::as_slice))
    }
}

#[cfg(test)]
mod tests;
