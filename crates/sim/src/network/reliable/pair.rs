//! One end of a reliable path in the simulator ([`PathEnd`]): the machine, and the driver that keeps its bundles. It records what
//! the machine asks for ([`Asked`]).

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU16;

use weir_proto::reliability::{Datagram, DatagramDriver, Header, PathFault, ReliabilityConfig, ReliablePath};
use weir_proto::{Instant, LinkBusy};

use super::PathReading;
use crate::Picoseconds;
use crate::network::TrainId;

/// A packet of the world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bundle {
    pub train: TrainId,
    /// Its index in the train.
    pub packet: u32,
    pub payload_bytes: u32,
    /// Its length in a datagram.
    pub bytes: u32,
}

/// What a path has asked for in one event.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub sent: Vec<(Header, Option<(u32, Bundle)>)>,
    pub delivered: Vec<Bundle>,
    /// When the timer expires.
    pub timer: Option<Picoseconds>,
    pub has_ended: bool,
}

/// The bundles of one end.
#[derive(Debug, Default)]
struct Bundles {
    /// Those that the peer has not acknowledged, by position.
    copies: VecDeque<Bundle>,
    first_copy: u64,
    /// Those that arrived before an earlier one.
    held: BTreeMap<u64, Bundle>,
}

struct Driver<'a> {
    bundles: &'a mut Bundles,
    arriving: Option<Bundle>,
    asked: Asked,
    timer: Option<Instant>,
    is_ready: bool,
}

impl DatagramDriver for Driver<'_> {
    fn transmit(&mut self, header: &Header, position: Option<u64>) -> Result<(), LinkBusy> {
        let Bundles { copies, first_copy, .. } = &*self.bundles;
        let bundle = position.map(|position| (position as u32, copies[(position - first_copy) as usize]));
        self.asked.sent.push((*header, bundle));
        Ok(())
    }
    fn deliver(&mut self, _: u64) {
        self.asked.delivered.push(self.arriving.expect("a bundle is being handled"));
    }
    fn hold(&mut self, position: u64) {
        self.bundles.held.insert(position, self.arriving.expect("a bundle is being handled"));
    }
    fn deliver_held(&mut self, position: u64) {
        self.asked.delivered.push(self.bundles.held.remove(&position).expect("a bundle is held"));
    }
    fn acknowledged(&mut self, before: u64) {
        let Bundles { copies, first_copy, .. } = &mut *self.bundles;
        copies.drain(..(before - *first_copy) as usize);
        *first_copy = before;
    }
    fn ready(&mut self) {
        self.is_ready = true;
    }
    fn lost(&mut self, _: PathFault) {
        self.asked.has_ended = true;
    }
    fn set_timer(&mut self, at: Instant) {
        self.timer = Some(at);
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct PathEnd {
    /// The rank of this end.
    pub at: u32,
    pub peer: u32,
    path: ReliablePath,
    bundles: Bundles,
    /// Packets for which the window has no room.
    waiting: VecDeque<Bundle>,
    timer: Option<Picoseconds>,
    submitted: u64,
    least_window_bytes: u64,
}

impl PathEnd {
    pub fn new(at: u32, peer: u32, config: ReliabilityConfig, prepare: fn(&mut ReliablePath)) -> PathEnd {
        let mut path = ReliablePath::new(config, NonZeroU16::MIN);
        prepare(&mut path);
        let bundles = Bundles { first_copy: path.next_position(), ..Bundles::default() };
        PathEnd {
            at,
            peer,
            least_window_bytes: path.view().window_bytes,
            path,
            bundles,
            waiting: VecDeque::new(),
            timer: None,
            submitted: 0,
        }
    }

    /// An event of the path. Packets that wait follow when it has room again.
    fn event(
        &mut self,
        now: Picoseconds,
        arriving: Option<Bundle>,
        handle: impl FnOnce(&mut ReliablePath, Instant, &mut Driver<'_>),
    ) -> Asked {
        let now = Instant(now / 1000);
        let bundles = &mut self.bundles;
        let mut driver = Driver { bundles, arriving, asked: Asked::default(), timer: None, is_ready: false };
        handle(&mut self.path, now, &mut driver);
        driver.arriving = None;
        while driver.is_ready
            && let Some(bundle) = self.waiting.pop_front()
        {
            driver.is_ready = true;
            driver.bundles.copies.push_back(bundle);
            if self.path.submit(now, bundle.bytes, &mut driver).is_err() {
                driver.bundles.copies.pop_back();
                self.waiting.push_front(bundle);
                break;
            }
        }
        let Driver { mut asked, timer, .. } = driver;
        if let Some(at) = timer {
            // Times of a path are whole nanoseconds.
            let at = at.0.saturating_mul(1000).max(now.0 * 1000 + 1000);
            (self.timer, asked.timer) = (Some(at), Some(at));
        }
        self.least_window_bytes = self.least_window_bytes.min(self.path.view().window_bytes);
        asked
    }

    /// A packet for the peer.
    pub fn submit(&mut self, now: Picoseconds, bundle: Bundle) -> Asked {
        self.submitted += 1;
        self.waiting.push_back(bundle);
        if self.waiting.len() > 1 {
            return Asked::default();
        }
        self.event(now, None, |_, _, driver| driver.is_ready = true)
    }

    /// A datagram of the peer. Each one is a batch of its own.
    pub fn arrives(
        &mut self,
        now: Picoseconds,
        header: Header,
        bundle: Option<(u32, Bundle)>,
        marked: bool,
    ) -> Asked {
        let datagram = Datagram { header, position: bundle.map(|(position, _)| position), marked };
        self.event(now, bundle.map(|(_, bundle)| bundle), |path, now, driver| {
            path.arrived(now, &datagram, driver);
            driver.arriving = None;
            path.batch_ended(now, driver);
            path.bundles_read(now, driver);
        })
    }

    /// The timer expires. `None`: it was set to another time.
    pub fn expires(&mut self, now: Picoseconds) -> Option<Asked> {
        self.timer.take_if(|at| *at == now)?;
        Some(self.event(now, None, |path, now, driver| path.expired(now, driver)))
    }

    /// What this end says at the end of a world. `None`: it has sent no packet.
    pub fn reading(&self) -> Option<PathReading> {
        (self.submitted > 0).then(|| PathReading {
            rank: self.at,
            peer: self.peer,
            packets: self.submitted,
            counters: self.path.counters(),
            view: self.path.view(),
            least_window_bytes: self.least_window_bytes,
        })
    }
}
