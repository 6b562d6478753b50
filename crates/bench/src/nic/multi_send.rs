//! Multi-sends of `weir bench nic`: one process sends a message to one on each of many hosts. By the kernel programs, until all
//! have acknowledged it in memory; and over bare UDP, without acknowledgements and without sending again, which favours it.
//!
//! All processes are one thread, so no time goes to the scheduler. What the receivers do is not in the time of the sender.

use super::barrier::{Times, processor_ns};
use rustix::net::{SendFlags, sendmmsg};
use std::net::{SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};
use weir_nic::format::DEFAULT_PORT;
use weir_nic::pretended::{ALL, BACK_PORT, DROP_PORT, Network, address};
use weir_nic::{Inbox, Membership, NicError, Patience, Secret};
use weir_output::Failure;

/// Length of a message. Unit: 64-bit words.
pub const WORDS: usize = 8;
/// Length of a packet of kernel programs without its vector. Unit: bytes.
const KERNEL_BYTES: usize = 64;
/// The word of a multi-send.
const PLACE: u64 = 0;
/// The receivers' port, without kernel programs.
const PORT: u16 = 7002;
/// A message that takes longer was lost.
const LOST: Duration = Duration::from_secs(2);

/// Who makes the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The kernel programs.
    Kernel,
    /// The process, in a loop of sends.
    Loop,
    /// The process, in one system call (`sendmmsg`).
    OneCall,
    /// Programs that only copy the frame to all other hosts and send the copies back: less is no multi-send that is
    /// acknowledged.
    Least,
}

/// Members of a job on host 0 and as many others.
///
/// # Errors
/// [`Failure`].
pub fn join(network: &Network, secret: &Secret, receivers: u32) -> Result<Vec<Membership>, Failure> {
    let joined = (0..=receivers as usize).map(|host| network.join(host, secret));
    joined.collect::<Result<_, _>>().map_err(|error| Failure::Measurement(error.to_string()))
}

/// Sends `messages` messages from host 0 to hosts 1 to `receivers`. The time is that of the sender, the processor time that of all.
///
/// # Errors
/// [`Failure`].
pub fn measure(
    network: &Network,
    members: &[Membership],
    way: Way,
    receivers: u32,
    messages: u32,
) -> Result<Times, Failure> {
    let (mut send, mut receive) = match way {
        Way::Kernel => by_kernel(network, members, receivers)?,
        Way::Least => by_least_programs(network)?,
        _ => over_udp(network, way, receivers)?,
    };
    let mut sender = Duration::ZERO;
    let begun = processor_ns();
    for number in 0..u64::from(messages) {
        let message = [number; WORDS];
        let clock = Instant::now();
        send(&message)?;
        sender += clock.elapsed();
        receive(&message)?;
    }
    let messages = f64::from(messages);
    Ok(Times { elapsed: sender.as_nanos() as f64 / messages, processor: (processor_ns() - begun) / messages })
}

/// Sends a message to all receivers, or takes it at all of them.
type Step = Box<dyn FnMut(&[u64; WORDS]) -> Result<(), Failure>>;

fn by_kernel(network: &Network, members: &[Membership], receivers: u32) -> Result<(Step, Step), Failure> {
    let failed = |error: NicError| Failure::Measurement(error.to_string());
    let patience = Patience { spin: LOST, silence: LOST };
    let at = |host: u32| SocketAddrV4::new(address(host as usize), DEFAULT_PORT);
    let inbox = |number: u32| {
        let host = number as usize + 1;
        network.at(host, || members[host].inbox(at(0), number, PLACE, patience)).map_err(failed)
    };
    let mut inboxes: Vec<Inbox> = (0..receivers).map(inbox).collect::<Result<_, _>>()?;
    let hosts: Vec<SocketAddrV4> = (1..=receivers).map(at).collect();
    let mut sender = network.at(0, || members[0].multi_send(&hosts, PLACE, patience)).map_err(failed)?;
    let send = move |message: &[u64; WORDS]| sender.send(message).map_err(failed);
    let mut taken = Vec::new();
    let receive = move |message: &[u64; WORDS]| {
        inboxes.iter_mut().try_for_each(|inbox| {
            inbox.receive_into(&mut taken).map_err(failed)?;
            assert_eq!(taken, message, "the message that was sent");
            Ok(())
        })
    };
    Ok((Box::new(send), Box::new(receive)))
}

