//! Asks the kernel of a peer whether the peer's process lives ([`Witness`]), because a process that computes or is stopped
//! answers no datagram.
//!
//! Each endpoint listens on the TCP port with the number of its UDP port. The kernel accepts connections there as long as
//! the process has the port, whatever the process does. It answers keep-alive probes, and it closes the connection when the
//! process ends. So no thread is needed, and a peer pays nothing while it computes.
//! ```text
//! A: nothing from B for a while: connects         B's kernel accepts    A: B lives
//! B: computes, or is stopped                                            A: the connection is quiet: B lives
//! B: is killed                                    B's kernel closes     A: B has ended
//! B's host vanishes                               no answer to probes   A: not known; the limit of the path counts
//! B: polls, and finds A's connection              sends a byte,         A: B polls. If it does so for half of the limit
//!                                                 again each 0.5 s         and answers no datagram, none reaches it
//! ```
//! One byte is not enough: a program that polls once and computes again may have read the datagram of another peer. So
//! bytes count without long pauses between them. They count for half of the limit, because the path begins to ask only
//! after a part of the limit, and loses no peer before it. Neither is a closed connection enough: the last datagrams of a
//! process that has ended may still wait at the socket, its goodbye among them. So an end counts when a look at the socket
//! has found nothing, a moment after the connection has closed.
//!
//! The answer is not authenticated. A stranger who takes over the address of a dead peer, port included, can delay the
//! report of its death. It learns nothing and can send nothing.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use weir_proto::Instant;
use weir_proto::reliability::Standing;

/// Connections of peers that wait for `accept`, and those that were accepted: one for each peer that asks at a time.
const MOST_CONNECTIONS: usize = 4096;
/// Time between two looks at the connections of peers, and so between two bytes on each.
const LOOK_NS: u64 = 500_000_000;
/// A peer that polls more rarely computes between its polls.
const RARE_POLL_NS: u64 = 3 * LOOK_NS;
/// A question that was not repeated for so long is forgotten.
const FORGET_NS: u64 = 60_000_000_000;
/// Datagrams of a process that has ended are on their way for at most so long.
const ARRIVAL_NS: u64 = 10_000_000;
/// Time between two probes of a quiet connection.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// What is known about a peer.
#[derive(Debug)]
enum State {
    Connecting(TcpStream),
    /// `polls`: how often it has said that it polls its endpoint, without a long pause. `polled_at`: the last time.
    Connected {
        stream: TcpStream,
        polls: u64,
        polled_at: Instant,
    },
    /// `is_drained`: what it has sent before was read.
    Ended {
        since: Instant,
        is_drained: bool,
    },
    Unknown,
}

#[derive(Debug)]
struct Question {
    state: State,
    asked_at: Instant,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Witness {
    listener: TcpListener,
    accepted: Vec<TcpStream>,
    questions: HashMap<SocketAddr, Question>,
    looked_at: Instant,
    /// See [`Witness::new`].
    limit_ns: u64,
}

impl Witness {
    /// The kernel answers at `listener`, which does not block. Nobody vouches for a peer that polls and answers no datagram
    /// for half of `limit_ns`. Probes give up after that time too.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn new(listener: TcpListener, limit_ns: u64) -> io::Result<Witness> {
        rustix::net::listen(&listener, MOST_CONNECTIONS as i32)?;
        let (accepted, questions) = (Vec::new(), HashMap::new());
        Ok(Witness { listener, accepted, questions, looked_at: Instant(0), limit_ns })
    }

    /// Whether the process at `peer` lives. The first question only begins to find out: repeat it.
    pub fn standing(&mut self, peer: SocketAddr, now: Instant) -> Standing {
        let limit_ns = self.limit_ns;
        let question = self.questions.entry(peer).or_insert_with(|| {
            let state = connect(peer, limit_ns).map_or(State::Unknown, State::Connecting);
            Question { state, asked_at: now }
        });
        question.asked_at = now;
        question.look(now);
        match question.state {
            State::Connecting(_) | State::Unknown => Standing::Unknown,
            State::Ended { is_drained: true, .. } => Standing::Ended,
            State::Connected { polls, .. } if polls.saturating_mul(LOOK_NS) > limit_ns / 2 => {
                Standing::Unknown
            }
            State::Connected { .. } | State::Ended { is_drained: false, .. } => Standing::Lives,
        }
    }

