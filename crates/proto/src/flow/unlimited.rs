//! No flow control, the sending side: the sender asks the link for free slots. The receiving side has no state.
//! Overheads are relative to this scheme. The hardware scheme counts its free buffers with this [`Sender`] too.
//!
//! On shared memory a lane is finite, so the sender may have to wait. In the simulator a lane is as large as needed,
//! and the first answer covers everything.

/// The sending side.
#[derive(Clone, Debug, Default)]
pub struct Sender {
    room_slots: u32,
}

impl Sender {
    /// Known free slots.
    #[inline]
    pub fn room(&self) -> u32 {
        self.room_slots
    }

    /// Fills `slots` of them.
    #[inline]
    pub fn spend(&mut self, slots: u32) {
        assert!(slots <= self.room_slots, "filling {slots} slots of {} known free ones", self.room_slots);
        self.room_slots -= slots;
    }

    /// Fills `slots` of them if so many are known. Returns whether it did.
    #[inline(always)]
    pub(super) fn try_spend(&mut self, slots: u32) -> bool {
        let Some(left) = self.room_slots.checked_sub(slots) else { return false };
        self.room_slots = left;
        true
    }

    /// The link has found `slots` more free slots.
    pub fn found_room(&mut self, slots: u32) {
        self.room_slots = self.room_slots.saturating_add(slots);
    }
}
