//! The service of an interface, which `weir nic attach` runs: it has the kernel programs attached, and gives processes of
//! this host their domains. Frames never wait for it.
//!
//! One thread, one loop. When the process ends, by a signal too, the kernel detaches the programs and closes all
//! connections.

use crate::control::{self, Answer, Command, REQUEST_BYTES, Verdict};
use crate::format::{REPLY_SLOTS, SLOTS_OF_A_PROCESS};
use crate::programs::{AttachError, Programs, Slot};
use crate::{Domain, Secret};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::collections::HashMap;
use std::io::{self, ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};

/// Bound: connections at once.
const MAX_CONNECTIONS: usize = 1024;

/// Ranges of reply slots of a domain: one for each process.
const RANGES: u32 = REPLY_SLOTS / SLOTS_OF_A_PROCESS;
const _: () = assert!(RANGES <= u64::BITS, "there is a bit for each");

/// A domain with members.
#[derive(Debug)]
struct Used {
    slot: Slot,
    members: u32,
    /// A bit for each range of reply slots that a process has.
    ranges: u64,
}

/// A process that has connected.
#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    /// The domain that it has joined.
    domain: Option<u64>,
    /// The range of its reply slots there. More processes than ranges have none.
    range: Option<u32>,
}

/// See the head of this file.
pub struct Service {
    listener: UnixListener,
    programs: Programs,
    address: Ipv4Addr,
    port: u16,
    domains: HashMap<u64, Used>,
    connections: Vec<Connection>,
}

/// The first IPv4 address of an interface.
///
/// # Errors
/// [`AttachError::NoAddress`].
pub fn address_of(interface: &str) -> Result<Ipv4Addr, AttachError> {
    let none = || AttachError::NoAddress(interface.to_owned());
    let all = nix::ifaddrs::getifaddrs().map_err(|_| none())?;
    let mut own = all.filter(|it| it.interface_name == interface);
    own.find_map(|it| Some(it.address?.as_sockaddr_in()?.ip())).ok_or_else(none)
}

impl Service {
    /// Attaches the programs to an interface.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(interface: &str, port: u16) -> Result<Service, AttachError> {
        let address = address_of(interface)?;
        let programs = Programs::attach(interface, address, port);
        let listener = control::listen(interface).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => AttachError::Attached(interface.to_owned()),
            _ => AttachError::Kernel { what: "the socket of the service", why: error.to_string() },
        })?;
        let programs = programs?;
        listener
            .set_nonblocking(true)
            .map_err(|why| AttachError::Kernel { what: "fcntl", why: why.to_string() })?;
        let (domains, connections) = (HashMap::new(), Vec::new());
        Ok(Service { listener, programs, address, port, domains, connections })
    }

    /// The address of the interface, to which the programs listen.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Serves until a process of root says that it shall end.
    ///
    /// # Errors
    /// Those of the system. A process cannot cause one.
    pub fn run(mut self) -> io::Result<()> {
        loop {
            let ready = self.sleep()?;
            // From the end, since those that have gone are removed.
            for at in (0..self.connections.len()).rev().filter(|at| ready[at + 1]) {
                if self.hear(at)? {
                    return Ok(());
                }
            }
            if ready[0] {
                self.accept();
            }
        }
    }

    /// Sleeps until something happens: at the listener, and at each connection.
    fn sleep(&self) -> io::Result<Vec<bool>> {
        let files: Vec<BorrowedFd<'_>> = std::iter::once(self.listener.as_fd())
            .chain(self.connections.iter().map(|connection| connection.stream.as_fd()))
            .collect();
        let mut waiting: Vec<PollFd<'_>> =
            files.iter().map(|file| PollFd::from_borrowed_fd(*file, PollFlags::IN)).collect();
        match poll(&mut waiting, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(waiting.iter().map(|one| !one.revents().is_empty()).collect())
    }

    fn accept(&mut self) {
        let Ok((stream, _)) = self.listener.accept() else { return };
        if self.connections.len() < MAX_CONNECTIONS && stream.set_nonblocking(true).is_ok() {
            self.connections.push(Connection { stream, domain: None, range: None });
        }
    }

    /// Reads what a process says. Returns whether the service shall end.
    fn hear(&mut self, at: usize) -> io::Result<bool> {
        let mut bytes = [0; REQUEST_BYTES];
        let request = match self.connections[at].stream.read(&mut bytes) {
            Ok(length) => control::read_request(&bytes[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(_) => None,
        };
        // It has gone, or is of another version. An answer to the latter names ours.
        let Some((command, secret)) = request else {
            let _ = self.answer(at, Verdict::System);
            self.forget(at)?;
            return Ok(false);
        };
        let verdict = match command {
            Command::Status => Verdict::Done,
            Command::Detach => {
                let process = rustix::net::sockopt::socket_peercred(&self.connections[at].stream);
                let is_root = process.is_ok_and(|process| process.uid.is_root());
                if is_root { Verdict::Done } else { Verdict::OnlyRoot }
            }
            Command::Join => self.join(at, &secret),
        };
        if self.answer(at, verdict).is_err() {
            self.forget(at)?;
        }
        Ok(command == Command::Detach && verdict == Verdict::Done)
    }

    /// A process joins the domain of a secret, which is new if it is the first one.
    fn join(&mut self, at: usize, secret: &Secret) -> Verdict {
        let domain = Domain::of(secret);
        if self.connections[at].domain.is_some() {
            return Verdict::System; // one domain for each connection
        }
        if !self.domains.contains_key(&domain.name) {
            match self.programs.admit(&domain) {
                Ok(Some(slot)) => self.domains.insert(domain.name, Used { slot, members: 0, ranges: 0 }),
                Ok(None) => return Verdict::TooManyDomains,
                Err(_) => return Verdict::System,
            };
        }
        if let Some(used) = self.domains.get_mut(&domain.name) {
            used.members += 1;
            self.connections[at].domain = Some(domain.name);
            let free = used.ranges.trailing_ones();
            self.connections[at].range = (free < RANGES).then_some(free);
            used.ranges |= 1_u64.checked_shl(free).unwrap_or(0);
        }
        Verdict::Done
    }

    /// Answers a process, with the descriptor of its words if it has joined.
    fn answer(&mut self, at: usize, verdict: Verdict) -> io::Result<()> {
        let answer = Answer {
            verdict,
            port: self.port,
            address: self.address,
            domains: self.domains.len() as u32,
            members: self.domains.values().map(|used| used.members).sum(),
            slots: self.connections[at].range.map(|range| range * SLOTS_OF_A_PROCESS),
            counters: self.programs.counters().unwrap_or_default(),
        };
        let connection = &self.connections[at];
        let file = connection.domain.and_then(|domain| self.domains.get(&domain)).map(|used| &used.slot.file);
        let files: Vec<BorrowedFd<'_>> = file.map(AsFd::as_fd).into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&files));
        }
        let bytes = answer.to_bytes();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&connection.stream, &[IoSlice::new(&bytes)], &mut ancillary, flags)?;
        Ok(())
    }

    /// A process has gone. Its domain ends with the last member.
    fn forget(&mut self, at: usize) -> io::Result<()> {
        let Connection { domain, range, .. } = self.connections.swap_remove(at);
        let Some(domain) = domain else { return Ok(()) };
        let Some(used) = self.domains.get_mut(&domain) else { return Ok(()) };
        used.members -= 1;
        used.ranges &= !range.map_or(0, |range| 1 << range);
        if used.members == 0
            && let Some(used) = self.domains.remove(&domain)
        {
            self.programs.dismiss(used.slot).map_err(io::Error::other)?;
        }
        Ok(())
    }
}
