//! No flow control: the sender looks at the link whether there is room. The reference that overheads are
//! measured against. On shared memory a lane is finite, so the sender claims conditionally; in the simulator the
//! lane is as large as needed and the first look finds room for everything.

/// The sending side.
#[derive(Clone, Debug, Default)]
pub struct Sender {
    room_slots: u32,
}

impl Sender {
    /// Slots known to be free.
    #[inline]
    pub fn room(&self) -> u32 {
        self.room_slots
    }

    /// Fills `slots` of them.
    #[inline]
    pub fn spend(&mut self, slots: u32) {
        assert!(slots <= self.room_slots, "{slots} slots filled, {} known free", self.room_slots);
        self.room_slots -= slots;
    }

    /// Fills them if so many are known to be free.
    #[inline(always)]
    pub(super) fn try_spend(&mut self, slots: u32) -> bool {
        let Some(left) = self.room_slots.checked_sub(slots) else { return false };
        self.room_slots = left;
        true
    }

    /// The link found more.
    pub fn found_room(&mut self, slots: u32) {
        self.room_slots = self.room_slots.saturating_add(slots);
    }
}
