//! Whether several peers flood this endpoint ([`Crowd`]): looks find datagrams of another peer than the look before, one
//! look after the other.
//!
//! ```text
//! looks      A  A  A  A      not crowded: one peer sends much
//! looks      A  B  -  A  -   not crowded: the endpoint finds nothing in between, so it keeps up
//! looks      A  B  A  C      crowded, until a look finds nothing, or CROWD_NS after the last change
//! ```

use weir_proto::Instant;

/// So long one peer alone may fill all looks. Unit: ns.
const CROWD_NS: u64 = 1_000_000;
/// Changes from one peer to another without an empty look that make a crowd.
const CHANGES: u32 = 2;

/// See the head of this file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Crowd {
    /// The path of the last datagram.
    last: Option<u32>,
    /// Changes since the last empty look.
    changes: u32,
    changed_at: Instant,
    /// See the head of this file.
    pub is_crowded: bool,
}

impl Crowd {
    /// A look has found datagrams of this path.
    #[inline]
    pub fn found(&mut self, path: u32, now: Instant) {
        let is_recent = now <= self.changed_at.plus_ns(CROWD_NS);
        if self.last.replace(path) != Some(path) {
            self.changes = if is_recent { self.changes.saturating_add(1) } else { 1 };
            self.changed_at = now;
        }
        self.is_crowded = self.changes >= CHANGES && (is_recent || self.changed_at == now);
    }

    /// A look has found nothing.
    #[inline]
    pub fn found_nothing(&mut self) {
        (self.changes, self.is_crowded) = (0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    #[test]
    fn peers_in_turn_without_an_empty_look_are_a_crowd() {
        let mut crowd = Crowd::default();
        for us in 0..1000 {
            crowd.found(7, Instant(us * US));
            assert!(!crowd.is_crowded, "one peer");
        }
        crowd.found(8, Instant(1000 * US));
        crowd.found(7, Instant(1001 * US));
        assert!(crowd.is_crowded);
        for us in 1002..2001 {
            crowd.found(7, Instant(us * US));
            assert!(crowd.is_crowded, "the other one may wait behind it");
        }
        crowd.found(7, Instant(2002 * US));
        assert!(!crowd.is_crowded, "the other one would have had its turn");
        crowd.found(8, Instant(2003 * US));
        assert!(!crowd.is_crowded, "the first change after that");
    }

    #[test]
    fn an_endpoint_that_keeps_up_is_not_crowded() {
        let mut crowd = Crowd::default();
        for us in 0..1000 {
            crowd.found((us % 3) as u32, Instant(us * US));
            assert!(!crowd.is_crowded);
            crowd.found_nothing();
        }
    }
}
