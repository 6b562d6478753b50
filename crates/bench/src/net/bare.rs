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
fn begin(hosts: &Hosts, host: usize) -> Result<UdpSocket, Failure> {
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

/// Runs two threads on two hosts, whose sockets are connected. Returns what the asker returns.
///
/// # Errors
/// [`Failure`]: of one of the threads.
pub(super) fn between<T: Send>(
    hosts: &Hosts,
    echo: impl FnOnce(UdpSocket) -> Result<(), Failure> + Send,
    asker: impl FnOnce(UdpSocket) -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let place = |socket: &UdpSocket| socket.local_addr().map_err(Failure::system("a socket"));
    let ((to_echo, from_asker), (to_asker, from_echo)) = (channel(), channel());
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || {
            let socket = begin(hosts, 1)?;
            let _ = to_asker.send(place(&socket)?);
            let Ok(other) = from_asker.recv() else { return Ok(()) };
            socket.connect(other).map_err(Failure::system("connect"))?;
            echo(socket)
        });
        let asker = scope.spawn(move || {
            let socket = begin(hosts, 0)?;
            let _ = to_echo.send(place(&socket)?);
            let Ok(other) = from_echo.recv() else {
                return Err(Failure::Measurement(String::from("no echo of bare UDP")));
            };
            socket.connect(other).map_err(Failure::system("connect"))?;
            asker(socket)
        });
        let result = asker.join().expect("the asker does not panic");
        echo.join().expect("the echo does not panic").and(result)
    })
}

/// Repeats `turn` for `time`, and says whether it is the last one. Returns the median of the turns. Unit: us.
pub(super) fn median_us(
    time: Duration,
    mut turn: impl FnMut(bool) -> Result<(), Failure>,
) -> Result<f64, Failure> {
    let (mut times, begun) = (Vec::new(), Instant::now());
    let mut is_last = false;
    while !is_last {
        is_last = !times.is_empty() && begun.elapsed() >= time;
        let before = Instant::now();
        turn(is_last)?;
        times.push(before.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Half round trips of messages of these sizes, each measured for `time`. Unit: us.
///
/// # Errors
/// [`Failure`]: a socket could not be opened, or a message was lost.
pub fn half_round_trips(hosts: &Hosts, sizes: &[usize], time: Duration) -> Result<Vec<f64>, Failure> {
    between(
        hosts,
        |socket| {
            let mut bytes = [0; 2048];
            loop {
                let length = receive(&socket, &mut bytes)?;
                socket.send(&bytes[..length]).map_err(Failure::system("send"))?;
                if bytes[0] == END {
                    return Ok(());
                }
            }
        },
        |socket| {
            let mut bytes = [MORE; 2048];
            let mut times = Vec::new();
            for &size in sizes {
                let batch_us = median_us(time, |_| {
                    for _ in 0..BATCH {
                        socket.send(&bytes[..size]).map_err(Failure::system("send"))?;
                        receive(&socket, &mut bytes)?;
                    }
                    Ok(())
                })?;
                times.push(batch_us / f64::from(2 * BATCH));
            }
            bytes[0] = END;
            socket.send(&bytes[..8]).map_err(Failure::system("send"))?;
            Ok(times)
        },
    )
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
