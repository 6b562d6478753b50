//! The socket of an endpoint ([`UdpNetwork`]). A network that takes nothing now is busy. Every other failure is the loss of
//! a datagram: whoever sent it sends it again.

use super::calls::{self, Found, Looker, Nothing};
use super::connected::Connected;
use super::filter;
use super::interfaces::{Interface, all, choose};
use super::mtu::{LARGEST_MTU, LongestDatagram, longest_datagram_at, longest_datagram_now};
use super::options::{UdpError, UdpOptions};
use super::partner::{Change, Choice};
use super::ports::{self, Sockets};
use super::turns::{Turns, Which};
use super::witness::Witness;
use crate::datagram::network::{
    BATCH_DATAGRAMS, Batch, Clock, DatagramNetwork, Received, Traffic, domain_of,
};
use crate::event_descriptor::EventDescriptor;
use crate::socket_watch::SocketWatch;
use crate::{Bell, LinkKind};
use nix::sys::socket::sockopt::Ipv6DontFrag;
use quinn_udp::{EcnCodepoint, Transmit, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use weir_proto::Instant;
use weir_proto::reliability::{ReliabilityConfig, Standing};

/// Room for what the kernel joins of one sender. Unit: bytes.
const JOINED_BYTES: usize = 64 << 10;
/// Joined datagrams of one look.
const JOINED: usize = crate::datagram::network::BATCH_BYTES / JOINED_BYTES;
/// A look ends when it has found so much. Its sender may wait for the acknowledgement. Unit: bytes.
const LOOK_BYTES: usize = 16 << 10;
/// The time after which the kernel is asked again to cut datagrams.
const CUTS_AGAIN_NS: u64 = 1_000_000_000;
/// The part of the receive buffer that peers are granted. The kernel can keep back a fourth of what was read already
/// (`udp_rmem_release`), and datagrams without bundles need room too.
const GRANTED: (u64, u64) = (5, 8);

/// What the kernel charges for a datagram that waits: its memory, a power of two with what the kernel adds at both ends, and
/// its descriptor. Unit: bytes.
fn charge_bytes(datagram_bytes: u64) -> u64 {
    (datagram_bytes + 448).next_power_of_two() + 264
}

/// See the head of this file.
#[derive(Debug)]
pub struct UdpNetwork {
    socket: UdpSocket,
    /// `None`: there is none, by setting or because the kernel has refused it.
    second: Option<Connected>,
    choice: Choice,
    turns: Turns,
    witness: Witness,
    /// Rings the bell of an endpoint that sleeps elsewhere.
    watch: Option<SocketWatch>,
    state: UdpSocketState,
    local: SocketAddr,
    interface: Interface,
    longest: LongestDatagram,
    buffer_bytes: usize,
    /// The kernel cuts the bytes of a call into datagrams, as far as is known at the start.
    cuts: bool,
    /// When the kernel is asked again, after it has refused to.
    cuts_again_at: Instant,
    looker: Looker,
    /// The last look found as much as it could.
    has_more: bool,
    /// The last look found nothing.
    was_empty: bool,
    /// The last look found something at the socket that not every look asks, and nothing of that is authentic as far as is
    /// known.
    other_had: bool,
    bell: Arc<SocketBell>,
    clock: Clock,
    /// The time when the clock was read last.
    read_at: Cell<Instant>,
    traffic: Traffic,
}

impl UdpNetwork {
    /// Opens a socket.
    ///
    /// # Errors
    /// [`UdpError`].
    pub fn open(options: &UdpOptions) -> Result<UdpNetwork, UdpError> {
        let list = all()?;
        let interface = choose(&list, options.net.as_deref())?.clone();
        let failed =
            |error| UdpError::Socket { address: interface.address, interface: interface.name.clone(), error };
        let Sockets { datagrams: socket, witness: listener } =
            ports::bind(interface.place(), options.ports.as_ref(), failed)?;
        let state = UdpSocketState::new((&socket).into()).map_err(failed)?;
        let cuts = state.max_gso_segments() > 1;
        let local = socket.local_addr().map_err(failed)?;
        calls::plain(&socket, local.is_ipv4());
        // The kernel grants less where its limits are lower. What it grants for receiving is asked for below.
        let _ = state.set_recv_buffer_size((&socket).into(), options.buffer_bytes);
        let _ = state.set_send_buffer_size((&socket).into(), options.buffer_bytes);
        let buffer_bytes = state.recv_buffer_size((&socket).into()).map_err(failed)?;
        let witness = Witness::new(listener, options.limit_ns).map_err(failed)?;
        let bell = EventDescriptor::open().map_err(failed)?;
        // Everything works without it, so it gets the last descriptor.
        let second = || Connected::open(local, options.buffer_bytes, buffer_bytes).ok();
        let second = if options.connects { second() } else { None };
        let longest = LongestDatagram::new(longest_datagram_at(&interface));
        Ok(UdpNetwork {
            socket,
            second,
            choice: Choice::new(),
            turns: Turns::new(),
            witness,
            watch: None,
            state,
            local,
            interface,
            longest,
            buffer_bytes,
            cuts,
            cuts_again_at: Instant(0),
            looker: Looker::new(local.is_ipv4()),
            has_more: false,
            was_empty: true,
            other_had: false,
            bell: Arc::new(SocketBell(bell)),
            clock: Clock::start(),
            read_at: Cell::new(Instant(0)),
            traffic: Traffic::default(),
        })
    }

    /// The address and the port of the socket.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Name of the interface.
    pub fn interface(&self) -> &str {
        &self.interface.name
    }

    /// The receive buffer that the kernel has granted, in its own count. It charges more for a datagram than its length. Unit:
    /// bytes.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    fn sockets(&self) -> impl Iterator<Item = &UdpSocket> {
        std::iter::once(&self.socket).chain(self.second.as_ref().map(Connected::socket))
    }

    /// The peer that the second socket is connected to.
    pub fn partner(&self) -> Option<SocketAddr> {
        self.choice.partner()
    }

    /// Connects the second socket as the choice of the partner says.
    #[cold]
    fn change(&mut self, change: Change) {
        let Some(second) = &mut self.second else { return self.choice.changed(change, false) };
        let made = match change {
            Change::Connect(peer) => second.connect(&self.socket, peer),
            Change::Disconnect => second.disconnect(),
        };
        self.choice.changed(change, made.is_ok());
        if second.has_port() {
            // If the kernel has refused, something can arrive there still.
            self.turns.changed(made.is_err() || self.choice.partner().is_some());
        }
    }

    /// Sends datagrams of one length in one call, through the second socket if that is connected to their receiver.
    fn send_joined(&mut self, to: SocketAddr, bytes: &[u8], segment_bytes: usize) -> io::Result<()> {
        if self.choice.partner() == Some(to)
            && let Some(second) = &self.second
        {
            match second.send(bytes, segment_bytes) {
                Ok(()) => {
                    self.traffic.connected += bytes.len().div_ceil(segment_bytes) as u64;
                    return Ok(());
                }
                Err(error) if calls::is_busy(&error) => return Err(error),
                // It is the error of an earlier datagram, or the first socket finds out more.
                Err(_) => {}
            }
        }
        if bytes.len() <= segment_bytes {
            return calls::send_one(&self.socket, &to, bytes);
        }
        let transmit = Transmit {
            destination: to,
            ecn: Some(EcnCodepoint::Ect0),
            contents: bytes,
            segment_size: Some(segment_bytes),
            src_ip: None,
        };
        self.state.try_send((&self.socket).into(), &transmit)
    }

    /// Asks the kernel again to cut datagrams. It has refused for a route, an adapter or an MTU that may have changed since.
    fn cut_again(&mut self) {
        if self.cuts && self.state.max_gso_segments() == 1 && self.now() >= self.cuts_again_at {
            self.cuts_again_at = self.now().plus_ns(CUTS_AGAIN_NS);
            if let Ok(state) = UdpSocketState::new((&self.socket).into()) {
                self.state = state;
                calls::plain(&self.socket, self.local.is_ipv4());
            }
        }
    }

    /// Sends a datagram that may be cut on its way.
    fn send_in_fragments(&self, to: SocketAddr, bytes: &[u8]) -> io::Result<()> {
        self.allow_fragments(true)?;
        let sent = calls::send_one(&self.socket, &to, bytes);
        self.allow_fragments(false)?;
        sent
    }

    fn allow_fragments(&self, allow: bool) -> io::Result<()> {
        if self.local.is_ipv4() {
            let rule = if allow { Ipv4PathMtuDiscovery::DONT } else { Ipv4PathMtuDiscovery::PROBE };
            return Ok(sockopt::set_ip_mtu_discover(&self.socket, rule)?);
        }
        let rule = if allow { Ipv6PathMtuDiscovery::DONT } else { Ipv6PathMtuDiscovery::PROBE };
        sockopt::set_ipv6_mtu_discover(&self.socket, rule)?;
        Ok(nix::sys::socket::setsockopt(&self.socket, Ipv6DontFrag, &!allow)?)
    }

    /// Looks at the MTU of the interface again. Returns whether datagrams of `bytes` are too large.
    fn shrink(&mut self, bytes: usize) -> bool {
        self.longest.shrink(self.now(), longest_datagram_now(&self.interface));
        bytes > self.longest.bytes()
    }

    /// Looks whether the MTU of the interface has grown again.
    fn grow(&mut self) {
        if self.longest.has_shrunk() {
            self.longest.grow(self.now(), || longest_datagram_now(&self.interface));
        }
    }
}