    /// The peer has answered a datagram, so the question is over.
    #[inline]
    pub fn heard(&mut self, peer: SocketAddr) {
        if !self.questions.is_empty() {
            self.questions.remove(&peer);
        }
    }

    /// A look for datagrams has found nothing.
    #[inline]
    pub fn drained(&mut self, now: Instant) {
        for question in self.questions.values_mut() {
            if let State::Ended { since, is_drained } = &mut question.state {
                *is_drained |= now.since_ns(*since) >= ARRIVAL_NS;
            }
        }
    }

    /// Tells peers that ask that this endpoint polls, and forgets questions that are over. Call this in every poll.
    pub fn polled(&mut self, now: Instant) {
        if now.since_ns(self.looked_at) < LOOK_NS {
            return;
        }
        self.looked_at = now;
        self.accepted.retain_mut(|stream| read(stream).is_ok_and(|end| !end) && say(stream));
        while self.accepted.len() < MOST_CONNECTIONS
            && let Ok((mut stream, _)) = self.listener.accept()
        {
            if stream.set_nonblocking(true).is_ok() && say(&mut stream) {
                self.accepted.push(stream);
            }
        }
        self.questions.retain(|_, question| now.since_ns(question.asked_at) <= FORGET_NS);
    }
}

impl Question {
    fn look(&mut self, now: Instant) {
        if let State::Connecting(stream) = &self.state
            && is_writable(stream)
            && let State::Connecting(stream) = std::mem::replace(&mut self.state, State::Unknown)
            && stream.take_error().is_ok_and(|error| error.is_none())
        {
            self.state = State::Connected { stream, polls: 0, polled_at: now };
        }
        if let State::Connected { stream, polls, polled_at } = &mut self.state {
            match stream.read(&mut [0; 16]) {
                Ok(0) => self.state = State::Ended { since: now, is_drained: false },
                Ok(bytes) => {
                    let bytes = bytes as u64;
                    if now.since_ns(*polled_at) > bytes * RARE_POLL_NS {
                        *polls = 0;
                    }
                    (*polls, *polled_at) = (*polls + bytes, now);
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset => {
                        self.state = State::Ended { since: now, is_drained: false };
                    }
                    _ => self.state = State::Unknown, // its host does not answer
                },
            }
        }
    }
}

/// Reads what a peer has sent, which is nothing. Returns whether it has closed the connection.
fn read(stream: &mut TcpStream) -> io::Result<bool> {
    match stream.read(&mut [0; 16]) {
        Ok(bytes) => Ok(bytes == 0),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Tells a peer that this endpoint polls. Returns whether the connection lives. A peer that does not read knows enough.
fn say(stream: &mut TcpStream) -> bool {
    stream.write(&[1]).map_or_else(|error| error.kind() == ErrorKind::WouldBlock, |_| true)
}

fn is_writable(stream: &TcpStream) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(stream, PollFlags::OUT)], Some(&at_once)), Ok(1..))
}

