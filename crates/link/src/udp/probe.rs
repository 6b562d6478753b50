//! Tries the way between two hosts ([`Probe`]) for `weir doctor`: a socket that is opened as that of an endpoint, whose
//! datagrams say which trial they belong to.
//!
//! ```text
//! host A                                                       host B
//! send(B, trial 7, 1472 B, 3)          ------------------->    trial_seen(7): 3 datagrams, the largest of 1472 B
//! round_trip(B)                        ------------------->    answers each at once
//! can_connect(B)                       ------------------->    its kernel accepts
//! ```
//! Whoever has both probes asks them, so each direction is tried alone. A probe answers only datagrams with the key of the
//! trials, and with no more bytes than it got, so a stranger cannot use it against others.

use super::interfaces::{all, choose};
use super::mtu::{header_bytes, mtu_of};
use super::options::{UdpError, UdpOptions};
use super::ports::{self, Sockets};
use quinn_udp::UdpSocketState;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Key of the trials.
pub const KEY_BYTES: usize = 16;
/// Key, kind and number of the trial. Unit: bytes.
pub const HEAD_BYTES: usize = KEY_BYTES + 1 + 8;
/// Kinds of datagrams: only counted; to be answered; an answer.
const COUNT: u8 = 0;
const ASK: u8 = 1;
const ANSWER: u8 = 2;
/// Time between two looks at whether the probe ends.
const LOOK: Duration = Duration::from_millis(50);
/// Most trials that are remembered.
const MOST_TRIALS: usize = 1 << 16;
/// Time between two datagrams of a trial, so that a small buffer holds them.
const GAP: Duration = Duration::from_millis(1);

/// What has arrived of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Datagrams.
    pub datagrams: u32,
    /// The length of the largest. Unit: bytes.
    pub largest_bytes: usize,
}

#[derive(Debug, Default)]
struct Trials {
    seen: Mutex<HashMap<u64, Seen>>,
    arrived: Condvar,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Probe {
    socket: Arc<UdpSocket>,
    // The kernel accepts connections as long as it is there.
    _witness: TcpListener,
    key: [u8; KEY_BYTES],
    trials: Arc<Trials>,
    ends: Arc<AtomicBool>,
    receiver: Option<std::thread::JoinHandle<()>>,
    interface: String,
    place: SocketAddr,
    mtu: Option<usize>,
    buffer_bytes: usize,
}

impl Probe {
    /// Opens the sockets of an endpoint with these options.
    ///
    /// # Errors
    /// [`UdpError`].
    pub fn open(options: &UdpOptions, key: [u8; KEY_BYTES]) -> Result<Probe, UdpError> {
        let list = all()?;
        let interface = choose(&list, options.net.as_deref())?.clone();
        let failed =
            |error| UdpError::Socket { address: interface.address, interface: interface.name.clone(), error };
        let Sockets { datagrams: socket, witness } =
            ports::bind(interface.place(), options.ports.as_ref(), failed)?;
        // It forbids fragments, as for endpoints.
        let state = UdpSocketState::new((&socket).into()).map_err(failed)?;
        let _ = state.set_recv_buffer_size((&socket).into(), options.buffer_bytes);
        let buffer_bytes = state.recv_buffer_size((&socket).into()).map_err(failed)?;
        socket.set_nonblocking(false).map_err(failed)?;
        socket.set_read_timeout(Some(LOOK)).map_err(failed)?;
        let place = socket.local_addr().map_err(failed)?;
        let (socket, trials, ends) =
            (Arc::new(socket), Arc::<Trials>::default(), Arc::<AtomicBool>::default());
        let (of_thread, seen, stop) = (Arc::clone(&socket), Arc::clone(&trials), Arc::clone(&ends));
        let receiver = std::thread::spawn(move || receive(&of_thread, key, &seen, &stop));
        let (mtu, interface) = (mtu_of(&interface), interface.name);
        let receiver = Some(receiver);
        Ok(Probe {
            socket,
            _witness: witness,
            key,
            trials,
            ends,
            receiver,
            interface,
            place,
            mtu,
            buffer_bytes,
        })
    }

    /// The address and the port.
    pub fn place(&self) -> SocketAddr {
        self.place
    }

    /// Name of the interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// The MTU of the interface, if it tells. Unit: bytes.
    pub fn mtu(&self) -> Option<usize> {
        self.mtu
    }

    /// The receive buffer that the kernel has granted, in its own count. Unit: bytes.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// The headers of IP and UDP in a packet of this probe. Unit: bytes.
    pub fn header_bytes(&self) -> usize {
        header_bytes(self.place.is_ipv4())
    }

    /// Sends `count` datagrams of `bytes` bytes, at least [`HEAD_BYTES`], which no host may cut.
    ///
    /// # Errors
    /// Those of the kernel, for example that there is no route, or that the interface takes no packet of this length.
    pub fn send(&self, to: SocketAddr, trial: u64, bytes: usize, count: u32) -> io::Result<()> {
        let datagram = self.datagram(COUNT, trial, bytes);
        for nth in 0..count {
            if nth > 0 {
                std::thread::sleep(GAP);
            }
            self.socket.send_to(&datagram, to)?;
        }
        Ok(())
    }

