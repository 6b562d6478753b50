//! The network over a core provider ([`OfiNetwork`]). A message to the core is our part of the address, and a datagram: so a
//! receiver knows the sender's place, whatever the provider tells about senders. Nobody has checked it; the datagram
//! itself is authenticated.

use super::copies::Copies;
use super::core_endpoint::{CoreAddress, CoreEndpoint, CoreError, CoreName, NameFormat, Sent, WINDOW};
use super::place::{MOST_PART_BYTES, OfiPlace};
use crate::copy::copy_slice;
use crate::datagram::network::{
    BATCH_DATAGRAMS, Batch, Clock, DatagramNetwork, LargeMessages, NetworkMemory, Received, Traffic,
    domain_of,
};
use crate::event_descriptor::EventDescriptor;
use crate::socket_watch::SocketWatch;
use crate::udp::witness::Witness;
use crate::{Bell, LinkKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::Arc;
use weir_proto::Instant;
use weir_proto::reliability::Standing;

/// The part of the posted receives that peers are granted. The others are for datagrams without bundles.
const GRANTED: (u64, u64) = (5, 8);
/// Where the core has no descriptor, an endpoint sleeps no longer than this.
const LOOK_NS: u64 = 500_000;
/// The shortest message that weir needs: a datagram that every path carries, behind the part. Unit: bytes.
const LEAST_MESSAGE_BYTES: usize = 1 + MOST_PART_BYTES + 1280;

/// What a network is opened with.
#[derive(Clone, Debug)]
pub struct OfiOptions {
    /// The witness listens at one of these ports. `None`: the kernel chooses.
    pub ports: Option<RangeInclusive<u16>>,
    /// The time after which the link gives a silent peer up. Unit: ns.
    pub limit_ns: u64,
    /// Endpoints of a host send for each other ([`SendProxy`](crate::datagram::SendProxy)). What a server had taken for another
    /// endpoint is lost if it dies. So it is sent again, although the core itself loses nothing.
    pub has_proxy: bool,
}

/// A peer of the core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// `None`: the core does not know such names.
    pub address: Option<CoreAddress>,
    /// A message or a copy was lost there, so nothing that follows makes sense.
    pub has_failed: bool,
}

/// See the head of this file.
pub struct OfiNetwork {
    // Before the endpoint, whose descriptor it watches.
    watch: Option<SocketWatch>,
    pub(super) endpoint: Box<dyn CoreEndpoint>,
    own: OfiPlace,
    /// The beginning of every message: length and bytes of our part.
    head: Vec<u8>,
    targets: HashMap<OfiPlace, Target>,
    places: HashMap<CoreAddress, OfiPlace>,
    pub(super) copies: Copies,
    /// Length of the longest large message. 0: there are none. Unit: bytes.
    pub(super) longest_large: usize,
    /// The core's endpoint is closed, because it did not end a copy with a lost peer.
    pub(super) is_closed: bool,
    witness: Option<Witness>,
    has_proxy: bool,
    /// The last look found as much as it could.
    has_more: bool,
    bell: Arc<NetworkBell>,
    /// Rung instead of a wait that would be too late.
    owners_bell: Option<Arc<dyn Bell>>,
    clock: Clock,
    pub(super) traffic: Traffic,
}

impl OfiNetwork {
    /// The network over `endpoint`.
    ///
    /// # Errors
    /// [`CoreError`]: messages are too short, the name is too long, or there is no port for the witness.
    pub fn open(endpoint: Box<dyn CoreEndpoint>, options: &OfiOptions) -> Result<OfiNetwork, CoreError> {
        let provider = endpoint.provider().to_owned();
        let bytes = endpoint.longest_message();
        if bytes < LEAST_MESSAGE_BYTES {
            return Err(CoreError::ShortMessages { provider, bytes, least: LEAST_MESSAGE_BYTES });
        }
        let name = endpoint.name();
        let listener = listen(&provider, name, options)?;
        let port = |listener: &TcpListener| listener.local_addr().map_or(0, |address| address.port());
        let own = OfiPlace::of(name, listener.as_ref().map_or(0, port)).map_err(|bytes| {
            let name = name.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            CoreError::LongName { provider: provider.clone(), name, bytes, most: MOST_PART_BYTES }
        })?;
        let failed = |call| {
            let provider = provider.clone();
            move |error: io::Error| CoreError::Call { provider, call, reason: error.to_string() }
        };
        let witness = listener.map(|listener| Witness::new(listener, options.limit_ns));
        let mut network = OfiNetwork {
            watch: None,
            own,
            head: [&[own.part().len() as u8], own.part()].concat(),
            targets: HashMap::new(),
            places: HashMap::new(),
            copies: Copies::default(),
            longest_large: 0,
            is_closed: false,
            witness: witness.transpose().map_err(failed("listen"))?,
            has_proxy: options.has_proxy,
            has_more: false,
            bell: Arc::new(NetworkBell(EventDescriptor::open().map_err(failed("eventfd"))?)),
            owners_bell: None,
            clock: Clock::start(),
            traffic: Traffic::default(),
            endpoint,
        };
        network.longest_large = network.endpoint.large().map_or(0, |large| large.longest());
        Ok(network)
    }

