//! The sending side of a pair with dynamic credits: the credits of `static_credits::Sender`, of which a compulsory
//! return reclaims the excess. The receiving side is the pool ([`super::Pool`]).

use crate::flow::{SenderView, static_credits};

/// The sending side of one pair.
#[derive(Clone, Debug)]
pub struct Sender {
    pub(super) credits: static_credits::Sender,
}

impl Sender {
    pub(in crate::flow) fn new(most_slots: u32, start_slots: u32) -> Sender {
        Sender { credits: static_credits::Sender::starting_with(start_slots, most_slots) }
    }

    /// Slots that may be filled now.
    #[inline]
    pub fn credits(&self) -> u32 {
        self.credits.credits()
    }

    #[inline]
    pub(in crate::flow) fn spend(&mut self, slots: u32) {
        self.credits.spend(slots);
    }

    #[inline(always)]
    pub(in crate::flow) fn credits_mut(&mut self) -> &mut static_credits::Sender {
        &mut self.credits
    }

    pub(in crate::flow) fn view(&self) -> SenderView {
        SenderView { quota_slots: None, ..self.credits.view() }
    }

    /// Credits beyond the guaranteed ones, which a compulsory return does not reclaim.
    pub(in crate::flow) fn excess(&self, guaranteed: u32) -> u32 {
        self.credits().saturating_sub(guaranteed)
    }
}
