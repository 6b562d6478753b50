//! Multi-send: one frame of a process becomes a copy for each of many hosts. The kernel programs make the copies, write them to
//! memory at the receivers and acknowledge them; processes look at memory. User space keeps timers, and sends again.
//!
//! ```text
//! MultiSend                                                        Inbox, one for each receiver
//!                 programs of host 0  <-- subscribe: member 1 ------  new, waits for the answer
//!   send -- frame ------------------------------------------------>  programs of host 1: written to a buffer
//!   bit of member 0, programs of host 0  <---- the frame, back ----
//!                 copy for each other receiver ------------------->  programs of its host: written to a buffer
//!   bit of member 1  <---------------------- acknowledgement ------
//! ```
//! A frame of a process reaches the programs of its own host only from outside. So a receiver's host sends it back, and gets no
//! copy.
//!
//! An inbox has two buffers. A message that finds both full is dropped, and comes again after a timeout.

use crate::asker::{Asker, FIRST_TIMEOUT, LONGEST_TIMEOUT, Patience};
use crate::format::{MAX_BYTES, MAX_MEMBERS, MAX_VECTOR_WORDS, Packet, WORDS, Way, kind, slot, status};
use crate::{Domain, NicError};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_link::shm::shared_words::SharedWords;

/// Words that an inbox takes: the number of the last message that the process has taken, and two buffers, each with the state
/// of a reply slot, the length of its message, and the message.
pub const INBOX_WORDS: usize = 1 + 2 * BUFFER_WORDS;
const BUFFER_WORDS: usize = 2 + MAX_VECTOR_WORDS;
/// Looks at memory between two looks at the clock.
const LOOKS: u32 = 32;
/// Sleep between two looks, when the time to spin has passed: programs cannot wake who looks at memory.
const NAP: Duration = Duration::from_micros(50);

/// What a process has of its membership: its words, and the connection that keeps them.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub domain: Domain,
    pub address: Ipv4Addr,
    pub words: Arc<SharedWords>,
    pub _connection: Arc<UnixStream>,
}

fn check_place(place: u64) -> Result<(), NicError> {
    let last = WORDS - INBOX_WORDS;
    if place <= last as u64 {
        return Ok(());
    }
    let (value, allowed) = (place.to_string(), format!("0 to {last}"));
    Err(NicError::Argument { what: "place of a multi-send", value, allowed })
}

/// The sender of a multi-send. One message is under way at a time.
#[derive(Debug)]
pub struct MultiSend {
    home: Home,
    socket: UdpSocket,
    receivers: Vec<SocketAddrV4>,
    /// The receiver whose host sends frames back to us.
    relay: usize,
    place: u64,
    patience: Patience,
    number: u32,
    under_way: Option<UnderWay>,
}

/// A message that not all have acknowledged.
#[derive(Debug)]
struct UnderWay {
    message: Vec<u64>,
    begun: Instant,
    sent: Instant,
    timeout: Duration,
}

impl MultiSend {
    /// As [`crate::Membership::multi_send`].
    ///
    /// # Errors
    /// The same.
    pub(crate) fn new(
        home: Home,
        receivers: &[SocketAddrV4],
        place: u64,
        patience: Patience,
    ) -> Result<MultiSend, NicError> {
        let wrong = |what, value: String, allowed: String| NicError::Argument { what, value, allowed };
        if !(1..=MAX_MEMBERS as usize).contains(&receivers.len()) {
            let allowed = format!("1 to {MAX_MEMBERS}");
            return Err(wrong("number of receivers", receivers.len().to_string(), allowed));
        }
        if receivers.iter().any(|receiver| *receiver.ip() == home.address) {
            return Err(wrong("receiver", home.address.to_string(), String::from("those on other hosts")));
        }
        check_place(place)?;
        let socket = UdpSocket::bind((home.address, 0)).map_err(NicError::system("bind"))?;
        socket.connect(receivers[0]).map_err(NicError::system("connect"))?;
        socket.set_nonblocking(true).map_err(NicError::system("fcntl"))?;
        let receivers = receivers.to_vec();
        Ok(MultiSend { home, socket, receivers, relay: 0, place, patience, number: 0, under_way: None })
    }