    /// The peer of the core at this place.
    pub(super) fn target(&mut self, place: OfiPlace) -> Target {
        if let Some(target) = self.targets.get(&place) {
            return *target;
        }
        let name = place.name(self.endpoint.name());
        let address = name.and_then(|name| self.endpoint.address_of(&name));
        let target = Target { address, has_failed: address.is_none() };
        self.targets.insert(place, target);
        self.places.extend(address.map(|address| (address, place)));
        target
    }

    pub(super) fn note_failure(&mut self, place: OfiPlace) {
        self.traffic.failed += 1;
        if let Some(target) = self.targets.get_mut(&place) {
            target.has_failed = true;
        }
    }

    fn take_failures(&mut self) {
        while let Some(address) = self.endpoint.next_failure() {
            if let Some(&place) = self.places.get(&address) {
                self.note_failure(place);
            }
        }
    }
}

/// The listener of the witness, where names are those of sockets.
fn listen(provider: &str, name: &CoreName, options: &OfiOptions) -> Result<Option<TcpListener>, CoreError> {
    let address = match name.format {
        NameFormat::Socket => name.socket_address(),
        NameFormat::Other => None,
    };
    let Some(address) = address else { return Ok(None) };
    let bind = |port| -> io::Result<TcpListener> {
        let mut place = address; // its zone stays
        place.set_port(port);
        let listener = TcpListener::bind(place)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let mut ports = options.ports.clone().unwrap_or(0..=0);
    let last = *ports.end();
    let bound = ports.find_map(|port| match bind(port) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && port != last => None,
        result => Some(result),
    });
    bound.transpose().map_err(|error| CoreError::Listen {
        provider: provider.to_owned(),
        address: address.ip(),
        ports: options
            .ports
            .as_ref()
            .map_or_else(String::new, |ports| format!(", FI_WEIR_PORTS={}-{}", ports.start(), ports.end())),
        error,
    })
}

/// The place and the datagram in a message.
fn split(message: &[u8]) -> Option<(OfiPlace, &[u8])> {
    let (&length, rest) = message.split_first()?;
    let (part, datagram) = rest.split_at_checked(length.into())?;
    Some((OfiPlace::from_part(part)?, datagram))
}

impl DatagramNetwork for OfiNetwork {
    type Place = OfiPlace;

    fn kind(&self) -> LinkKind {
        LinkKind::Ofi
    }

    fn part(&self) -> Vec<u8> {
        self.own.part().to_vec()
    }

    fn place_of(&self, part: &[u8]) -> Option<OfiPlace> {
        let place = OfiPlace::from_part(part)?;
        place.name(self.endpoint.name()).map(|_| place)
    }

    fn largest_datagram(&self) -> usize {
        self.endpoint.longest_message() - 1 - MOST_PART_BYTES
    }

    fn is_lossless(&self) -> bool {
        !self.has_proxy
    }

    fn is_busy_for_one_place(&self) -> bool {
        self.has_proxy
    }

    fn has_failed(&self, to: OfiPlace) -> bool {
        self.targets.get(&to).is_some_and(|target| target.has_failed)
    }

    /// The place of another endpoint of that host, if names are those of sockets. Elsewhere nobody knows.
    fn is_same_host(&self, one: OfiPlace, other: OfiPlace) -> bool {
        one == other || one.ip().is_some_and(|ip| other.ip() == Some(ip))
    }

    fn domain(&self) -> Option<u64> {
        let ip = self.endpoint.name().ip()?;
        domain_of((self.endpoint.provider(), ip))
    }

    fn buffered_datagrams(&self) -> Option<u64> {
        Some(self.endpoint.posted_receives() as u64 * GRANTED.0 / GRANTED.1)
    }

    fn window(&self) -> u32 {
        WINDOW
    }

    fn send(&mut self, to: OfiPlace, bytes: &[u8], segment_bytes: usize, _in_fragments: bool) -> usize {
        let mut taken = 0;
        for datagram in bytes.chunks(segment_bytes) {
            let Target { address, has_failed } = self.target(to);
            let sent = match address {
                Some(address) if !has_failed => self.endpoint.send(address, &self.head, datagram),
                _ => Sent::Failed,
            };
            match sent {
                Sent::Taken => {
                    self.traffic.sent += 1;
                    self.traffic.sent_bytes += datagram.len() as u64;
                }
                Sent::Busy => {
                    self.traffic.busy += 1;
                    break;
                }
                // It is lost with all that follows: the peer is reported as ended.
                Sent::Failed => self.note_failure(to),
            }
            taken += datagram.len();
        }
        taken
    }