/// Begins to connect. A connection whose other host does not answer ends before half of `limit_ns` is over.
fn connect(peer: SocketAddr, limit_ns: u64) -> io::Result<TcpStream> {
    let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepintvl(&socket, PROBE_INTERVAL)?;
    let probes = Duration::from_nanos(limit_ns).as_secs() / PROBE_INTERVAL.as_secs() / 2;
    sockopt::set_tcp_keepcnt(&socket, probes.clamp(2, 100) as u32)?;
    match rustix::net::connect(&socket, &peer) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    const LIMIT_NS: u64 = 10_000_000_000;
    const STEP_NS: u64 = 100_000_000;

    fn listen() -> (Witness, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("it does not block");
        let address = listener.local_addr().expect("bound");
        (Witness::new(listener, LIMIT_NS).expect("it listens"), address)
    }

    /// Asks until the answer is `wanted`. Each question is a step later. No datagram waits. Returns the time of the last one.
    fn ask_until(witness: &mut Witness, peer: SocketAddr, mut now: u64, wanted: Standing) -> u64 {
        for _ in 0..1000 {
            now += STEP_NS;
            witness.drained(Instant(now));
            if witness.standing(peer, Instant(now)) == wanted {
                return now;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("it is not {wanted:?}")
    }

    #[test]
    fn the_kernel_vouches_for_a_process_that_does_nothing_until_it_ends() {
        let ((mut a, _), (b, of_b)) = (listen(), listen());
        let mut now = ask_until(&mut a, of_b, 0, Standing::Lives);
        for _ in 0..3 * LIMIT_NS / STEP_NS {
            now += STEP_NS;
            assert_eq!(a.standing(of_b, Instant(now)), Standing::Lives);
        }
        drop(b);
        ask_until(&mut a, of_b, now, Standing::Ended);
    }

    #[test]
    fn nobody_vouches_for_an_endpoint_that_polls_and_does_not_answer() {
        let ((mut a, _), (mut b, of_b)) = (listen(), listen());
        let begun = ask_until(&mut a, of_b, 0, Standing::Lives);
        // It says for half of the limit that it polls; the last byte is on its way for a moment.
        let polls = LIMIT_NS / 2 / LOOK_NS;
        for poll in 1..=polls {
            b.polled(Instant(poll * LOOK_NS));
            assert_eq!(a.standing(of_b, Instant(begun + poll * LOOK_NS)), Standing::Lives);
        }
        b.polled(Instant((polls + 1) * LOOK_NS));
        let later = ask_until(&mut a, of_b, begun + (polls + 1) * LOOK_NS, Standing::Unknown);
        // It answers, and computes again at once. That is another question.
        a.heard(of_b);
        let now = ask_until(&mut a, of_b, later, Standing::Lives);
        for step in 1..3 * LIMIT_NS / STEP_NS {
            assert_eq!(a.standing(of_b, Instant(now + step * STEP_NS)), Standing::Lives);
        }
    }

    /// What it has sent last may say that it ends as it should.
    #[test]
    fn an_end_counts_when_what_was_sent_before_has_been_read() {
        let ((mut a, _), (b, of_b)) = (listen(), listen());
        let begun = ask_until(&mut a, of_b, 0, Standing::Lives);
        drop(b);
        std::thread::sleep(Duration::from_millis(20)); // until the connection has closed
        for step in 1..50 {
            assert_eq!(a.standing(of_b, Instant(begun + step * STEP_NS)), Standing::Lives);
        }
        a.drained(Instant(begun + STEP_NS + ARRIVAL_NS - 1));
        assert_eq!(a.standing(of_b, Instant(begun + 50 * STEP_NS)), Standing::Lives, "it may be on its way");
        a.drained(Instant(begun + 50 * STEP_NS));
        assert_eq!(a.standing(of_b, Instant(begun + 51 * STEP_NS)), Standing::Ended);
    }

    /// It may have read the datagram of somebody else in its only poll.
    #[test]
    fn the_kernel_vouches_for_a_process_that_polls_rarely_and_computes_between() {
        let ((mut a, _), (mut b, of_b)) = (listen(), listen());
        let mut now = ask_until(&mut a, of_b, 0, Standing::Lives);
        for _ in 0..2 * LIMIT_NS / RARE_POLL_NS {
            b.polled(Instant(now));
            std::thread::sleep(Duration::from_millis(5)); // until the byte has arrived
            for _ in 0..=RARE_POLL_NS / STEP_NS {
                assert_eq!(a.standing(of_b, Instant(now)), Standing::Lives);
                now += STEP_NS;
            }
        }
    }

    #[test]
    fn nobody_vouches_for_an_endpoint_that_is_not_there() {
        let ((mut a, _), (b, of_b)) = (listen(), listen());
        drop(b);
        for step in 1..50 {
            assert_eq!(a.standing(of_b, Instant(step * STEP_NS)), Standing::Unknown);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn connections_do_not_stay_when_the_question_is_over() {
        let ((mut a, _), (mut b, of_b)) = (listen(), listen());
        let now = ask_until(&mut a, of_b, 0, Standing::Lives);
        b.polled(Instant(LOOK_NS));
        assert_eq!(b.accepted.len(), 1);
        a.polled(Instant(now + FORGET_NS));
        assert!(!a.questions.is_empty());
        a.polled(Instant(now + 2 * FORGET_NS));
        assert!(a.questions.is_empty());
        let mut later = 2 * LOOK_NS;
        while !b.accepted.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
            later += LOOK_NS;
            assert!(later < 10_000 * LOOK_NS);
            b.polled(Instant(later));
        }
    }
}