/// The most memory of an endpoint with so many peers for datagrams that have arrived, if its host has such an interface as
/// this one has for `net`, the value of `FI_WEIR_NET`. Without one: with the longest datagrams. Unit: bytes.
pub fn most_arrived_bytes(net: Option<&str>, peers: u64) -> u64 {
    let interface = all().and_then(|list| choose(&list, net).cloned());
    let datagram_bytes = interface.map_or(LARGEST_MTU, |interface| longest_datagram_at(&interface));
    let window = ReliabilityConfig::default().window_bundles;
    crate::datagram::most_arrived_bytes::<SocketAddr>(datagram_bytes, window, peers)
}

impl DatagramNetwork for UdpNetwork {
    type Place = SocketAddr;

    fn kind(&self) -> LinkKind {
        LinkKind::Udp
    }

    fn interface(&self) -> Option<&str> {
        Some(&self.interface.name)
    }

    fn part(&self) -> Vec<u8> {
        let port = self.local.port().to_be_bytes();
        match self.local.ip() {
            IpAddr::V4(address) => [&[4][..], &address.octets(), &port].concat(),
            IpAddr::V6(address) => [&[6][..], &address.octets(), &port].concat(),
        }
    }

    fn place_of(&self, part: &[u8]) -> Option<SocketAddr> {
        let (address, port): (IpAddr, _) = match part {
            [4, rest @ ..] => {
                let (octets, port) = rest.split_first_chunk::<4>()?;
                (Ipv4Addr::from(*octets).into(), port)
            }
            [6, rest @ ..] => {
                let (octets, port) = rest.split_first_chunk::<16>()?;
                (Ipv6Addr::from(*octets).into(), port)
            }
            _ => return None,
        };
        let port = u16::from_be_bytes(port.try_into().ok()?);
        let place = match address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                SocketAddrV6::new(v6, port, 0, self.interface.scope).into()
            }
            _ => SocketAddr::new(address, port),
        };
        let is_sendable = port > 0 && !address.is_unspecified() && !address.is_multicast();
        // Loopback of another host leads to ourselves.
        let is_reachable = address.is_ipv4() == self.local.is_ipv4()
            && (!address.is_loopback() || self.local.ip().is_loopback());
        (is_sendable && is_reachable).then_some(place)
    }

    fn is_same_host(&self, one: SocketAddr, other: SocketAddr) -> bool {
        one.ip() == other.ip()
    }

    fn largest_datagram(&self) -> usize {
        self.longest.bytes()
    }

    fn carries_contents(&self) -> bool {
        true
    }

    fn buffered_datagrams(&self) -> Option<u64> {
        let granted_bytes = self.buffer_bytes as u64 / GRANTED.1 * GRANTED.0;
        Some(granted_bytes / charge_bytes(self.longest.bytes() as u64))
    }

    fn send(&mut self, to: SocketAddr, bytes: &[u8], segment_bytes: usize, in_fragments: bool) -> usize {
        let mut taken = 0;
        self.cut_again();
        self.grow();
        if let Some(change) = self.choice.sent(to, !in_fragments) {
            self.change(change);
        }
        while taken < bytes.len() {
            let most = if in_fragments { 1 } else { self.state.max_gso_segments() };
            let joined = &bytes[taken..bytes.len().min(taken + segment_bytes * most)];
            let datagrams = joined.len().div_ceil(segment_bytes) as u64;
            let sent = if in_fragments {
                self.send_in_fragments(to, joined)
            } else {
                self.send_joined(to, joined, segment_bytes)
            };
            match sent {
                Ok(()) => {
                    self.traffic.sent += datagrams;
                    self.traffic.sent_bytes += joined.len() as u64;
                }
                Err(error) if calls::is_busy(&error) => {
                    self.traffic.busy += 1;
                    break;
                }
                // The interface has a smaller MTU than before.
                Err(error) if !in_fragments && calls::is_too_large(&error) && self.shrink(segment_bytes) => {
                    return taken + self.send(to, &bytes[taken..], segment_bytes, true);
                }
                // The route or the adapter does not cut datagrams any more: one by one.
                Err(_) if datagrams as usize > self.state.max_gso_segments() => continue,
                Err(_) => self.traffic.failed += datagrams,
            }
            taken += joined.len();
        }
        taken
    }

    fn admit_only(&mut self, at: usize, verification: u32) {
        for socket in self.sockets() {
            let _ = filter::attach(socket, at, verification); // the link looks too
        }
    }

    fn receive(&mut self, batch: &mut Batch<SocketAddr>) {
        let now = self.read_at.get();
        self.witness.polled(now);
        let Batch { bytes, datagrams } = batch;
        let was_empty = std::mem::replace(&mut self.was_empty, true);
        self.has_more = false;
        let mut found_bytes = 0;
        self.other_had = false;
        let (mut which, mut next) = self.turns.begin(now);
        // Whether it has looked at all sockets, once this one is empty.
        let looks_at_all = next.is_some() || !self.second.as_ref().is_some_and(Connected::has_port);
        for (nth, buffer) in bytes.chunks_exact_mut(JOINED_BYTES).enumerate() {
            let found = loop {
                self.traffic.looks += 1;
                let found = match (which, &mut self.second) {
                    (Which::Second, Some(second)) => {
                        let found = self.looker.look(second.socket(), second.only_sender(), buffer);
                        if matches!(found, Err(Nothing::Empty)) {
                            second.note_empty(now);
                        }
                        found.ok()
                    }
                    _ => self.looker.look(&self.socket, None, buffer).ok(),
                };
                self.other_had |= self.turns.asked(which, found.is_some(), now);
                let other = if found.is_none() { next.take() } else { None };
                let Some(other) = other else { break found };
                which = other;
            };
            let Some(found) = found else {
                if looks_at_all {
                    self.witness.drained(now);
                }
                break;
            };
            (self.was_empty, self.has_more) = (false, nth + 1 == JOINED);
            let Found { from, bytes, segment_bytes, marked } = found;
            let (begin, end) = (nth * JOINED_BYTES, nth * JOINED_BYTES + bytes);
            for at in (begin..end).step_by(segment_bytes.max(1)) {
                datagrams.push(Received { from, range: at..end.min(at + segment_bytes), marked });
            }
            self.traffic.received_bytes += bytes as u64;
            found_bytes += bytes;
            self.has_more |= found_bytes >= LOOK_BYTES;
            // After an empty look somebody waits for this one: what comes behind it, if anything, waits for the next look.
            if (was_empty && nth == 0) || self.has_more {
                break;
            }
        }
        debug_assert!(datagrams.len() <= BATCH_DATAGRAMS, "{} datagrams", datagrams.len());
        self.traffic.received += datagrams.len() as u64;
    }

    /// Only peers keep a socket busy, and only they end a partner.
    #[inline]
    fn authenticated(&mut self, place: SocketAddr) {
        if self.other_had && self.choice.partner() != Some(place) {
            self.other_had = false;
            self.turns.other_is_busy(self.read_at.get());
            if let Some(change) = self.choice.others_arrived() {
                self.change(change);
            }
        }
    }

    /// The network namespace and the local address.
    fn domain(&self) -> Option<u64> {
        domain_of(self.local.ip())
    }

    fn traffic(&self) -> Traffic {
        let dropped = self.sockets().map(filter::dropped).sum();
        Traffic { dropped, ..self.traffic }
    }

    /// Without a system call: after a look that was full, there may be more. Nothing else is known.
    fn may_have_arrivals(&self) -> bool {
        self.has_more
    }

    fn now(&self) -> Instant {
        let now = self.clock.now();
        self.read_at.set(now);
        now
    }

    fn host_time_at(&self, now: Instant) -> Instant {
        self.clock.host_time_at(now)
    }

    fn wait(&mut self, until: Instant) {
        let ns = until.since_ns(self.now());
        let timeout = Timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ };
        let bell = self.bell.0.as_fd();
        let second = self.second.as_ref().filter(|second| second.has_port()).map(Connected::descriptor);
        let mut descriptors = [self.socket.as_fd(), bell, second.unwrap_or(bell)]
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        let _ = poll(&mut descriptors, Some(&timeout)); // a signal ends the wait early
        self.bell.0.clear();
        self.turns.ask_both();
    }

    fn bell(&self) -> Arc<dyn Bell> {
        Arc::clone(&self.bell) as Arc<dyn Bell>
    }

    fn ring_on_arrival(&mut self, bell: &Arc<dyn Bell>) -> bool {
        let second = self.second.as_ref().map(Connected::descriptor);
        let sockets = std::iter::once(self.socket.as_fd()).chain(second);
        self.watch = SocketWatch::start(sockets, Arc::clone(bell)).ok();
        self.watch.is_some()
    }

    fn arm(&mut self) {
        self.turns.ask_both();
        if let Some(watch) = &self.watch {
            watch.arm();
        }
    }

    #[inline]
    fn is_quiet(&self) -> bool {
        self.watch.as_ref().is_some_and(SocketWatch::is_armed)
    }

    #[inline]
    fn heard(&mut self, place: SocketAddr) {
        self.witness.heard(place);
    }

    fn standing(&mut self, place: SocketAddr) -> Standing {
        let now = self.now();
        self.witness.standing(place, now)
    }
}

/// Ends a wait at the socket.
#[derive(Debug)]
struct SocketBell(EventDescriptor);

impl Bell for SocketBell {
    fn ring(&self) {
        self.0.ring();
    }
}
