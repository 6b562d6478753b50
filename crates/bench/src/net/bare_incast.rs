//! Incast over bare UDP: threads on several pretended hosts send to one on another host (`bare_crowd.rs`), in the pattern
//! of `measure incast`. They do what no protocol can leave out (`bare_end.rs`), and match nothing.
//!
//! ```text
//! each sender    blocks of 16 messages, each in one call; at most 64 messages that the receiver has not counted
//! receiver       decrypts, copies each message to its place, and looks at its number
//! receiver       <- how many datagrams have arrived, after every second block of this sender
//! ```
//! The receiver has one socket for all. If that holds less than 64 messages of each sender, blocks and windows are
//! smaller.

use super::bare_crowd::{Signals, in_networks, own_cores, with_senders};
use super::bare_end::{End, key_of, open};
use super::bare_socket::{DATAGRAM_BYTES, Found, PAYLOAD_BYTES, Socket, Waiting};
use super::hosts::Hosts;
use crate::compare::measure::EXCHANGE_BYTES;
use nix::sys::socket::SockaddrIn;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use weir_link::datagram::seal::Key;
use weir_output::Failure;

/// Unit: bytes.
pub(super) const MESSAGE_BYTES: usize = EXCHANGE_BYTES as usize;
/// Messages of a block. Four blocks are a window, as long as `WINDOW` of tests/mpi/measure.c.
pub(super) const BLOCK: usize = 16;
const BLOCKS: usize = 4;
/// What the kernel charges for a datagram that waits. Unit: bytes.
const CHARGE_BYTES: usize = 2 * DATAGRAM_BYTES;

/// Messages of all `senders` a second, measured for `time`.
///
/// # Errors
/// [`Failure`]: a socket could not be opened, or something was lost.
pub fn messages_per_s(hosts: &Hosts, senders: usize, time: Duration) -> Result<f64, Failure> {
    let waiting = if own_cores(senders)?.is_some() { Waiting::Spin } else { Waiting::Sleep };
    let (receiver, sockets) = in_networks(|| connected(hosts, senders))?;
    let places = sockets.iter().map(place).collect::<Result<Vec<_>, Failure>>()?;
    let receiver = Socket::new(receiver, waiting)?;
    let block = block(receiver.buffer_bytes()?, senders);
    let receiver = Receiver::new(receiver, &places, block);
    with_senders(
        sockets,
        |host, socket, signals| send(host, Socket::new(socket, waiting)?, block, signals),
        |signals| receiver.run(time, signals),
    )
}

/// A socket on the first host, and one on each of the next ones that is connected to it.
fn connected(hosts: &Hosts, senders: usize) -> Result<(UdpSocket, Vec<UdpSocket>), Failure> {
    let bind = |host: usize| {
        hosts.join_network(host)?;
        let address = hosts.address(host);
        UdpSocket::bind((address.as_str(), 0)).map_err(Failure::system(address))
    };
    let receiver = bind(0)?;
    let address = receiver.local_addr().map_err(Failure::system("a socket"))?;
    let sender = |host| {
        let socket = bind(host)?;
        socket.connect(address).map_err(Failure::system("connect"))?;
        Ok(socket)
    };
    let senders = (1..=senders).map(sender).collect::<Result<_, Failure>>()?;
    Ok((receiver, senders))
}

fn place(socket: &UdpSocket) -> Result<SockaddrIn, Failure> {
    match socket.local_addr().map_err(Failure::system("a socket"))? {
        SocketAddr::V4(address) => Ok(address.into()),
        SocketAddr::V6(address) => unreachable!("pretended hosts have addresses of IPv4, not {address}"),
    }
}

/// Messages of a block, so that the windows of all senders fit into a receive buffer.
fn block(buffer_bytes: usize, senders: usize) -> usize {
    let datagrams = buffer_bytes / CHARGE_BYTES / senders / BLOCKS;
    (datagrams * PAYLOAD_BYTES / MESSAGE_BYTES).clamp(1, BLOCK)
}

/// Writes the numbers of the next messages into a block.
pub(super) fn number(block: &mut [u8], next: &mut u64) {
    for message in block.chunks_exact_mut(MESSAGE_BYTES) {
        message[..8].copy_from_slice(&next.to_le_bytes());
        *next += 1;
    }
}

