//! One life of an endpoint: its path, and the driver that keeps its bundles and its clock.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU16;

use weir_proto::reliability::{
    Datagram, DatagramDriver, Header, Mutant, PathFault, ReliabilityConfig, ReliablePath,
};
use weir_proto::{Instant, LinkBusy};

/// All bundles have this length. Unit: bytes.
const BUNDLE_BYTES: u32 = 1000;

/// A bundle: the life that has submitted it, and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bundle {
    pub epoch: u16,
    pub index: u32,
}

/// A datagram on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flying {
    pub header: Header,
    pub bundle: Option<(u32, Bundle)>,
}

/// What a path has asked for in one event.
#[derive(Default)]
pub(super) struct Asked {
    pub sent: Vec<Flying>,
    pub delivered: Vec<Bundle>,
    pub acknowledged: Option<u64>,
    pub lost: Option<PathFault>,
}

/// The driver of a path.
#[derive(Clone, Default)]
struct Link {
    copies: BTreeMap<u64, Bundle>,
    held: BTreeMap<u64, Bundle>,
    timer: Option<Instant>,
    refuses: bool,
}

struct Driving<'a> {
    link: &'a mut Link,
    arriving: Option<Bundle>,
    asked: Asked,
}

impl DatagramDriver for Driving<'_> {
    fn transmit(&mut self, header: &Header, position: Option<u64>) -> Result<(), LinkBusy> {
        if self.link.refuses {
            return Err(LinkBusy);
        }
        let bundle = position.map(|position| (position as u32, self.link.copies[&position]));
        self.asked.sent.push(Flying { header: *header, bundle });
        Ok(())
    }
    fn deliver(&mut self, _: u64) {
        self.asked.delivered.push(self.arriving.expect("a bundle is being handled"));
    }
    fn hold(&mut self, position: u64) {
        self.link.held.insert(position, self.arriving.expect("a bundle is being handled"));
    }
    fn deliver_held(&mut self, position: u64) {
        self.asked.delivered.push(self.link.held.remove(&position).expect("a bundle is held"));
    }
    fn acknowledged(&mut self, before: u64) {
        self.asked.acknowledged = Some(before);
        self.link.copies = self.link.copies.split_off(&before);
    }
    fn ready(&mut self) {}
    fn lost(&mut self, fault: PathFault) {
        self.asked.lost = Some(fault);
    }
    fn set_timer(&mut self, at: Instant) {
        self.link.timer = Some(at);
    }
    fn cancel_timer(&mut self) {
        self.link.timer = None;
    }
}

/// See the head of this file.
#[derive(Clone)]
pub(super) struct End {
    path: ReliablePath,
    link: Link,
    now: Instant,
    pub epoch: u16,
    /// The life of the other end to which the path is bound.
    pub bound: Option<u16>,
    pub submitted: u32,
    /// The life of the other end from which bundles have arrived, and how many.
    pub from: Option<u16>,
    pub received: u32,
    /// A datagram has arrived since the end of the last batch.
    pub batch_is_open: bool,
    /// Most bundles that have waited for an earlier one.
    pub most_held: u64,
    hash: u64,
}

impl End {
    pub fn new(epoch: u16, mutant: Option<Mutant>) -> End {
        let config = ReliabilityConfig {
            window_bundles: 64,
            datagram_bytes: BUNDLE_BYTES,
            base_datagram_bytes: BUNDLE_BYTES,
            start: u32::MAX - 1, // positions and numbers wrap around
            ..ReliabilityConfig::default()
        };
        let mut path = ReliablePath::new(config, NonZeroU16::new(epoch).expect("epochs count from 1"));
        if let Some(mutant) = mutant {
            path.mutate(mutant);
        }
        let mut end = End {
            path,
            link: Link::default(),
            now: Instant(0),
            epoch,
            bound: None,
            submitted: 0,
            from: None,
            received: 0,
            batch_is_open: false,
            most_held: 0,
            hash: 0,
        };
        end.rehash();
        end
    }

