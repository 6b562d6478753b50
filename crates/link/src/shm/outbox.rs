//! A sender's side of one mailbox: its lane and the doorbell.
//!
//! It does not know credits. A message of one slot writes 60 bytes and one word to the lane. It loads the lane's
//! `polled` and the mailbox's `asleep`, which are shared, rarely written and so cached here. While the reader polls the
//! lane and is awake, a message costs no locked instruction, no system call and no allocation.
//!
//! A sender may be stopped or killed after each step of `SendStep`. Tests stop it after every one.

use super::doorbell::{Doorbell, WokenEpisode};
use super::ring::{LaneMemory, Writer};
use super::sync::{Ordering, light_fence};
use crate::memory::UserMemory;
use core::ops::Deref;
use weir_proto::Packet;

/// Sends to one mailbox.
#[derive(Debug)]
pub struct Outbox<L, B> {
    writer: Writer<L>,
    doorbell: B,
    woken: WokenEpisode,
    lane: u32,
    full_fences: bool,
}

impl<L: LaneMemory, B: Deref<Target = Doorbell>> Outbox<L, B> {
    /// An outbox for lane number `lane` with its `memory`. `full_fences`: one of the two sides cannot use
    /// `membarrier`.
    pub fn new(lane: u32, memory: L, doorbell: B, full_fences: bool) -> Outbox<L, B> {
        Outbox { writer: Writer::new(memory), doorbell, woken: WokenEpisode::default(), lane, full_fences }
    }

    /// Sends `packet`. The caller owns the slots.
    #[inline(always)]
    pub fn send(&mut self, packet: &Packet, payload: Option<(&UserMemory, u64)>) {
        let slots = self.writer.fill(packet, payload);
        self.writer.publish(slots);
        self.ring();
    }

    /// Announces a change in the lane if the reader does not poll it, and wakes the reader if it sleeps.
    #[inline(always)]
    pub fn ring(&mut self) {
        light_fence(self.full_fences);
        if self.writer.lane().control().polled.0.load(Ordering::Relaxed) == 0 {
            self.announce();
        }
        self.doorbell.wake(&mut self.woken);
    }

    #[cold]
    fn announce(&mut self) {
        self.doorbell.announce_lane(self.lane);
        self.doorbell.announce_summary(self.lane);
        light_fence(self.full_fences); // between the summary and `asleep`
    }

    /// The lane's memory.
    pub fn lane(&self) -> &L {
        self.writer.lane()
    }

    /// Slots that have become free since the last call.
    pub fn newly_free_slots(&mut self) -> u32 {
        self.writer.newly_free_slots()
    }
}

/// The steps of sending, in order.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SendStep {
    Body,
    Head,
    Publish,
    /// Changes something only after an early wrap: from this step on the reader can see the packet.
    PublishEarlyWrap,
    AnnounceLane,
    AnnounceSummary,
    MarkWoken,
    Call,
}

#[cfg(test)]
impl SendStep {
    pub const ALL: [SendStep; 8] = [
        SendStep::Body,
        SendStep::Head,
        SendStep::Publish,
        SendStep::PublishEarlyWrap,
        SendStep::AnnounceLane,
        SendStep::AnnounceSummary,
        SendStep::MarkWoken,
        SendStep::Call,
    ];
}

#[cfg(test)]
impl<L: LaneMemory, B: Deref<Target = Doorbell>> Outbox<L, B> {
    /// [`Outbox::send`] up to and including step `last`, made of the same parts.
    pub fn send_until(&mut self, last: SendStep, packet: &Packet, payload: Option<(&UserMemory, u64)>) {
        let (slots, in_head) = self.writer.begin(packet);
        let mut quiet = false;
        let mut call = false;
        for step in SendStep::ALL.into_iter().take_while(|&step| step <= last) {
            match step {
                SendStep::Body => self.writer.fill_body(packet.payload_bytes, payload, in_head),
                SendStep::Head => self.writer.fill_head(packet, payload, in_head),
                SendStep::Publish => self.writer.publish_word(),
                SendStep::PublishEarlyWrap => {
                    if self.writer.wraps_early() {
                        self.writer.publish_early_wrap();
                    }
                    self.writer.advance(slots);
                    light_fence(self.full_fences);
                    quiet = self.writer.lane().control().polled.0.load(Ordering::Relaxed) == 0;
                }
                SendStep::AnnounceLane if quiet => self.doorbell.announce_lane(self.lane),
                SendStep::AnnounceSummary if quiet => {
                    self.doorbell.announce_summary(self.lane);
                    light_fence(self.full_fences);
                }
                SendStep::AnnounceLane | SendStep::AnnounceSummary => {}
                SendStep::MarkWoken => call = self.doorbell.mark_woken_only(&mut self.woken),
                SendStep::Call if call => self.doorbell.wake_futex_only(),
                SendStep::Call => {}
            }
        }
    }
}