    /// Begins to send a message. Returns at once; [`MultiSend::test`] or [`MultiSend::wait`] ends it.
    ///
    /// # Errors
    /// [`NicError::Argument`] for a message that is empty or does not fit a frame; [`NicError::System`].
    ///
    /// # Panics
    /// If a message is under way: that is a bug of the caller.
    pub fn start(&mut self, message: &[u64]) -> Result<(), NicError> {
        assert!(self.under_way.is_none(), "a multi-send has one message under way");
        if !(1..=MAX_VECTOR_WORDS).contains(&message.len()) {
            return Err(NicError::Argument {
                what: "words of a message",
                value: message.len().to_string(),
                allowed: format!("1 to {MAX_VECTOR_WORDS}"),
            });
        }
        self.number = self.number.wrapping_add(1);
        self.home.words.swap(self.place as usize, u64::from(self.number) << 32);
        let now = Instant::now();
        let under_way = UnderWay { message: message.to_vec(), begun: now, sent: now, timeout: FIRST_TIMEOUT };
        self.transmit(&under_way.message, self.all())?;
        self.under_way = Some(under_way);
        Ok(())
    }

    /// A bit for each receiver.
    fn all(&self) -> u32 {
        u32::MAX >> (MAX_MEMBERS - self.receivers.len() as u32)
    }

    /// Sends the message to these receivers, and to the one whose host sends it back in any case.
    fn transmit(&self, message: &[u64], receivers: u32) -> Result<(), NicError> {
        let receivers = receivers & !(1 << self.relay);
        let packet = Packet {
            kind: kind::COPIES | kind::RELAY,
            operation: 0,
            status: 0,
            asker: 0,
            number: 0,
            place: self.place,
            operand: u64::from(receivers) << 32
                | (self.relay as u64) << 8
                | u64::from(receivers.count_ones()),
            compare: self.number.into(),
        };
        let way = Way { from: self.home.address, to: *self.receivers[self.relay].ip() };
        let (bytes, length): ([u8; MAX_BYTES], usize) = packet.to_frame(&self.home.domain, way, message);
        match self.socket.send(&bytes[..length]) {
            Ok(_) => Ok(()),
            // A full queue, or a host without programs: another one gets it after the timeout.
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => Ok(()),
            Err(why) => Err(NicError::System { what: "send", why }),
        }
    }

    /// The receivers that have not acknowledged the message, as bits.
    fn missing(&self) -> u32 {
        self.all() & !(self.home.words.load(self.place as usize) as u32)
    }

    /// Whether all receivers have the message in their memory. Sends again what may be lost.
    ///
    /// # Errors
    /// As [`MultiSend::wait`].
    pub fn test(&mut self) -> Result<bool, NicError> {
        let Some(mut under_way) = self.under_way.take() else { return Ok(true) };
        let missing = self.missing();
        if missing == 0 {
            return Ok(true);
        }
        let now = Instant::now();
        if now >= under_way.begun + self.patience.silence {
            let missing = (0..MAX_MEMBERS).filter(|member| missing & 1 << member != 0).collect();
            return Err(NicError::NotReceived { missing, patience: self.patience.silence });
        }
        if now >= under_way.sent + under_way.timeout {
            under_way.sent = now;
            under_way.timeout = (under_way.timeout * 2).min(LONGEST_TIMEOUT);
            self.relay = (self.relay + 1) % self.receivers.len();
            self.socket.connect(self.receivers[self.relay]).map_err(NicError::system("connect"))?;
            self.transmit(&under_way.message, missing)?;
        }
        self.under_way = Some(under_way);
        Ok(false)
    }