fn over_udp(network: &Network, way: Way, receivers: u32) -> Result<(Step, Step), Failure> {
    let open = |host: u32, port| {
        let socket = network.at(host as usize, || UdpSocket::bind((address(host as usize), port)));
        let socket = socket.map_err(Failure::system("bind"))?;
        socket.set_read_timeout(Some(LOST)).map_err(Failure::system("setsockopt"))?;
        Ok(socket)
    };
    let sender: UdpSocket = open(0, 0)?;
    let sockets: Vec<UdpSocket> =
        (1..=receivers).map(|host| open(host, PORT)).collect::<Result<_, Failure>>()?;
    let hosts: Vec<SocketAddrV4> =
        (1..=receivers).map(|host| SocketAddrV4::new(address(host as usize), PORT)).collect();
    let send = move |message: &[u64; WORDS]| {
        let mut bytes = [0; 8 * WORDS];
        for (place, word) in bytes.chunks_exact_mut(8).zip(message) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        if way == Way::Loop {
            let each = |host: &SocketAddrV4| sender.send_to(&bytes, host).map(|_| ());
            return hosts.iter().try_for_each(each).map_err(Failure::system("send"));
        }
        in_one_call(&sender, &bytes, &hosts)
    };
    let receive = move |message: &[u64; WORDS]| {
        sockets.iter().try_for_each(|socket| {
            let mut bytes = [0; 8 * WORDS];
            let lost = |_| Failure::Measurement(String::from("a message was lost"));
            socket.recv(&mut bytes).map_err(lost)?;
            assert_eq!(bytes[..8], message[0].to_le_bytes(), "the message that was sent");
            Ok(())
        })
    };
    Ok((Box::new(send), Box::new(receive)))
}

/// The sender's program drops what comes back, and no receiver has a process, so there is nothing to take.
fn by_least_programs(network: &Network) -> Result<(Step, Step), Failure> {
    let bound = network.at(0, || UdpSocket::bind((address(0), DROP_PORT)));
    let sender = bound.map_err(Failure::system("bind"))?;
    let send = move |message: &[u64; WORDS]| {
        let mut bytes = [0; KERNEL_BYTES + 8 * WORDS];
        bytes[KERNEL_BYTES..][..8].copy_from_slice(&message[0].to_le_bytes());
        sender.send_to(&bytes, (ALL, BACK_PORT)).map(|_| ()).map_err(Failure::system("send"))
    };
    Ok((Box::new(send), Box::new(|_| Ok(()))))
}

fn in_one_call(sender: &UdpSocket, bytes: &[u8], hosts: &[SocketAddrV4]) -> Result<(), Failure> {
    let slices = [std::io::IoSlice::new(bytes)];
    let mut controls: Vec<_> = hosts.iter().map(|_| rustix::net::SendAncillaryBuffer::default()).collect();
    let addresses: Vec<rustix::net::SocketAddrAny> = hosts.iter().map(|host| (*host).into()).collect();
    let mut headers: Vec<_> = addresses
        .iter()
        .zip(&mut controls)
        .map(|(host, control)| rustix::net::MMsgHdr::new_with_addr(host, &slices, control))
        .collect();
    let sent = sendmmsg(sender, &mut headers, SendFlags::empty());
    match sent.map_err(|why| Failure::system("sendmmsg")(why.into()))? {
        all if all == hosts.len() => Ok(()),
        some => Err(Failure::Measurement(format!("sendmmsg has sent {some} of {} messages", hosts.len()))),
    }
}
