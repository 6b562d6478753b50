//! The threads of a bare incast ([`with_senders`]): a receiver on the first pretended host, and a sender on each of the
//! next ones. If there are as many cores as threads, each has its own. Otherwise all share all cores, as ranks do. All
//! are threads of one process, so a switch from one to another costs less than that between ranks.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use weir_output::Failure;

/// What the threads tell each other.
#[derive(Debug)]
pub(super) struct Signals {
    is_over: AtomicBool,
    /// Senders that have not ended.
    senders: AtomicUsize,
}

impl Signals {
    /// Whether senders shall end.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Senders shall end.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether all senders have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.senders.load(Ordering::Relaxed) == 0
    }
}

/// The cores of a receiver and so many senders. `None`: there are too few.
///
/// # Errors
/// [`Failure::System`].
pub(super) fn own_cores(senders: usize) -> Result<Option<Vec<usize>>, Failure> {
    let cores = weir_link::cores::allowed().map_err(Failure::system("sched_getaffinity"))?;
    Ok((senders < cores.len()).then_some(cores))
}

/// Each sender has the number of its host, from 1 on, and a socket. Returns what the receiver returns.
///
/// # Errors
/// [`Failure`]: of one of the threads.
pub(super) fn with_senders<S: Send, T: Send>(
    sockets: Vec<S>,
    sender: impl Fn(usize, S, &Signals) -> Result<(), Failure> + Sync,
    receiver: impl FnOnce(&Signals) -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let cores = own_cores(sockets.len())?;
    let pin = |host: usize| match &cores {
        Some(cores) => weir_link::cores::pin(cores[host]).map_err(Failure::system("sched_setaffinity")),
        None => Ok(()),
    };
    let signals = Signals { is_over: AtomicBool::new(false), senders: AtomicUsize::new(sockets.len()) };
    std::thread::scope(|scope| {
        let (signals, sender, pin) = (&signals, &sender, &pin);
        let run = |(host, socket)| {
            scope.spawn(move || {
                let result = pin(host).and_then(|()| sender(host, socket, signals));
                signals.senders.fetch_sub(1, Ordering::Relaxed);
                result
            })
        };
        let senders: Vec<_> = (1..).zip(sockets).map(run).collect();
        let receiver = scope.spawn(move || {
            let result = pin(0).and_then(|()| receiver(signals));
            signals.end();
            result
        });
        let result = receiver.join().expect("the receiver does not panic");
        let senders = senders.into_iter().map(|sender| sender.join().expect("a sender does not panic"));
        // If both fail, the receiver's failure is the cause of the others.
        let senders: Result<(), Failure> = senders.collect();
        result.and_then(|value| senders.map(|()| value))
    })
}

/// Runs `make` in a thread of its own, which can join networks of hosts. Its sockets stay in these.
///
/// # Errors
/// Those of `make`.
pub(super) fn in_networks<T: Send>(make: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    std::thread::scope(|scope| scope.spawn(make).join().expect("sockets are made without panic"))
}