/// Looks whether a block has the next messages.
///
/// # Errors
/// [`Failure::Measurement`].
pub(super) fn check(block: &[u8], next: &mut u64) -> Result<(), Failure> {
    for message in block.chunks_exact(MESSAGE_BYTES) {
        if message[..8] != next.to_le_bytes() {
            return Err(Failure::Measurement(String::from("a message of a bare incast is wrong")));
        }
        *next += 1;
    }
    Ok(())
}

/// Sends blocks until the receiver has ended.
fn send(host: usize, socket: Socket, block: usize, signals: &Signals) -> Result<(), Failure> {
    let mut messages = vec![1; block * MESSAGE_BYTES];
    let window = BLOCKS * messages.len().div_ceil(PAYLOAD_BYTES);
    let mut end = End::new(socket, [host as u64, 0]).with_window(window as u64);
    let mut next = 0;
    while !signals.is_over() {
        number(&mut messages, &mut next);
        end.send(&messages)?;
    }
    Ok(())
}

/// One sender, as the receiver knows it.
struct Sender {
    place: SockaddrIn,
    key: Key,
    /// Datagrams that have arrived.
    arrived: u64,
    messages: Vec<u8>,
    /// So many bytes of them have arrived.
    at: usize,
    /// Number of the next message.
    next: u64,
    blocks: u64,
}

struct Receiver {
    socket: Socket,
    senders: Vec<Sender>,
}

impl Receiver {
    fn new(socket: Socket, places: &[SockaddrIn], block: usize) -> Receiver {
        let sender = |(host, &place): (u64, &SockaddrIn)| {
            let (key, messages) = (key_of([host, 0]), vec![0; block * MESSAGE_BYTES]);
            Sender { place, key, arrived: 0, messages, at: 0, next: 0, blocks: 0 }
        };
        Receiver { socket, senders: (1..).zip(places).map(sender).collect() }
    }

    /// Receives for `time`, and goes on until all senders have ended. Returns the messages of a second.
    fn run(mut self, time: Duration, signals: &Signals) -> Result<f64, Failure> {
        let mut result = None;
        let mut begun = None;
        while let Some(found) = self.socket.look(|| signals.has_ended())? {
            let begun = *begun.get_or_insert_with(Instant::now);
            self.take(&found)?;
            let took = begun.elapsed();
            if result.is_none() && took >= time {
                let messages: u64 = self.senders.iter().map(|sender| sender.next).sum();
                result = Some(messages as f64 / took.as_secs_f64());
                signals.end();
            }
        }
        result.ok_or_else(|| Failure::Measurement(String::from("the senders of a bare incast have ended")))
    }

    fn take(&mut self, found: &Found) -> Result<(), Failure> {
        let is_from = |sender: &&mut Sender| Some(sender.place) == found.from;
        let Some(sender) = self.senders.iter_mut().find(is_from) else { return Ok(()) };
        let mut counts = false;
        for datagram in self.socket.datagrams(found).chunks_mut(found.segment_bytes) {
            let payload = open(&sender.key, sender.arrived, datagram)?;
            sender.arrived += 1;
            sender.messages[sender.at..][..payload.len()].copy_from_slice(payload);
            sender.at += payload.len();
            if sender.at == sender.messages.len() {
                check(&sender.messages, &mut sender.next)?;
                sender.at = 0;
                sender.blocks += 1;
                counts |= sender.blocks.is_multiple_of(BLOCKS as u64 / 2);
            }
        }
        if counts {
            self.socket.send_to(&sender.arrived.to_le_bytes(), &sender.place)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_all_senders_fit_into_the_receive_buffer() {
        let datagrams = |block: usize| BLOCKS * (block * MESSAGE_BYTES).div_ceil(PAYLOAD_BYTES);
        for (buffer_bytes, senders, expected) in
            [(8 << 20, 1, 16), (8 << 20, 15, 16), (416 << 10, 1, 16), (416 << 10, 7, 3), (416 << 10, 15, 1)]
        {
            let block = block(buffer_bytes, senders);
            assert_eq!(block, expected, "{buffer_bytes} B, {senders} senders");
            assert!(senders * datagrams(block) * CHARGE_BYTES <= buffer_bytes, "{senders} senders");
        }
    }

    #[test]
    fn a_block_out_of_order_is_wrong() {
        let mut block = [0; 3 * MESSAGE_BYTES];
        let (mut sent, mut arrived) = (5, 5);
        number(&mut block, &mut sent);
        check(&block, &mut arrived).unwrap();
        assert_eq!((sent, arrived), (8, 8));
        assert!(check(&block, &mut arrived).is_err(), "the same once more");
    }
}
