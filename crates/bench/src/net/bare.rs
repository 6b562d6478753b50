//! Bare UDP between two pretended hosts: the half round trip of two threads that do nothing else. It is what a protocol over
//! UDP cannot beat.

use super::hosts::Hosts;
use std::net::UdpSocket;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use weir_output::Failure;

/// Round trips between two looks at the clock.
const BATCH: u32 = 200;
/// An answer that takes longer was lost.
pub(super) const LOST: Duration = Duration::from_secs(1);
/// The first byte of the last message.
pub(super) const END: u8 = 1;
/// That of all others.
pub(super) const MORE: u8 = 0;

/// The calling thread joins a host, with its core, and opens a socket there.
pub(super) fn begin(hosts: &Hosts, host: usize) -> Result<UdpSocket, Failure> {
    let cores = weir_link::cores::allowed().map_err(Failure::system("sched_getaffinity"))?;
    hosts.join_network(host)?;
    if cores.len() > 1 {
        weir_link::cores::pin(cores[host]).map_err(Failure::system("sched_setaffinity"))?;
    }
    let address = hosts.address(host);
    let socket = UdpSocket::bind((address.as_str(), 0)).map_err(Failure::system(address))?;
    socket.set_nonblocking(true).map_err(Failure::system("a socket"))?;
    Ok(socket)
}

/// Half round trips of messages of these sizes, each measured for `time`. Unit: us.
///
/// # Errors
/// [`Failure`]: a socket could not be opened, or a message was lost.
pub fn half_round_trips(hosts: &Hosts, sizes: &[usize], time: Duration) -> Result<Vec<f64>, Failure> {
    let place = |socket: &UdpSocket| socket.local_addr().map_err(Failure::system("a socket"));
    let ((to_echo, from_asker), (to_asker, from_echo)) = (channel(), channel());
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || {
            let socket = begin(hosts, 1)?;
            let _ = to_asker.send(place(&socket)?);
            let Ok(asker) = from_asker.recv() else { return Ok(()) };
            socket.connect(asker).map_err(Failure::system("connect"))?;
            let mut bytes = [0; 2048];
            loop {
                let length = receive(&socket, &mut bytes)?;
                socket.send(&bytes[..length]).map_err(Failure::system("send"))?;
                if bytes[0] == END {
                    return Ok(());
                }
            }
        });
        let asker = scope.spawn(move || {
            let socket = begin(hosts, 0)?;
            let _ = to_echo.send(place(&socket)?);
            let Ok(echo) = from_echo.recv() else {
                return Err(Failure::Measurement(String::from("no echo of bare UDP")));
            };
            socket.connect(echo).map_err(Failure::system("connect"))?;
            let mut bytes = [MORE; 2048];
            let mut times = Vec::new();
            for &size in sizes {
                let mut best: Vec<f64> = Vec::new();
                let begun = Instant::now();
                while best.is_empty() || begun.elapsed() < time {
                    let batch = Instant::now();
                    for _ in 0..BATCH {
                        socket.send(&bytes[..size]).map_err(Failure::system("send"))?;
                        receive(&socket, &mut bytes)?;
                    }
                    best.push(batch.elapsed().as_secs_f64() * 1e6 / f64::from(2 * BATCH));
                }
                best.sort_by(f64::total_cmp);
                times.push(best[best.len() / 2]);
            }
            bytes[0] = END;
            socket.send(&bytes[..8]).map_err(Failure::system("send"))?;
            Ok(times)
        });
        let times = asker.join().expect("the asker does not panic");
        echo.join().expect("the echo does not panic").and(times)
    })
}

/// Spins until a message has arrived.
fn receive(socket: &UdpSocket, bytes: &mut [u8]) -> Result<usize, Failure> {
    let mut begun = None;
    loop {
        for _ in 0..1000 {
            match socket.recv(bytes) {
                Ok(length) => return Ok(length),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(Failure::system("recv")(error)),
            }
        }
        if begun.get_or_insert_with(Instant::now).elapsed() > LOST {
            return Err(Failure::Measurement(String::from("a message of bare UDP was lost")));
        }
    }
}
