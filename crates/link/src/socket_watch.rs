//! A thread that sleeps at the sockets of an endpoint that sleeps elsewhere ([`SocketWatch`]). It rings the endpoint's bell
//! when something arrives at one of them.
//!
//! An endpoint with shared memory and a network must wake for both. It sleeps at the futex of its mailbox, where senders of
//! the node wake it as ever. So they need not know whether it has a socket, and shared memory loses nothing. The thread
//! costs one more wake-up for what comes over the network, and only if the endpoint sleeps:
//! ```text
//! endpoint   arm, sleeps at the futex
//! kernel     a datagram arrives: wakes the thread     thread: rings; sleeps until the next arm
//! endpoint   runs, and reads the socket while it runs; nobody wakes the thread
//! ```
//! `EPOLLONESHOT` does that: after an event the descriptor is silent until it is armed again, and a descriptor that is
//! readable then is reported at once. So no wake-up is lost. An endpoint that was woken by others leaves the thread armed,
//! and need not arm it at its next sleep.

use crate::Bell;
use crate::cores::spawn_without_signals;
use crate::event_descriptor::EventDescriptor;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

const SOCKET: u64 = 0;
const STOP: u64 = 1;

#[derive(Debug)]
struct Shared {
    epoll: OwnedFd,
    /// The thread rings for the next arrival. It may ring just now.
    is_armed: AtomicBool,
    stop: EventDescriptor,
}

impl Shared {
    fn run(&self, bell: &dyn Bell) {
        let mut events = Vec::with_capacity(2);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return, // the descriptors are ours, so this does not happen
            }
            if events.iter().any(|event| event.data.u64() == STOP) {
                return;
            }
            if !events.is_empty() {
                // Before the ring: an endpoint that sleeps again must arm again.
                self.is_armed.store(false, Ordering::Release);
                bell.ring();
            }
        }
    }
}

/// See the head of this file. The thread ends when this is dropped.
#[derive(Debug)]
pub struct SocketWatch {
    shared: Arc<Shared>,
    sockets: Vec<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl SocketWatch {
    /// Starts the thread, which rings `bell`. It is not armed.
    ///
    /// # Errors
    /// Those of epoll, eventfd and of starting a thread.
    pub fn start<'a>(
        sockets: impl IntoIterator<Item = BorrowedFd<'a>>,
        bell: Arc<dyn Bell>,
    ) -> io::Result<SocketWatch> {
        let sockets: Vec<OwnedFd> =
            sockets.into_iter().map(|socket| socket.try_clone_to_owned()).collect::<io::Result<_>>()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let stop = EventDescriptor::open()?;
        // Without flags it still reports errors and ends. With this one it does so once.
        let silent = epoll::EventFlags::ONESHOT;
        for socket in &sockets {
            epoll::add(&epoll, socket, epoll::EventData::new_u64(SOCKET), silent)?;
        }
        epoll::add(&epoll, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let shared = Arc::new(Shared { epoll, is_armed: AtomicBool::new(false), stop });
        let inside = Arc::clone(&shared);
        let thread = Some(spawn_without_signals("weir-socket", move || inside.run(&*bell))?);
        Ok(SocketWatch { shared, sockets, thread })
    }

    /// Whether nothing has arrived since it was armed. It can be about to ring.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.shared.is_armed.load(Ordering::Acquire)
    }

    /// The next arrival rings, and so does one that waits already.
    pub fn arm(&self) {
        if !self.shared.is_armed.swap(true, Ordering::AcqRel) {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
            let event = epoll::EventData::new_u64(SOCKET);
            for socket in &self.sockets {
                epoll::modify(&self.shared.epoll, socket, event, flags).expect("both descriptors are open");
            }
        }
    }
}

impl Drop for SocketWatch {
    fn drop(&mut self) {
        self.shared.stop.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic of the thread has been reported
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    struct Channel(Sender<()>);

    impl Bell for Channel {
        fn ring(&self) {
            let _ = self.0.send(());
        }
    }

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(20);

    fn watched() -> (UdpSocket, SocketWatch, Receiver<()>) {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let (sender, rings) = channel();
        let watch = SocketWatch::start([socket.as_fd()], Arc::new(Channel(sender))).expect("a thread");
        (socket, watch, rings)
    }

    fn send_to(socket: &UdpSocket) {
        let to = socket.local_addr().expect("bound");
        socket.send_to(b"x", to).expect("sent");
    }

    #[test]
    fn an_arrival_rings_once_if_the_watch_is_armed() {
        let (socket, watch, rings) = watched();
        send_to(&socket);
        assert!(rings.recv_timeout(SHORT).is_err(), "not armed");
        watch.arm();
        rings.recv_timeout(LONG).expect("it waits already");
        send_to(&socket);
        assert!(rings.recv_timeout(SHORT).is_err(), "not armed again");
        for _ in 0..2 {
            socket.recv(&mut [0; 8]).expect("arrived");
        }
        watch.arm();
        watch.arm();
        assert!(rings.recv_timeout(SHORT).is_err(), "nothing has arrived");
        send_to(&socket);
        rings.recv_timeout(LONG).expect("a ring");
    }

    #[test]
    fn no_arrival_is_missed_between_two_sleeps() {
        let (socket, watch, rings) = watched();
        for _ in 0..2000 {
            watch.arm();
            send_to(&socket);
            rings.recv_timeout(LONG).expect("a ring");
            socket.recv(&mut [0; 8]).expect("arrived");
            while rings.try_recv().is_ok() {}
        }
    }

    #[test]
    fn the_thread_ends_with_the_watch() {
        let (_socket, watch, rings) = watched();
        drop(watch);
        assert!(matches!(rings.recv_timeout(LONG), Err(std::sync::mpsc::RecvTimeoutError::Disconnected)));
    }
}