    /// What has arrived of a trial. Waits until `datagrams` have, at most for `limit`.
    pub fn trial_seen(&self, trial: u64, datagrams: u32, limit: Duration) -> Seen {
        let seen = self.trials.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |seen: &HashMap<u64, Seen>| seen.get(&trial).copied().unwrap_or_default();
        let waited =
            self.trials.arrived.wait_timeout_while(seen, limit, |seen| count(seen).datagrams < datagrams);
        count(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// The shortest of `tries` round trips. Each waits for `limit`. `None`: no answer has come.
    pub fn round_trip(&self, to: SocketAddr, trial: u64, tries: u32, limit: Duration) -> Option<Duration> {
        let mut shortest = None;
        for nth in 0..tries {
            let trial = trial.wrapping_add(u64::from(nth));
            let begun = Instant::now();
            self.socket.send_to(&self.datagram(ASK, trial, HEAD_BYTES), to).ok()?;
            if self.trial_seen(trial, 1, limit).datagrams > 0 {
                let took = begun.elapsed();
                shortest = Some(shortest.map_or(took, |shortest: Duration| shortest.min(took)));
            }
        }
        shortest
    }

    fn datagram(&self, kind: u8, trial: u64, bytes: usize) -> Vec<u8> {
        let mut datagram = [&self.key[..], &[kind], &trial.to_le_bytes()].concat();
        datagram.resize(bytes.max(HEAD_BYTES), 0);
        datagram
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(receiver) = self.receiver.take() {
            let _ = receiver.join();
        }
    }
}

/// Whether the kernel at `place` accepts a connection.
///
/// # Errors
/// Those of the kernel: `ConnectionRefused` if nobody listens or a firewall refuses, `TimedOut` if nobody answers.
pub fn can_connect(place: SocketAddr, limit: Duration) -> io::Result<()> {
    TcpStream::connect_timeout(&place, limit).map(drop)
}

fn receive(socket: &UdpSocket, key: [u8; KEY_BYTES], trials: &Trials, ends: &AtomicBool) {
    let mut bytes = vec![0; 1 << 16];
    while !ends.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut bytes) else { continue };
        if trials.arrived(&mut bytes[..length], &key) {
            let _ = socket.send_to(&bytes[..length], from);
        }
    }
}

impl Trials {
    /// Counts a datagram with this key, or makes the answer of it. Returns whether it is an answer now, to be sent back.
    fn arrived(&self, datagram: &mut [u8], key: &[u8; KEY_BYTES]) -> bool {
        let Some((kind, trial)) = parse(datagram, key) else { return false };
        if kind == ASK {
            datagram[KEY_BYTES] = ANSWER;
            return true;
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() < MOST_TRIALS || seen.contains_key(&trial) {
            let of_trial = seen.entry(trial).or_default();
            of_trial.datagrams += 1;
            of_trial.largest_bytes = of_trial.largest_bytes.max(datagram.len());
        }
        self.arrived.notify_all();
        false
    }
}

/// What a probe with this key does with these datagrams, one after the other, for fuzzers (`crates/fuzz`). Returns the
/// answers.
pub fn answers_to(datagrams: &[Vec<u8>], key: [u8; KEY_BYTES]) -> Vec<Vec<u8>> {
    let trials = Trials::default();
    let mut answers = Vec::new();
    for datagram in datagrams {
        let mut bytes = datagram.clone();
        if trials.arrived(&mut bytes, &key) {
            answers.push(bytes);
        }
    }
    answers
}

/// Kind and trial of a datagram with this key.
fn parse(datagram: &[u8], key: &[u8; KEY_BYTES]) -> Option<(u8, u64)> {
    let (found, rest) = datagram.split_first_chunk::<KEY_BYTES>()?;
    let (&[kind], rest) = rest.split_first_chunk()?;
    let (trial, _) = rest.split_first_chunk()?;
    (found == key && kind <= ANSWER).then(|| (kind, u64::from_le_bytes(*trial)))
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(100);
    const LATE: Duration = Duration::from_secs(10);

    fn probe(key: u8) -> Probe {
        let options = UdpOptions { net: Some("127.0.0.1".into()), ..UdpOptions::default() };
        Probe::open(&options, [key; KEY_BYTES]).expect("a socket")
    }

    #[test]
    fn datagrams_of_a_trial_are_counted_with_their_length() {
        let (a, b) = (probe(1), probe(1));
        a.send(b.place(), 7, 1472, 3).expect("sent");
        assert_eq!(b.trial_seen(7, 3, LATE), Seen { datagrams: 3, largest_bytes: 1472 });
        assert_eq!(b.trial_seen(8, 1, SOON), Seen::default());
        assert_eq!((a.interface(), a.header_bytes()), ("lo", 28));
        assert!(a.buffer_bytes() > 0 && a.mtu().is_some());
    }

    #[test]
    fn an_answer_comes_from_a_probe_with_the_same_key_only() {
        let (a, b, stranger) = (probe(1), probe(1), probe(2));
        assert!(a.round_trip(b.place(), 100, 3, LATE).is_some());
        assert_eq!(stranger.round_trip(b.place(), 100, 1, SOON), None);
        for length in 0..HEAD_BYTES {
            assert_eq!(parse(&a.datagram(ASK, 1, HEAD_BYTES)[..length], &a.key), None);
        }
    }

    #[test]
    fn only_a_question_is_answered_with_as_many_bytes() {
        let datagram = |kind: u8| [&[3; KEY_BYTES][..], &[kind], &[9; 20]].concat();
        let datagrams = [COUNT, ASK, ANSWER, ANSWER + 1].map(datagram);
        assert_eq!(answers_to(&datagrams, [3; KEY_BYTES]), [datagram(ANSWER)]);
        assert_eq!(answers_to(&datagrams, [4; KEY_BYTES]), [[0; 0]; 0]);
    }

    #[test]
    fn the_kernel_accepts_connections_as_long_as_the_probe_is_there() {
        let b = probe(1);
        let place = b.place();
        assert!(can_connect(place, LATE).is_ok());
        drop(b);
        assert_eq!(can_connect(place, LATE).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
