//! A network inside the process that loses, repeats, reorders, marks and changes datagrams, for tests ([`Switch`]).
//!
//! Time is a number that the test advances, or that each look at the network advances. All decisions come from a seed.
//! So a test in one thread repeats exactly.
//!
//! ```text
//! A: send(2, 1200 B)        the switch decides: arrives at 1,040 us, and once more at 1,300 us
//! B: receive, at 1,039 us   nothing
//! B: receive, at 1,040 us   1200 B from 1
//! ```
//! A port can be cut: nothing arrives there and nothing comes from there, as if its host had ended.

use super::network::{BATCH_DATAGRAMS, Batch, DatagramNetwork, Received};
use crate::{Bell, LinkKind};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_proto::Instant;

/// Length of the largest datagram: that of Ethernet with IPv6. Unit: bytes.
const DATAGRAM_BYTES: usize = 1452;

/// So many ports are on one host: the first host has the ports below that.
const HOST_PORTS: u16 = 50;

/// What happens to datagrams. Shares are in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Impairments {
    /// Lost.
    pub lost: u32,
    /// Delivered twice.
    pub repeated: u32,
    /// Delivered with one wrong bit.
    pub changed: u32,
    /// Delivered with a mark of congestion.
    pub marked: u32,
    /// Refused for now.
    pub refused: u32,
    /// The least time on the way.
    pub delay_ns: u64,
    /// Up to so much more. Datagrams overtake each other.
    pub jitter_ns: u64,
    /// How far each look at the network advances the time.
    pub look_ns: u64,
}

/// What a switch has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCounters {
    /// Datagrams that were sent.
    pub sent: u64,
    /// Lost, repeated, changed, marked, refused, in this order.
    pub impaired: [u64; 5],
    /// Datagrams that were sent together with another one.
    pub joined: u64,
    /// Datagrams that were lost because a port had no room.
    pub overflowed: u64,
    /// Datagrams that were lost because they were too large.
    pub too_large: u64,
    /// The longest datagram that was not too large, and not in fragments, since [`Switch::forget_longest`]. Unit: bytes.
    pub longest: usize,
}

#[derive(Debug)]
struct UnderWay {
    from: u16,
    bytes: Vec<u8>,
    marked: bool,
}

struct State {
    impairments: Impairments,
    random: u64,
    now: u64,
    /// By port, time of arrival and number.
    under_way: HashMap<u16, BTreeMap<(u64, u64), UnderWay>>,
    bells: HashMap<u16, Arc<dyn Bell>>,
    cut: HashSet<u16>,
    /// What ports send arrives as if from another one.
    seen_as: HashMap<u16, u16>,
    /// Room of ports. Those that are not here have no bound. Unit: datagrams.
    rooms: HashMap<u16, usize>,
    /// Longer datagrams are lost. Unit: bytes.
    narrowest: usize,
    counters: SwitchCounters,
    /// What others do while somebody waits.
    others_act: Option<Box<dyn FnMut() + Send>>,
}