    /// Waits until all receivers have the message in their memory.
    ///
    /// # Errors
    /// [`NicError::NotReceived`] names those that have not acknowledged it in our patience; it and all other errors end the
    /// message. [`NicError::System`].
    pub fn wait(&mut self) -> Result<(), NicError> {
        if self.missing() == 0 {
            self.under_way = None;
            return Ok(());
        }
        let begun = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if self.missing() == 0 {
                    self.under_way = None;
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            if self.test()? {
                return Ok(());
            }
            if begun.elapsed() >= self.patience.spin {
                std::thread::sleep(NAP);
            }
        }
    }

    /// [`MultiSend::start`] and [`MultiSend::wait`].
    ///
    /// # Errors
    /// As both.
    pub fn send(&mut self, message: &[u64]) -> Result<(), NicError> {
        self.start(message)?;
        self.wait()
    }
}

/// A receiver of a multi-send. Messages come in their order, each once.
#[derive(Debug)]
pub struct Inbox {
    home: Home,
    place: usize,
    patience: Patience,
    /// Of the next message.
    number: u32,
}

impl Inbox {
    /// As [`crate::Membership::inbox`].
    ///
    /// # Errors
    /// The same.
    pub(crate) fn new(
        home: Home,
        sender: SocketAddrV4,
        member: u32,
        place: u64,
        patience: Patience,
    ) -> Result<Inbox, NicError> {
        check_place(place)?;
        if member >= MAX_MEMBERS {
            let allowed = format!("0 to {}", MAX_MEMBERS - 1);
            return Err(NicError::Argument { what: "receiver", value: member.to_string(), allowed });
        }
        let mut asker = Asker::new(&home.domain, sender, None)?;
        let packet = Packet {
            kind: kind::SUBSCRIBE,
            operation: 0,
            status: 0,
            asker: 0,
            number: 0,
            place,
            operand: member.into(),
            compare: 0,
        };
        let mut request = asker.send(packet, Vec::new())?;
        let (reply, _) = asker.wait(&mut request, patience)?;
        match reply.status {
            status::DONE => Ok(Inbox { home, place: place as usize, patience, number: 1 }),
            _ => Err(NicError::TableFull { host: *sender.ip(), bound: reply.operand }),
        }
    }

    /// The next message, if it is here.
    pub fn try_receive(&mut self) -> Option<Vec<u64>> {
        let mut message = Vec::new();
        self.try_receive_into(&mut message).then_some(message)
    }

    /// As [`Inbox::try_receive`], without memory of its own: replaces what is in `message`, if the next one is here.
    pub fn try_receive_into(&mut self, message: &mut Vec<u64>) -> bool {
        let words = &self.home.words;
        let buffer = self.place + 1 + (self.number as usize & 1) * BUFFER_WORDS;
        if words.load(buffer) != u64::from(self.number) << 2 | slot::WRITTEN {
            return false;
        }
        let length = (words.load(buffer + 1) as usize).min(MAX_VECTOR_WORDS);
        message.clear();
        message.extend((0..length).map(|at| words.load(buffer + 2 + at)));
        words.swap(self.place, self.number.into());
        self.number = self.number.wrapping_add(1);
        true
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// [`NicError::NoMessage`]: none has come in our patience.
    pub fn receive(&mut self) -> Result<Vec<u64>, NicError> {
        let mut message = Vec::new();
        self.receive_into(&mut message).map(|()| message)
    }

    /// As [`Inbox::receive`], into `message`.
    ///
    /// # Errors
    /// The same. `message` is unchanged then.
    pub fn receive_into(&mut self, message: &mut Vec<u64>) -> Result<(), NicError> {
        // Often it is here already, and a look at the clock costs as much as one at memory.
        if self.try_receive_into(message) {
            return Ok(());
        }
        let begun = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if self.try_receive_into(message) {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            let waited = begun.elapsed();
            if waited >= self.patience.silence {
                return Err(NicError::NoMessage { patience: self.patience.silence });
            }
            if waited >= self.patience.spin {
                std::thread::sleep(NAP);
            }
        }
    }
}
