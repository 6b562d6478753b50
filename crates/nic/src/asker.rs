//! Asks the kernel programs of a host, and sends again until they answer. The programs cannot: they act on frames only.

use crate::format::{MAX_BYTES, Packet, Way, kind};
use crate::reply_slot::{ReplySlot, ReplySlots};
use crate::{Domain, NicError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time until a request is sent again, at first. It doubles.
pub(crate) const FIRST_TIMEOUT: Duration = Duration::from_millis(2);
/// Bound of this time.
pub(crate) const LONGEST_TIMEOUT: Duration = Duration::from_millis(100);
/// Looks at the socket between two looks at the clock.
const LOOKS: u32 = 32;

/// How long to wait, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long the host may stay silent.
    pub silence: Duration,
    /// How long to look again and again before sleeping. *Price:* processor time.
    pub spin: Duration,
}

impl Default for Patience {
    /// 5 s and 20 us.
    fn default() -> Patience {
        Patience { silence: Duration::from_secs(5), spin: Duration::from_micros(20) }
    }
}

/// A request under way, and what its host has said.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    packet: Packet,
    /// Travels behind it. Most requests have none.
    vector: Vec<u64>,
    sent: Instant,
    timeout: Duration,
}

/// Who asks: a socket, a random name, and numbers of requests.
#[derive(Debug)]
pub(crate) struct Asker {
    socket: UdpSocket,
    domain: Domain,
    way: Way,
    /// The host that we ask, which is not the one that receives if that sends packets back to us.
    host: Ipv4Addr,
    relay_bit: u8,
    name: u64,
    number: u64,
    /// Where replies come while we spin.
    slot: Option<ReplySlot>,
}

impl Asker {
    /// Asks the host at `at`. `relay`: a host that sends our packets back to the own one, if that is the one to ask.
    ///
    /// # Errors
    /// [`NicError::System`].
    pub fn new(domain: &Domain, at: SocketAddrV4, relay: Option<Ipv4Addr>) -> Result<Asker, NicError> {
        let receiver = relay.unwrap_or(*at.ip());
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(NicError::system("bind"))?;
        socket.connect((receiver, at.port())).map_err(NicError::system("connect"))?;
        socket.set_nonblocking(true).map_err(NicError::system("fcntl"))?;
        let SocketAddr::V4(own) = socket.local_addr().map_err(NicError::system("getsockname"))? else {
            unreachable!("the socket was bound to an IPv4 address");
        };
        Ok(Asker {
            socket,
            domain: *domain,
            way: Way { from: *own.ip(), to: receiver },
            host: *at.ip(),
            relay_bit: if relay.is_some() { kind::RELAY } else { 0 },
            name: RandomState::new().build_hasher().finish(),
            number: 0,
            slot: None,
        })
    }

    /// The asker with a reply slot, if one is free. Its replies have no vectors then, and are one for each request.
    pub fn with_slot(mut self, slots: Option<&Arc<ReplySlots>>) -> Asker {
        self.slot = slots.and_then(|slots| slots.take(self.name));
        self.name = self.slot.as_ref().map_or(self.name, ReplySlot::name);
        self
    }

    /// The host that we ask.
    pub fn host(&self) -> Ipv4Addr {
        self.host
    }

    /// Sends a request with a vector behind it. Asker and number are filled in.
    ///
    /// # Errors
    /// As [`Asker::wait`].
    pub fn send(&mut self, packet: Packet, vector: Vec<u64>) -> Result<Request, NicError> {
        self.number += 1;
        let kind = packet.kind | self.relay_bit;
        let packet = Packet { kind, asker: self.name, number: self.number, ..packet };
        let request = Request { packet, vector, sent: Instant::now(), timeout: FIRST_TIMEOUT };
        if let Some(slot) = &self.slot {
            slot.expect(self.number);
        }
        self.transmit(&request)?;
        Ok(request)
    }

    fn transmit(&self, request: &Request) -> Result<(), NicError> {
        let sent = if request.vector.is_empty() {
            self.socket.send(&request.packet.to_bytes(&self.domain, self.way))
        } else {
            let (bytes, length) = request.packet.to_frame(&self.domain, self.way, &request.vector);
            self.socket.send(&bytes[..length])
        };
        match sent {
            Ok(_) => Ok(()),
            // A full queue: it is sent again after the timeout, as if it were lost.
            Err(why) if why.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(why) if why.kind() == ErrorKind::ConnectionRefused => Err(self.refused()),
            Err(why) => Err(NicError::System { what: "send", why }),
        }
    }

