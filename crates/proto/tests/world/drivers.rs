//! What the drivers of a test world answer: whether credits are deferred, who can read memory, whether a link is busy. And
//! what wrong drivers do.

use weir_proto::{Action, Event, Peer, Recorder};

use super::World;

/// A rule that wrong drivers break, to show that the worlds notice it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverFault {
    /// `CreditsDue` never follows deferred credits.
    ForgetsDeferredCredits,
    /// The driver says that no peer can read memory, although peers can.
    NobodyReads,
    /// Only the endpoint with the higher rank learns that the slots of a path differ.
    OneSideLearnsTheGeometry,
}

/// How often something occurred that depends on the driver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Credits were deferred, and the endpoint handled other events before `CreditsDue`.
    pub late_credits: u64,
    /// A message was sent whole because its receiver cannot read it.
    pub whole_to_non_readers: u64,
    /// Packets on a path whose geometry is not that of the endpoint.
    pub far_packets: u64,
}

impl std::ops::AddAssign for Seen {
    fn add_assign(&mut self, other: Seen) {
        self.late_credits += other.late_credits;
        self.whole_to_non_readers += other.whole_to_non_readers;
        self.far_packets += other.far_packets;
    }
}

impl World {
    /// The driver of the next event of `rank`.
    pub(super) fn driver<'actions>(
        &mut self,
        rank: u32,
        actions: &'actions mut Vec<Action>,
    ) -> Recorder<'actions> {
        let defers = self.next_defers_credits(rank);
        let nobody_reads = self.fault == Some(DriverFault::NobodyReads);
        let peers = 0..self.plan.endpoints;
        let non_readers =
            peers.filter(|&to| nobody_reads || !self.plan.may_read(rank, to)).map(Peer).collect();
        let driver = match self.next_busy_link() {
            Some(packets) => Recorder::with_busy_link(self.now, actions, packets),
            None => Recorder::new(self.now, actions),
        };
        driver.deferring_credits(defers).with_non_readers(non_readers)
    }

    /// Tells `rank` the slots of its path to `peer`, before a lease begins there.
    pub(super) fn begin_path(&mut self, rank: u32, peer: u32) {
        let geometry = self.plan.path_geometry(rank, peer);
        let is_told = rank > peer || self.fault != Some(DriverFault::OneSideLearnsTheGeometry);
        if geometry != self.plan.geometry && is_told {
            self.handle(rank, Event::PathGeometry { peer: Peer(peer), geometry });
        }
    }

    /// Whether the driver of `rank` defers credits in the next event.
    fn next_defers_credits(&self, rank: u32) -> bool {
        let draw = (self.trace ^ self.now.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62;
        self.plan.deferring >> rank & 1 == 1 && draw > 0
    }

    /// Packets that the link takes in the next event. `None`: all.
    fn next_busy_link(&mut self) -> Option<u32> {
        let state = self.busy_links.as_mut()?;
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let packets = (*state >> 33) % 5;
        (packets < 4).then_some(packets as u32)
    }
}
