//! Incast over plain TCP, beside that over bare UDP (`bare_incast.rs`): the limit of weir over libfabric's `tcp`. Each
//! block of messages is encrypted as a whole, as weir gives core providers whole bundles. TCP itself says what has
//! arrived, so nobody counts. Threads sleep in the kernel.

use super::bare_crowd::{Signals, in_networks, with_senders};
use super::bare_end::{key_of, open};
use super::bare_incast::{BLOCK, MESSAGE_BYTES, check, number};
use super::hosts::Hosts;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use weir_link::datagram::seal::{Key, nonce_of};
use weir_output::Failure;
use weir_proto::wire::{EXTENSION_BYTES, TAG_BYTES};

/// An encrypted block. Unit: bytes.
const SEALED_BYTES: usize = EXTENSION_BYTES + BLOCK * MESSAGE_BYTES + TAG_BYTES;

/// Messages of all `senders` a second, measured for `time`.
///
/// # Errors
/// [`Failure`]: a socket could not be opened.
pub fn messages_per_s(hosts: &Hosts, senders: usize, time: Duration) -> Result<f64, Failure> {
    let (accepted, sockets) = in_networks(|| connected(hosts, senders))?;
    let connection = |(host, stream)| Connection::new(host, stream);
    let connections = (1..).zip(accepted).map(connection).collect();
    with_senders(sockets, send, |signals| receive(connections, time, signals))
}

/// Both ends of a connection from each of the hosts behind the first one.
fn connected(hosts: &Hosts, senders: usize) -> Result<(Vec<TcpStream>, Vec<TcpStream>), Failure> {
    hosts.join_network(0)?;
    let listener = TcpListener::bind((hosts.address(0).as_str(), 0)).map_err(Failure::system("bind"))?;
    let address = listener.local_addr().map_err(Failure::system("a socket"))?;
    let pair = |host| {
        hosts.join_network(host)?;
        let sender = TcpStream::connect(address).map_err(Failure::system("connect"))?;
        sender.set_nodelay(true).map_err(Failure::system("a socket"))?;
        let (accepted, _) = listener.accept().map_err(Failure::system("accept"))?;
        accepted.set_nonblocking(true).map_err(Failure::system("a socket"))?;
        Ok((accepted, sender))
    };
    let pairs = (1..=senders).map(pair).collect::<Result<Vec<_>, Failure>>()?;
    Ok(pairs.into_iter().unzip())
}

/// Sends blocks until the receiver has ended.
fn send(host: usize, mut stream: TcpStream, signals: &Signals) -> Result<(), Failure> {
    let (key, mut sealed) = (key_of([host as u64, 0]), Vec::with_capacity(SEALED_BYTES));
    let (mut messages, mut next) = (vec![1; BLOCK * MESSAGE_BYTES], 0);
    for block in 0.. {
        if signals.is_over() {
            break;
        }
        number(&mut messages, &mut next);
        sealed.clear();
        sealed.extend_from_slice(&[0; EXTENSION_BYTES]);
        sealed.extend_from_slice(&messages);
        key.seal(&nonce_of((1, 1), block), &mut sealed, 0, EXTENSION_BYTES);
        stream.write_all(&sealed).map_err(Failure::system("write"))?;
    }
    Ok(())
}

/// One sender, as the receiver knows it.
struct Connection {
    stream: TcpStream,
    key: Key,
    sealed: Vec<u8>,
    /// So many bytes of the block have arrived.
    at: usize,
    blocks: u64,
    messages: Vec<u8>,
    /// Number of the next message.
    next: u64,
    is_open: bool,
}

impl Connection {
    fn new(host: u64, stream: TcpStream) -> Connection {
        let (sealed, messages) = (vec![0; SEALED_BYTES], vec![0; BLOCK * MESSAGE_BYTES]);
        let key = key_of([host, 0]);
        Connection { stream, key, sealed, at: 0, blocks: 0, messages, next: 0, is_open: true }
    }

    /// Reads a part of a block. Returns whether there was anything.
    fn read(&mut self) -> Result<bool, Failure> {
        match self.stream.read(&mut self.sealed[self.at..]) {
            Ok(0) => self.is_open = false,
            Ok(bytes) => self.at += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(Failure::system("read")(error)),
        }
        if self.at == SEALED_BYTES {
            self.messages.copy_from_slice(open(&self.key, self.blocks, &mut self.sealed)?);
            check(&self.messages, &mut self.next)?;
            (self.at, self.blocks) = (0, self.blocks + 1);
        }
        Ok(true)
    }
}

/// Receives for `time`, and goes on until all senders have closed their connections. Returns the messages of a second.
///
/// # Errors
/// [`Failure::Measurement`]: the senders have closed earlier.
fn receive(mut connections: Vec<Connection>, time: Duration, signals: &Signals) -> Result<f64, Failure> {
    let (mut result, begun) = (None, Instant::now());
    while connections.iter().any(|connection| connection.is_open) {
        let mut wanted: Vec<PollFd<'_>> = connections
            .iter()
            .map(|connection| PollFd::new(connection.stream.as_fd(), PollFlags::POLLIN))
            .collect();
        poll(&mut wanted, PollTimeout::NONE).map_err(|error| Failure::system("poll")(error.into()))?;
        for connection in connections.iter_mut().filter(|connection| connection.is_open) {
            connection.read()?;
        }
        let took = begun.elapsed();
        if took >= time && !signals.is_over() {
            let messages: u64 = connections.iter().map(|connection| connection.next).sum();
            result = Some(messages as f64 / took.as_secs_f64());
            signals.end();
        }
    }
    result.ok_or_else(|| Failure::Measurement(String::from("all senders of plain TCP have ended early")))
}
