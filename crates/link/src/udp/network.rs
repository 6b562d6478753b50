//! The socket of an endpoint ([`UdpNetwork`]). A network that takes nothing now is busy. Every other failure is the loss of
//! a datagram: whoever sent it sends it again.

use super::interfaces::{Interface, all, choose};
use super::options::{UdpError, UdpOptions};
use super::ports::{self, Sockets};
use super::witness::Witness;
use crate::datagram::network::{BATCH_DATAGRAMS, Batch, DatagramNetwork, Received};
use crate::event_descriptor::EventDescriptor;
use crate::socket_watch::SocketWatch;
use crate::{Bell, LinkKind};
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use weir_proto::Instant;
use weir_proto::reliability::Standing;

/// Room for what the kernel joins of one sender. Unit: bytes.
const JOINED_BYTES: usize = 64 << 10;
/// Joined datagrams of one look.
const JOINED: usize = crate::datagram::network::BATCH_BYTES / JOINED_BYTES;
/// The MTU of an interface that does not tell its own.
const USUAL_MTU: usize = 1500;
/// A larger MTU is not used. Copies that wait for their acknowledgement have room for a whole datagram.
const LARGEST_MTU: usize = 9000;
/// The smallest MTU of IPv6. Source: RFC 8200, section 5. Unit: bytes.
const SMALLEST_MTU: usize = 1280;

/// Counts of a socket, for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpCounters {
    /// Datagrams that the kernel has taken.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Datagrams that the kernel has refused for good, such as those without a route.
    pub failed: u64,
    /// Calls in which the kernel was busy.
    pub busy: u64,
    /// Datagrams that have arrived.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Looks at the socket.
    pub looks: u64,
}

/// See the head of this file.
#[derive(Debug)]
pub struct UdpNetwork {
    socket: UdpSocket,
    witness: Witness,
    /// Rings the bell of an endpoint that sleeps elsewhere.
    watch: Option<SocketWatch>,
    state: UdpSocketState,
    local: SocketAddr,
    interface: Interface,
    /// The largest datagram without a header. Unit: bytes.
    datagram_bytes: usize,
    buffer_bytes: usize,
    /// The last look found as much as it could.
    has_more: bool,
    bell: Arc<SocketBell>,
    origin: std::time::Instant,
    counters: UdpCounters,
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
        let local = socket.local_addr().map_err(failed)?;
        // The kernel grants less where its limit is lower. What it grants is asked for below.
        let _ = state.set_recv_buffer_size((&socket).into(), options.buffer_bytes);
        let buffer_bytes = state.recv_buffer_size((&socket).into()).map_err(failed)?;
        let mut witness = Witness::new(listener).map_err(failed)?;
        witness.set_limit(options.limit_ns);
        let bell = EventDescriptor::open().map_err(failed)?;
        let header_bytes = if local.is_ipv4() { 28 } else { 48 };
        let mtu = mtu_of(&interface).unwrap_or(USUAL_MTU).clamp(SMALLEST_MTU, LARGEST_MTU);
        Ok(UdpNetwork {
            socket,
            witness,
            watch: None,
            state,
            local,
            interface,
            datagram_bytes: mtu - header_bytes,
            buffer_bytes,
            has_more: false,
            bell: Arc::new(SocketBell(bell)),
            origin: std::time::Instant::now(),
            counters: UdpCounters::default(),
        })
    }

    /// The socket. It is readable when a datagram waits.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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

    /// Counts.
    pub fn counters(&self) -> UdpCounters {
        self.counters
    }

    /// Sends datagrams of one length in one call.
    fn send_joined(&mut self, to: SocketAddr, bytes: &[u8], segment_bytes: usize) -> io::Result<()> {
        let transmit = Transmit {
            destination: to,
            ecn: Some(EcnCodepoint::Ect0),
            contents: bytes,
            segment_size: Some(segment_bytes),
            src_ip: None,
        };
        self.state.try_send((&self.socket).into(), &transmit)
    }
}

