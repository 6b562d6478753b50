//! The driver of packets that a machine processes before their time (`world/lookahead.rs`). It prices what the machine
//! does, instead of noting actions that are read once.
//!
//! The machine takes only packets of posted receives early. So only a few calls can come.

use weir_proto::offload::Offloaded;
use weir_proto::{
    BufferId, Destination, Driver, Envelope, Instant, LinkBusy, LinkDriver, MemoryCopy, MessageId,
    OperationDriver, Outcome, Packet, PayloadDriver, Peer, PeerFault, Request, Source, TimeDriver, Timer,
    Transfer,
};

use super::retrieval::place_ps;
use crate::Picoseconds;
use crate::cost::Cost;

/// What follows from a packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EarlyResult {
    /// Price of placing its payload.
    pub place_ps: Picoseconds,
    /// Credits for its sender are due when it is retrieved.
    pub credits_due: bool,
    /// The receive that its message completes, and the bytes received.
    pub received: Option<(Request, Envelope, u64)>,
}

pub(super) struct EarlyDriver<'a> {
    pub cost: &'a Cost,
    pub result: EarlyResult,
}

/// Methods of calls that do not come.
macro_rules! never {
    ($($name:ident($($type:ty),*) $(-> $result:ty)?;)*) => {
        $(
            fn $name(&mut self, $(_: $type),*) $(-> $result)? {
                unreachable!(concat!(stringify!($name), " for a packet before its time"))
            }
        )*
    };
}

impl TimeDriver for EarlyDriver<'_> {
    never! {
        now() -> Instant;
        set_timer(Timer, Instant);
        cancel_timer(Timer);
    }
}

impl LinkDriver for EarlyDriver<'_> {
    #[inline(always)]
    fn acts_early(&self) -> bool {
        true
    }

    #[inline(always)]
    fn defers_credits(&mut self, _peer: Peer) -> bool {
        self.result.credits_due = true;
        true
    }

    #[inline(always)]
    fn retire(&mut self) {}

    never! {
        connect(Peer);
        transmit(Peer, &Packet, Source) -> Result<(), LinkBusy>;
        disconnect(Peer);
        free_lane(Peer);
        ask_room(Peer, bool);
        drop_peer(Peer);
    }
}

impl PayloadDriver for EarlyDriver<'_> {
    #[inline(always)]
    fn place(&mut self, to: Destination, bytes: u64) {
        self.result.place_ps += place_ps(to, bytes, self.cost);
    }

    never! {
        allocate_unexpected(MessageId, u64);
        deliver(MessageId, Request, u64, u64);
        free_unexpected(MessageId);
        fill_bounce(Transfer, Request);
        free_bounce(Transfer);
        copy(MemoryCopy);
    }
}

impl OperationDriver for EarlyDriver<'_> {
    #[inline(always)]
    fn complete(&mut self, request: Request, outcome: Outcome) {
        match outcome {
            Outcome::Received { envelope, bytes, .. } => {
                self.result.received = Some((request, envelope, bytes));
            }
            _ => unreachable!("{outcome:?} for a packet before its time"),
        }
    }

    never! {
        notify(Peer, u64, u64);
    }
}

impl Driver for EarlyDriver<'_> {
    never! {
        pass_on(Peer, u32, &Offloaded, u32);
        answer_left(BufferId);
        peer_lost(Peer, PeerFault);
    }
}
