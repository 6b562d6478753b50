//! The arguments of a step of a rank besides the rank itself, the work that the step leaves for the world, and its
//! result. Buffers that all ranks share are among them.

use std::collections::VecDeque;

use hdrhistogram::Histogram;
use weir_proto::{Event, Packet, Peer, Request, Scratch};

use super::super::check::Checks;
use super::super::mailbox::Chunks;
use super::super::rnr::PostedBuffers;
use super::super::trains::Trains;
use super::super::{Record, WorldSpec};
use crate::Picoseconds;
use crate::cost::Cost;
use crate::network::TrainId;
use crate::program::{Handle, OffloadCall};
use crate::trace::Trace;

/// Everything that a step uses besides the rank, and the work that it leaves for the world.
pub struct StepContext<'a> {
    pub spec: &'a WorldSpec,
    /// Prices of this rank.
    pub cost: &'a Cost,
    /// Time of everything in percent of the normal one.
    pub percent: u32,
    pub checks: Option<&'a mut Checks>,
    /// Ranks may crash or be given up.
    pub may_lose: bool,
    pub trains: &'a mut Trains,
    pub chunks: &'a mut Chunks,
    pub trace: &'a mut Trace,
    pub records: &'a mut Vec<Record>,
    pub latency_ns: &'a mut Histogram<u64>,
    /// Only with the scheme `hardware`.
    pub posted_buffers: Option<&'a mut PostedBuffers>,
    pub deferred: &'a mut DeferredWork,
    /// The network accepts no send of ours before this time.
    pub send_from: Picoseconds,
    /// No other rank influences what a sender does next.
    pub sends_never_wait: bool,
    /// The machine may process packets before their virtual time.
    pub looks_ahead: bool,
    /// The step has retrieved a packet.
    pub retrieved: bool,
    /// A train that has arrived already.
    pub already_arrived: Option<TrainId>,
}

impl StepContext<'_> {
    /// Whether checks or posted buffers need the packets that are retired.
    #[inline]
    pub fn observes_packets(&self) -> bool {
        self.checks.is_some() || self.posted_buffers.is_some()
    }
}

/// Work that a rank leaves for the world, and buffers that all ranks share.
#[derive(Default)]
pub struct DeferredWork {
    /// Trains that leave, with their times.
    pub injections: Vec<(Picoseconds, TrainId)>,
    pub gets: Vec<Get>,
    /// Orders for the NIC, with the times at which their descriptors are written.
    pub posted: Vec<(Picoseconds, Post)>,
    /// What the program wants to know of its own words.
    pub own_words: Vec<Post>,
    /// Ranks whose packets an offloaded machine has rejected, in a world without lost peers.
    pub rejected: Vec<u32>,
    /// Ranks to which we begin to send, with our number of them.
    pub attaches: Vec<(u32, Peer)>,
    /// Peers whose slots the program reads.
    pub readings: Vec<(Handle, u32)>,
    /// Peers that the rank has lost or given up.
    pub severed: Vec<u32>,
    /// Memory that the machines lend each other; only one works at a time.
    pub scratch: Scratch,
    /// Events for the machine that follow from its calls.
    pub(super) events: VecDeque<Event<'static>>,
    /// The next packet to this rank has arrived already, because it was an attempt.
    pub(super) accepted_by: Option<u32>,
    /// A packet is being processed, and is not retired yet.
    pub(super) has_arrived: bool,
    /// That packet and its sender, where checks or posted buffers need it.
    pub(super) observed: Option<(u32, Packet)>,
    /// Its payload, if it is one of an offloaded machine.
    pub(super) payload: Vec<u8>,
}

impl DeferredWork {
    /// Most steps leave no work.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let DeferredWork {
            injections, gets, posted, own_words, rejected, attaches, readings, severed, ..
        } = self;
        let offloaded = posted.len() | own_words.len() | rejected.len();
        offloaded | injections.len() | gets.len() | attaches.len() | readings.len() | severed.len() == 0
    }
}

/// An order of the program to its offloaded machines.
#[derive(Clone, Debug)]
pub struct Post {
    pub request: Request,
    pub call: OffloadCall,
}

/// A remote get that begins.
#[derive(Clone, Copy, Debug)]
pub struct Get {
    pub at: Picoseconds,
    pub from: u32,
    pub bytes: u64,
    pub number: u32,
}

/// Result of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepResult {
    /// Time of the next step.
    pub step_at: Option<Picoseconds>,
    /// The program has ended in this step.
    pub ended: bool,
}