    /// A number that differs for lives that can go on differently.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    fn rehash(&mut self) {
        let mut words = Vec::with_capacity(256);
        self.path.canonical(self.now, &mut words);
        let mut hasher = DefaultHasher::new();
        words.hash(&mut hasher);
        let Link { copies, held, timer, refuses } = &self.link;
        (copies, held, refuses).hash(&mut hasher);
        timer.map(|at| at.0.wrapping_sub(self.now.0)).hash(&mut hasher);
        let End { epoch, bound, submitted, from, received, batch_is_open, .. } = self;
        (epoch, bound, submitted, from, received, batch_is_open).hash(&mut hasher);
        self.hash = hasher.finish();
    }

    /// An event of this life.
    fn event(
        &mut self,
        arriving: Option<Bundle>,
        handle: impl FnOnce(&mut ReliablePath, Instant, &mut Driving<'_>),
    ) -> Asked {
        let mut driving = Driving { link: &mut self.link, arriving, asked: Asked::default() };
        handle(&mut self.path, self.now, &mut driving);
        let asked = driving.asked;
        self.most_held = self.most_held.max(self.link.held.len() as u64);
        self.rehash();
        asked
    }

    pub fn arrives(&mut self, flying: &Flying, arrival_ns: u64, ends_batch: bool) -> Asked {
        self.now = self.now.plus_ns(arrival_ns);
        self.batch_is_open = !ends_batch;
        let Flying { header, bundle } = *flying;
        let datagram = Datagram { header, position: bundle.map(|(position, _)| position), marked: false };
        if self.bound.is_none() && header.destination_epoch == self.epoch {
            self.bound = Some(header.epoch);
        }
        self.event(bundle.map(|(_, bundle)| bundle), |path, now, driving| {
            path.arrived(now, &datagram, driving);
            if ends_batch {
                driving.arriving = None;
                path.batch_ended(now, driving);
                path.bundles_read(now, driving);
            }
        })
    }

    pub fn ends_batch(&mut self) -> Asked {
        self.batch_is_open = false;
        self.event(None, |path, now, driving| {
            path.batch_ended(now, driving);
            path.bundles_read(now, driving);
        })
    }

    pub fn submits(&mut self) -> Asked {
        let bundle = Bundle { epoch: self.epoch, index: self.submitted };
        self.submitted += 1;
        let position = self.path.next_position();
        self.link.copies.insert(position, bundle);
        self.event(None, |path, now, driving| {
            path.submit(now, BUNDLE_BYTES, driving).expect("a window of 64 takes a few");
        })
    }

    /// The time until the timer expires. Unit: ns.
    pub fn timer_ns(&self) -> Option<u64> {
        self.link.timer.map(|at| at.0.saturating_sub(self.now.0))
    }

    /// The clock shows so much more.
    pub fn waits(&mut self, ns: u64) {
        self.now = self.now.plus_ns(ns);
        self.rehash();
    }

    /// The timer expires, at its time or now.
    pub fn expires(&mut self) -> Asked {
        let at = self.link.timer.take().expect("a timer is set");
        self.now = self.now.max(at);
        self.event(None, |path, now, driving| path.expired(now, driving))
    }

    pub fn refuses(&self) -> bool {
        self.link.refuses
    }

    pub fn begins_to_refuse(&mut self) {
        self.link.refuses = true;
        self.rehash();
    }

    pub fn accepts_again(&mut self) -> Asked {
        self.link.refuses = false;
        self.event(None, |path, now, driving| path.writable(now, driving))
    }

    /// Bundles of this life before `position`.
    pub fn bundles_before(&self, position: u64) -> u32 {
        let first = self.path.next_position() - u64::from(self.submitted);
        (position - first) as u32
    }

    pub fn path(&self) -> &ReliablePath {
        &self.path
    }
}