    fn refused(&self) -> NicError {
        NicError::Refused { host: self.way.to }
    }

    /// The answer to a request with its vector, if it is there.
    ///
    /// # Errors
    /// As [`Asker::wait`].
    pub fn look(&self, request: &Request) -> Result<Option<(Packet, Vec<u64>)>, NicError> {
        // One byte more, so that a longer datagram is not taken for a cut one.
        let mut bytes = [0; MAX_BYTES + 1];
        loop {
            let length = match self.socket.recv(&mut bytes) {
                Ok(length) => length,
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(why) if why.kind() == ErrorKind::ConnectionRefused => return Err(self.refused()),
                Err(why) => return Err(NicError::System { what: "recv", why }),
            };
            let answers = |(reply, _): &(Packet, Vec<u64>)| {
                let is_reply = reply.kind & !kind::RELAYED == kind::REPLY;
                is_reply && (reply.asker, reply.number) == (self.name, request.packet.number)
            };
            // Others are answers to requests that were sent twice, or forged.
            let reply = Packet::of_frame(&bytes[..length], &self.domain, self.way.reversed());
            if let Some(reply) = reply.filter(answers) {
                return Ok(Some(reply));
            }
        }
    }

    /// The answer in memory that a reply slot gives.
    fn in_slot(&self, request: &Request, reply: Option<(u8, u64)>) -> Option<(Packet, Vec<u64>)> {
        let (status, operand) = reply?;
        Some((Packet { kind: kind::REPLY, status, operand, ..request.packet }, Vec::new()))
    }

    /// Lets answers come to the socket from here on. Returns the one that is in memory already.
    fn leave_slot(&self, request: &Request) -> Option<(Packet, Vec<u64>)> {
        let slot = self.slot.as_ref()?;
        self.in_slot(request, slot.leave(request.packet.number))
    }

    /// As [`Asker::look`], where it costs least.
    fn glance(&self, request: &Request) -> Result<Option<(Packet, Vec<u64>)>, NicError> {
        match &self.slot {
            Some(slot) => Ok(self.in_slot(request, slot.look(request.packet.number))),
            None => self.look(request),
        }
    }

    /// Sends a request again, if its time has come.
    ///
    /// # Errors
    /// As [`Asker::wait`].
    pub fn repeat(&self, request: &mut Request, now: Instant) -> Result<(), NicError> {
        if now >= request.sent + request.timeout {
            request.sent = now;
            request.timeout = (request.timeout * 2).min(LONGEST_TIMEOUT);
            self.transmit(request)?;
        }
        Ok(())
    }

    /// Waits for the next answer to a request, and sends it again meanwhile.
    ///
    /// # Errors
    /// [`NicError::Refused`], [`NicError::NoAnswer`], [`NicError::System`].
    pub fn wait(&self, request: &mut Request, patience: Patience) -> Result<(Packet, Vec<u64>), NicError> {
        if let Some(reply) = self.glance(request)? {
            return Ok(reply);
        }
        let begun = Instant::now();
        loop {
            let now = Instant::now();
            self.repeat(request, now)?;
            if now >= begun + patience.silence {
                if let Some(reply) = self.leave_slot(request) {
                    return Ok(reply);
                }
                return Err(NicError::NoAnswer { host: self.way.to, patience: patience.silence });
            }
            if now < begun + patience.spin {
                for _ in 0..LOOKS {
                    if let Some(reply) = self.glance(request)? {
                        return Ok(reply);
                    }
                    std::hint::spin_loop();
                }
                // A refusal comes to the socket in any case, and a reply does if the programs of this host have gone.
                if let Some(reply) = self.look(request)? {
                    return Ok(reply);
                }
                continue;
            }
            if let Some(reply) = self.leave_slot(request) {
                return Ok(reply);
            }
            let until = (request.sent + request.timeout).min(begun + patience.silence);
            self.sleep(until.saturating_duration_since(now))?;
            if let Some(reply) = self.look(request)? {
                return Ok(reply);
            }
        }
    }

    fn sleep(&self, time: Duration) -> Result<(), NicError> {
        let time = Timespec::try_from(time).ok();
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], time.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(why) => Err(NicError::System { what: "poll", why: why.into() }),
        }
    }
}