    fn receive(&mut self, batch: &mut Batch<OfiPlace>) {
        let now = self.now();
        if let Some(witness) = &mut self.witness {
            witness.polled(now);
        }
        let longest = self.endpoint.longest_message();
        let (traffic, Batch { bytes, datagrams }) = (&mut self.traffic, batch);
        let mut at = 0;
        self.has_more = self.endpoint.receive(&mut |message| {
            let Some((from, datagram)) = split(message) else {
                traffic.malformed += 1;
                return true;
            };
            traffic.received += 1;
            traffic.received_bytes += datagram.len() as u64;
            let range = at..at + datagram.len();
            copy_slice(datagram, &mut bytes[range.clone()]);
            at = range.end;
            datagrams.push(Received { from, range, marked: false });
            at + longest <= bytes.len() && datagrams.len() < BATCH_DATAGRAMS
        });
        if datagrams.is_empty()
            && let Some(witness) = &mut self.witness
        {
            witness.drained(now);
        }
        self.take_failures();
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Without a look at the core: after one that was full, there may be more. Nothing else is known.
    fn may_have_arrivals(&self) -> bool {
        self.has_more
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn host_time_at(&self, now: Instant) -> Instant {
        self.clock.host_time_at(now)
    }

    fn wait(&mut self, until: Instant) {
        if !self.endpoint.may_wait() {
            return;
        }
        let bell = &self.bell.0;
        let descriptor = self.endpoint.wait_descriptor();
        let ns = until.since_ns(self.now());
        let ns = if descriptor.is_some() { ns } else { ns.min(LOOK_NS) };
        let timeout = Timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ };
        let other = descriptor.unwrap_or(bell.as_fd());
        let mut descriptors =
            [PollFd::new(bell, PollFlags::IN), PollFd::from_borrowed_fd(other, PollFlags::IN)];
        let _ = poll(&mut descriptors, Some(&timeout)); // a signal ends the wait early
        bell.clear();
    }

    fn next_arrival(&self) -> Option<Instant> {
        // Nothing rings here, so the endpoint looks.
        (self.owners_bell.is_some() && self.watch.is_none()).then(|| self.now().plus_ns(LOOK_NS))
    }

    fn bell(&self) -> Arc<dyn Bell> {
        Arc::clone(&self.bell) as Arc<dyn Bell>
    }

    fn ring_on_arrival(&mut self, bell: &Arc<dyn Bell>) -> bool {
        let start = |descriptor| SocketWatch::start([descriptor], Arc::clone(bell)).ok();
        self.watch = self.endpoint.wait_descriptor().and_then(start);
        self.owners_bell = Some(Arc::clone(bell));
        true
    }

    fn arm(&mut self) {
        if let Some(watch) = &self.watch {
            // The thread knows the descriptor only, which is silent about what the core has taken already.
            match (self.endpoint.may_wait(), &self.owners_bell) {
                (false, Some(bell)) => bell.ring(),
                _ => watch.arm(),
            }
        }
    }

    #[inline]
    fn heard(&mut self, place: OfiPlace) {
        if let Some(witness) = &mut self.witness
            && let Some(peer) = place.witness(self.endpoint.name())
        {
            witness.heard(peer);
        }
    }

    fn memory(&mut self) -> Option<&mut dyn NetworkMemory<OfiPlace>> {
        self.endpoint.memory()?;
        Some(self)
    }

    fn large(&mut self) -> Option<&mut dyn LargeMessages<OfiPlace>> {
        if self.longest_large > 0 { Some(self) } else { None }
    }

    /// The core knows best: a message that it cannot deliver is the end. Where names are those of sockets, the kernel of
    /// the peer is asked too. Elsewhere a silent peer lives, as far as anybody knows.
    fn standing(&mut self, place: OfiPlace) -> Standing {
        let now = self.now();
        if self.is_closed || self.targets.get(&place).is_some_and(|target| target.has_failed) {
            return Standing::Ended;
        }
        match (&mut self.witness, place.witness(self.endpoint.name())) {
            (Some(witness), Some(peer)) => witness.standing(peer, now),
            _ => Standing::Lives,
        }
    }
}

/// Ends a wait at the core.
#[derive(Debug)]
struct NetworkBell(EventDescriptor);

impl Bell for NetworkBell {
    fn ring(&self) {
        self.0.ring();
    }
}