impl State {
    fn draw(&mut self) -> u64 {
        // Source: Steele, Lea and Flood 2014 (SplitMix64).
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Whether something with this share happens, and counts it.
    fn happens(&mut self, share: u32, counter: usize) -> bool {
        let happens = share > 0 && self.draw() % 1000 < u64::from(share);
        self.counters.impaired[counter] += u64::from(happens);
        happens
    }

    fn send(&mut self, from: u16, to: u16, bytes: &[u8]) {
        self.counters.sent += 1;
        let Impairments { lost, repeated, changed, marked, delay_ns, jitter_ns, .. } = self.impairments;
        let is_lost = self.happens(lost, 0);
        if is_lost || self.cut.contains(&from) || self.cut.contains(&to) || !self.under_way.contains_key(&to)
        {
            return;
        }
        let copies = 1 + u64::from(self.happens(repeated, 1));
        for _ in 0..copies {
            let mut bytes = bytes.to_vec();
            if self.happens(changed, 2) {
                let bit = self.draw() as usize % (8 * bytes.len());
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let marked = self.happens(marked, 3);
            let at = self.now + delay_ns + self.draw() % (jitter_ns + 1);
            let number = self.draw();
            if let Some(port) = self.under_way.get_mut(&to) {
                if self.rooms.get(&to).is_some_and(|room| port.len() >= *room) {
                    self.counters.overflowed += 1;
                    continue;
                }
                let from = self.seen_as.get(&from).copied().unwrap_or(from);
                port.insert((at, number), UnderWay { from, bytes, marked });
            }
        }
        if let Some(bell) = self.bells.get(&to) {
            bell.ring();
        }
    }
}

/// See the head of this file. Clones are the same switch.
#[derive(Clone)]
pub struct Switch(Arc<Mutex<State>>);

impl Switch {
    /// A switch whose decisions come from `seed`.
    pub fn new(seed: u64, impairments: Impairments) -> Switch {
        Switch(Arc::new(Mutex::new(State {
            impairments,
            random: seed,
            now: 0,
            under_way: HashMap::new(),
            bells: HashMap::new(),
            cut: HashSet::new(),
            seen_as: HashMap::new(),
            rooms: HashMap::new(),
            narrowest: DATAGRAM_BYTES,
            counters: SwitchCounters::default(),
            others_act: None,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can panic half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A port. What was under way to an earlier owner of its number arrives there too.
    pub fn open(&self, port: u16) -> LossyNetwork {
        let mut state = self.state();
        state.cut.remove(&port);
        state.under_way.entry(port).or_default();
        state.bells.remove(&port);
        drop(state);
        LossyNetwork { switch: self.clone(), port }
    }

    /// Cuts a port, until it is opened again.
    pub fn cut(&self, port: u16) {
        let mut state = self.state();
        state.cut.insert(port);
        state.under_way.entry(port).or_default().clear();
    }

    /// What `port` sends from now on arrives as if from `other`, which sends for it.
    pub fn see_as(&self, port: u16, other: u16) {
        self.state().seen_as.insert(port, other);
    }

    /// Gives a port room for `datagrams`, as a socket has. What does not fit is lost.
    pub fn bound(&self, port: u16, datagrams: usize) {
        self.state().rooms.insert(port, datagrams);
    }

    /// Loses datagrams of more than `bytes` from now on, without a word, unless they are in fragments.
    pub fn narrow(&self, bytes: usize) {
        self.state().narrowest = bytes;
    }

    /// Begins to measure the longest datagram anew.
    pub fn forget_longest(&self) {
        self.state().counters.longest = 0;
    }

    /// Changes what happens to datagrams from now on.
    pub fn impair(&self, impairments: Impairments) {
        self.state().impairments = impairments;
    }

    /// Advances the time.
    pub fn advance(&self, ns: u64) {
        self.state().now += ns;
    }

    /// Calls `act` whenever an endpoint waits. It must advance the time. Otherwise a wait ends at once, at its last moment.
    pub fn while_waiting(&self, act: impl FnMut() + Send + 'static) {
        self.state().others_act = Some(Box::new(act));
    }

    /// The time.
    pub fn now(&self) -> Instant {
        Instant(self.state().now)
    }

    /// What it has done.
    pub fn counters(&self) -> SwitchCounters {
        self.state().counters
    }

    /// Sends a datagram of nobody.
    pub fn forge(&self, from: u16, to: u16, bytes: &[u8]) {
        self.state().send(from, to, bytes);
    }
}

/// A port of a [`Switch`].
pub struct LossyNetwork {
    switch: Switch,
    port: u16,
}

impl DatagramNetwork for LossyNetwork {
    type Place = u16;

    fn kind(&self) -> LinkKind {
        LinkKind::LastChoice
    }

    fn part(&self) -> Vec<u8> {
        self.port.to_le_bytes().into()
    }

    fn place_of(&self, part: &[u8]) -> Option<u16> {
        part.try_into().ok().map(u16::from_le_bytes)
    }

    fn domain(&self) -> Option<u64> {
        Some(u64::from(self.port / HOST_PORTS) + 1)
    }

    fn is_same_host(&self, one: u16, other: u16) -> bool {
        one / HOST_PORTS == other / HOST_PORTS
    }

    fn largest_datagram(&self) -> usize {
        DATAGRAM_BYTES
    }

    fn carries_contents(&self) -> bool {
        true
    }

    fn buffered_datagrams(&self) -> Option<u64> {
        // The rest is for datagrams without bundles.
        self.switch.state().rooms.get(&self.port).map(|room| *room as u64 * 5 / 8)
    }

    fn send(&mut self, to: u16, bytes: &[u8], segment_bytes: usize, in_fragments: bool) -> usize {
        let mut state = self.switch.state();
        let refused = state.impairments.refused;
        if state.happens(refused, 4) {
            return 0;
        }
        for (nth, datagram) in bytes.chunks(segment_bytes).enumerate() {
            assert!(datagram.len() <= DATAGRAM_BYTES, "a datagram of {} bytes", datagram.len());
            state.counters.joined += u64::from(nth > 0);
            if datagram.len() > state.narrowest && !in_fragments {
                state.counters.too_large += 1;
                continue;
            }
            if !in_fragments {
                state.counters.longest = state.counters.longest.max(datagram.len());
            }
            state.send(self.port, to, datagram);
        }
        bytes.len()
    }

    fn receive(&mut self, batch: &mut Batch<u16>) {
        let mut state = self.switch.state();
        state.now += state.impairments.look_ns;
        let now = state.now;
        let Some(port) = state.under_way.get_mut(&self.port) else { return };
        let mut at = 0;
        while batch.datagrams.len() < BATCH_DATAGRAMS
            && let Some(first) = port.first_entry()
            && first.key().0 <= now
            && at + first.get().bytes.len() <= batch.bytes.len()
        {
            let UnderWay { from, bytes, marked } = first.remove();
            let range = at..at + bytes.len();
            at = range.end;
            batch.bytes[range.clone()].copy_from_slice(&bytes);
            batch.datagrams.push(Received { from, range, marked });
        }
    }

    fn may_have_arrivals(&self) -> bool {
        self.next_arrival().is_some_and(|at| at <= self.now())
    }

    fn now(&self) -> Instant {
        self.switch.now()
    }

    fn host_time(&self) -> Instant {
        self.switch.now()
    }

    fn wait(&mut self, until: Instant) {
        let others_act = self.switch.state().others_act.take();
        if let Some(mut act) = others_act {
            act();
            self.switch.state().others_act = Some(act);
            return;
        }
        let at = self.next_arrival().map_or(until, |at| at.min(until));
        let mut state = self.switch.state();
        state.now = state.now.max(at.0);
    }

    fn next_arrival(&self) -> Option<Instant> {
        let state = self.switch.state();
        let ((at, _), _) = state.under_way.get(&self.port)?.first_key_value()?;
        Some(Instant(*at))
    }

    fn bell(&self) -> Arc<dyn Bell> {
        Arc::new(NoBell)
    }

    fn ring_on_arrival(&mut self, bell: &Arc<dyn Bell>) -> bool {
        self.switch.state().bells.insert(self.port, Arc::clone(bell));
        true
    }
}

/// Nobody sleeps at this network, because its time does not pass meanwhile.
struct NoBell;

impl Bell for NoBell {
    fn ring(&self) {}
}