/// The MTU of an interface, as the route to a neighbour has it.
fn mtu_of(interface: &Interface) -> Option<usize> {
    // A socket without a connection does not know it. To connect sends nothing.
    let socket = UdpSocket::bind(interface.place()).ok()?;
    let mut place = interface.place();
    place.set_port(9);
    let found = interface.neighbours().find_map(|address| {
        place.set_ip(address);
        socket.connect(place).ok()?;
        match address {
            IpAddr::V4(_) => rustix::net::sockopt::ip_mtu(&socket).ok(),
            IpAddr::V6(_) => rustix::net::sockopt::ipv6_mtu(&socket).ok(),
        }
    });
    found.map(|mtu| mtu as usize)
}

/// Whether the kernel may take the same datagrams later.
fn is_busy(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || Errno::from_io_error(error) == Some(Errno::NOBUFS)
}

impl DatagramNetwork for UdpNetwork {
    type Place = SocketAddr;

    fn kind(&self) -> LinkKind {
        LinkKind::Udp
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

    fn largest_datagram(&self) -> usize {
        self.datagram_bytes
    }

    fn send(&mut self, to: SocketAddr, bytes: &[u8], segment_bytes: usize) -> usize {
        let mut taken = 0;
        while taken < bytes.len() {
            let most = segment_bytes * self.state.max_gso_segments();
            let joined = &bytes[taken..bytes.len().min(taken + most)];
            let datagrams = joined.len().div_ceil(segment_bytes) as u64;
            match self.send_joined(to, joined, segment_bytes) {
                Ok(()) => {
                    self.counters.sent += datagrams;
                    self.counters.sent_bytes += joined.len() as u64;
                }
                Err(error) if is_busy(&error) => {
                    self.counters.busy += 1;
                    break;
                }
                // The route or the adapter does not cut datagrams any more: one by one.
                Err(_) if datagrams as usize > self.state.max_gso_segments() => continue,
                Err(_) => self.counters.failed += datagrams,
            }
            taken += joined.len();
        }
        taken
    }

    fn receive(&mut self, batch: &mut Batch<SocketAddr>) {
        self.counters.looks += 1;
        self.witness.polled(self.now());
        let Batch { bytes, datagrams } = batch;
        let mut metas = [RecvMeta::default(); JOINED];
        let mut buffers = bytes.chunks_exact_mut(JOINED_BYTES).map(IoSliceMut::new);
        let mut buffers: [_; JOINED] = std::array::from_fn(|_| buffers.next().expect("the bytes of a batch"));
        let arrived = self.state.recv((&self.socket).into(), &mut buffers, &mut metas);
        // Errors are reports on earlier sends, whose datagrams are lost.
        let arrived = arrived.unwrap_or(0);
        self.has_more = arrived == JOINED;
        for (nth, meta) in metas[..arrived].iter().enumerate() {
            let marked = meta.ecn == Some(EcnCodepoint::Ce);
            let (begin, end) = (nth * JOINED_BYTES, nth * JOINED_BYTES + meta.len);
            for at in (begin..end).step_by(meta.stride.max(1)) {
                let range = at..end.min(at + meta.stride);
                datagrams.push(Received { from: meta.addr, range, marked });
            }
            self.counters.received_bytes += meta.len as u64;
        }
        debug_assert!(datagrams.len() <= BATCH_DATAGRAMS, "{} datagrams", datagrams.len());
        self.counters.received += datagrams.len() as u64;
    }

    /// Without a system call: after a look that was full, there may be more. Nothing else is known.
    fn may_have_arrivals(&self) -> bool {
        self.has_more
    }

    fn now(&self) -> Instant {
        Instant(self.origin.elapsed().as_nanos() as u64)
    }

    fn wait(&mut self, until: Instant) {
        let ns = until.since_ns(self.now());
        let timeout = Timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ };
        let bell = &self.bell.0;
        let mut descriptors = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(bell, PollFlags::IN)];
        let _ = poll(&mut descriptors, Some(&timeout)); // a signal ends the wait early
        bell.clear();
    }

    fn bell(&self) -> Arc<dyn Bell> {
        Arc::clone(&self.bell) as Arc<dyn Bell>
    }

    fn ring_on_arrival(&mut self, bell: &Arc<dyn Bell>) -> bool {
        self.watch = SocketWatch::start(self.socket.as_fd(), Arc::clone(bell)).ok();
        self.watch.is_some()
    }

    fn arm(&mut self) {
        if let Some(watch) = &self.watch {
            watch.arm();
        }
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
