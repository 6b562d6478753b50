//! Half of `weir bench nic`: fetch&add of a word of another host, by the kernel there and by a process there.

use std::net::{SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use weir_link::cores;
use weir_nic::pretended::{BACK_PORT, DROP_PORT, Network, address};
use weir_nic::{Membership, Patience, Remote};
use weir_output::Failure;

/// Operations between two looks at the clock.
const BATCH: u32 = 20;
/// The server's port, when it is a process.
const PORT: u16 = 7000;
/// Length of its packets, as of those of the kernel programs. They are not authenticated, which favours it. Unit: bytes.
const BYTES: usize = 64;
/// A tenth of it without an answer: the question is sent again. Five times of it: the measurement fails.
const LOST: Duration = Duration::from_secs(1);

/// What the process of the target does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// It sleeps.
    Sleeps,
    /// It computes.
    Computes,
    /// It looks for requests again and again.
    Spins,
    /// It waits for requests asleep.
    Waits,
}

/// Pins the calling thread to the core with this number, if there is more than one.
fn pin(number: usize) {
    if let Ok(allowed) = cores::allowed()
        && allowed.len() > 1
    {
        // Without it the measurement is only less steady.
        let _ = cores::pin(allowed[number % allowed.len()]);
    }
}

/// Median time of one operation.
///
/// # Errors
/// Of the operation.
fn median_ns(time: Duration, mut operation: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    let (mut times, begun) = (Vec::new(), Instant::now());
    while times.is_empty() || begun.elapsed() < time {
        let batch = Instant::now();
        for _ in 0..BATCH {
            operation()?;
        }
        times.push(batch.elapsed().as_nanos() as f64 / f64::from(BATCH));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Where the asker looks for answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// In memory, which the kernel programs of its own host write.
    InMemory,
    /// At its socket.
    AtSocket,
}

/// By the kernel of host 1, asked by a member on host 0, which looks for answers again and again. Unit: ns.
///
/// # Errors
/// [`Failure::Measurement`].
pub fn by_kernel(
    network: &Network,
    member: &Membership,
    target: Target,
    answers: Answers,
    time: Duration,
) -> Result<f64, Failure> {
    let failed = |error: weir_nic::NicError| Failure::Measurement(error.to_string());
    let at = SocketAddrV4::new(address(1), weir_nic::format::DEFAULT_PORT);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if target == Target::Computes {
            scope.spawn(|| {
                pin(1);
                let mut value = 1_u64;
                while !ended.load(Ordering::Relaxed) {
                    for _ in 0..1000 {
                        value = std::hint::black_box(value.wrapping_mul(6_364_136_223_846_793_005) + 1);
                    }
                }
            });
        }
        let measured = network.at(0, || {
            pin(0);
            let patience = Patience { spin: LOST, ..Patience::default() };
            let remote = match answers {
                Answers::InMemory => member.remote(at, patience),
                Answers::AtSocket => Remote::new(member.domain(), at, patience),
            };
            let mut remote = remote.map_err(failed)?;
            median_ns(time, || remote.fetch_add(0, 1).map(|_| ()).map_err(failed))
        });
        ended.store(true, Ordering::Relaxed);
        measured
    })
}

/// What any program of another host takes at least: the time of a request that the least program there sends back, and that
/// of the asker's host drops. All of it runs inside the asker's call. Unit: ns.
///
/// # Errors
/// [`Failure`].
pub fn there_and_back(network: &Network, time: Duration) -> Result<f64, Failure> {
    network.at(0, || {
        pin(0);
        let socket = UdpSocket::bind((address(0), DROP_PORT)).map_err(Failure::system("bind"))?;
        socket.connect((address(1), BACK_PORT)).map_err(Failure::system("connect"))?;
        median_ns(time, || socket.send(&[0; BYTES]).map(|_| ()).map_err(Failure::system("send")))
    })
}

/// By a process on host 1, asked in the same way. Unit: ns.
///
/// # Errors
/// [`Failure`].
pub fn by_process(network: &Network, target: Target, time: Duration) -> Result<f64, Failure> {
    let ended = AtomicBool::new(false);
    let (tell, ready) = channel();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            pin(1);
            network.enter(1);
            let socket = UdpSocket::bind((address(1), PORT)).map_err(Failure::system("bind"))?;
            socket.set_nonblocking(target == Target::Spins).map_err(Failure::system("fcntl"))?;
            socket.set_read_timeout(Some(LOST / 100)).map_err(Failure::system("setsockopt"))?;
            let _ = tell.send(());
            drop(tell);
            let word = AtomicU64::new(0);
            let mut bytes = [0; BYTES];
            while !ended.load(Ordering::Relaxed) {
                let Ok((_, asker)) = socket.recv_from(&mut bytes) else { continue };
                let old = word.fetch_add(1, Ordering::AcqRel);
                bytes[..8].copy_from_slice(&old.to_le_bytes());
                socket.send_to(&bytes, asker).map_err(Failure::system("send"))?;
            }
            Ok(())
        });
        let _ = ready.recv(); // an error: the server has failed, and says why below
        let measured = network.at(0, || {
            pin(0);
            let socket = UdpSocket::bind((address(0), 0)).map_err(Failure::system("bind"))?;
            socket.connect((address(1), PORT)).map_err(Failure::system("connect"))?;
            socket.set_nonblocking(true).map_err(Failure::system("fcntl"))?;
            let mut bytes = [0; BYTES];
            median_ns(time, || {
                let begun = Instant::now();
                while begun.elapsed() < LOST * 5 {
                    socket.send(&bytes).map_err(Failure::system("send"))?;
                    let sent = Instant::now();
                    while sent.elapsed() < LOST / 10 {
                        if socket.recv(&mut bytes).is_ok() {
                            return Ok(());
                        }
                    }
                }
                Err(Failure::Measurement(String::from("a process has not answered")))
            })
        });
        ended.store(true, Ordering::Relaxed);
        server.join().expect("the server does not panic").and(measured)
    })
}
