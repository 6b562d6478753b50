//! What processes of a host and the service of an interface say to each other, over a socket whose name is
//! `weir-nic/INTERFACE` in the network namespace.
//!
//! A process sends one message and gets one answer. With the answer to *join* comes a descriptor of its words. The process
//! is a member as long as its connection lives, so a killed process leaves by itself.

use crate::NicError;
use crate::format::COUNTERS;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// Begins each message, and counts the versions of this exchange and of the format of packets.
const GREETING: u64 = u64::from_le_bytes(*b"weirnic3");
/// Length of a request. Unit: bytes.
pub const REQUEST_BYTES: usize = 32;
/// Length of an answer. Unit: bytes.
pub const ANSWER_BYTES: usize = 32 + 8 * COUNTERS.len();
/// Begins the names of sockets.
pub const NAME: &str = "weir-nic/";
/// How long a process waits for the service.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a process wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Command {
    /// To be a member of the domain of a secret.
    Join = 1,
    /// The counters.
    Status = 2,
    /// That the service ends.
    Detach = 3,
}

impl Command {
    fn of_number(number: u8) -> Option<Command> {
        [Command::Join, Command::Status, Command::Detach].into_iter().find(|it| *it as u8 == number)
    }
}

/// The bytes of a request. `secret`: of the domain to join.
pub fn request(command: Command, secret: &[u8; 16]) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..8].copy_from_slice(&GREETING.to_le_bytes());
    bytes[8] = command as u8;
    bytes[16..].copy_from_slice(secret);
    bytes
}

/// The request in these bytes, if they are one of this version.
pub fn read_request(bytes: &[u8]) -> Option<(Command, [u8; 16])> {
    let bytes: &[u8; REQUEST_BYTES] = bytes.try_into().ok()?;
    let secret = std::array::from_fn(|at| bytes[16 + at]);
    let command = Command::of_number(bytes[8])?;
    (bytes[..8] == GREETING.to_le_bytes()).then_some((command, secret))
}

/// Whether the service does what was wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// It does.
    Done = 0,
    /// Only root may want this.
    OnlyRoot = 1,
    /// There are too many domains.
    TooManyDomains = 2,
    /// The system refuses.
    System = 3,
}

impl Verdict {
    fn of_number(number: u8) -> Option<Verdict> {
        use Verdict::{Done, OnlyRoot, System, TooManyDomains};
        [Done, OnlyRoot, TooManyDomains, System].into_iter().find(|it| *it as u8 == number)
    }

    /// Why it does not.
    pub fn reason(self) -> &'static str {
        match self {
            Verdict::Done => "it has done it",
            Verdict::OnlyRoot => "only root may do this",
            Verdict::TooManyDomains => "64 jobs use the interface already, which is the limit",
            Verdict::System => "the system refuses",
        }
    }
}

/// What the service answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether it does it.
    pub verdict: Verdict,
    /// The UDP port of the programs.
    pub port: u16,
    /// The address of the interface.
    pub address: Ipv4Addr,
    /// How many domains there are.
    pub domains: u32,
    /// How many processes are members of one.
    pub members: u32,
    /// The first of the reply slots of the process, if it has some.
    pub slots: Option<u32>,
    /// The counters, in the order of [`COUNTERS`].
    pub counters: [u64; COUNTERS.len()],
}

/// In the place of a first slot: there is none.
const NO_SLOTS: u32 = u32::MAX;

impl Answer {
    /// The bytes of the answer.
    pub fn to_bytes(self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..8].copy_from_slice(&GREETING.to_le_bytes());
        bytes[8] = self.verdict as u8;
        bytes[10..12].copy_from_slice(&self.port.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.address.octets());
        bytes[16..20].copy_from_slice(&self.domains.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.members.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.slots.unwrap_or(NO_SLOTS).to_le_bytes());
        for (place, counter) in bytes[32..].chunks_exact_mut(8).zip(self.counters) {
            place.copy_from_slice(&counter.to_le_bytes());
        }
        bytes
    }

    /// The answer in these bytes, if they are one of this version.
    pub fn of_bytes(bytes: &[u8; ANSWER_BYTES]) -> Option<Answer> {
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let counter = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[32 + 8 * at + byte]));
        let verdict = Verdict::of_number(bytes[8])?;
        (bytes[..8] == GREETING.to_le_bytes()).then(|| Answer {
            verdict,
            port: u16::from_le_bytes([bytes[10], bytes[11]]),
            address: Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]),
            domains: half(16),
            members: half(20),
            slots: Some(half(24)).filter(|slots| *slots != NO_SLOTS),
            counters: std::array::from_fn(counter),
        })
    }
}

fn address(interface: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{NAME}{interface}"))
}

/// The socket at which the service of an interface listens. The error is `AddrInUse` if there is one.
///
/// # Errors
/// As described, and those of the system.
pub fn listen(interface: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&address(interface)?)
}

/// Connects with the service of an interface.
///
/// # Errors
/// [`NicError::NotAttached`]; also if the one who listens is not root, since anybody can take a free name.
pub fn connect(interface: &str) -> Result<UnixStream, NicError> {
    let not_attached = |why| NicError::NotAttached { interface: interface.to_owned(), why };
    let stream =
        UnixStream::connect_addr(&address(interface).map_err(not_attached)?).map_err(not_attached)?;
    let server = rustix::net::sockopt::socket_peercred(&stream).map_err(|why| not_attached(why.into()))?;
    if !server.uid.is_root() {
        return Err(not_attached(io::Error::other("the one who listens is not root")));
    }
    stream.set_read_timeout(Some(PATIENCE)).map_err(not_attached)?;
    Ok(stream)
}

/// Sends a request, and returns the answer if the service has done what was wanted.
///
/// # Errors
/// [`NicError::NotAttached`] or [`NicError::Service`].
pub fn ask(interface: &str, command: Command) -> Result<Answer, NicError> {
    let mut stream = connect(interface)?;
    let lost = |why| NicError::NotAttached { interface: interface.to_owned(), why };
    io::Write::write_all(&mut stream, &request(command, &[0; 16])).map_err(lost)?;
    let mut bytes = [0; ANSWER_BYTES];
    stream.read_exact(&mut bytes).map_err(lost)?;
    let answer = understand(interface, &bytes)?;
    if command == Command::Detach {
        // The service closes its connections when it has gone.
        let _ = stream.read(&mut bytes);
    }
    Ok(answer)
}

/// The answer in these bytes, if the service has done what was wanted.
///
/// # Errors
/// [`NicError::Service`].
pub fn understand(interface: &str, bytes: &[u8; ANSWER_BYTES]) -> Result<Answer, NicError> {
    let refused = |why: &str| NicError::Service { interface: interface.to_owned(), why: why.to_owned() };
    let answer = Answer::of_bytes(bytes).ok_or_else(|| refused("it is of another version of weir"))?;
    match answer.verdict {
        Verdict::Done => Ok(answer),
        verdict => Err(refused(verdict.reason())),
    }
}

/// The interfaces with a service in this network namespace, by the names of their sockets.
///
/// # Errors
/// The list of sockets in `/proc` cannot be read.
pub fn interfaces() -> io::Result<Vec<String>> {
    let sockets = std::fs::read_to_string("/proc/thread-self/net/unix")?;
    let names = sockets.lines().filter_map(|line| line.split_once(&format!("@{NAME}"))).map(|(_, name)| name);
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names.dedup(); // connections have the same name
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_from_their_bytes_and_others_are_refused() {
        for command in [Command::Join, Command::Status, Command::Detach] {
            let bytes = request(command, &[9; 16]);
            assert_eq!(read_request(&bytes), Some((command, [9; 16])));
            assert_eq!(read_request(&bytes[1..]), None);
            assert_eq!(read_request(&[&[1], &bytes[1..]].concat()), None);
        }
        let answer = Answer {
            verdict: Verdict::OnlyRoot,
            port: 7,
            address: Ipv4Addr::new(1, 2, 3, 4),
            domains: 5,
            members: 6,
            slots: Some(7),
            counters: std::array::from_fn(|at| at as u64 + 100),
        };
        let mut bytes = answer.to_bytes();
        assert_eq!(Answer::of_bytes(&bytes), Some(answer));
        let without = Answer { slots: None, ..answer };
        assert_eq!(Answer::of_bytes(&without.to_bytes()), Some(without));
        let refusal = understand("eth0", &bytes).unwrap_err().to_string();
        assert_eq!(refusal, "the service of eth0 refuses: only root may do this");
        bytes[0] += 1;
        assert_eq!(Answer::of_bytes(&bytes), None);
    }

    #[test]
    fn an_interface_without_service_is_not_attached() {
        let error = ask("nowhere0", Command::Status).unwrap_err().to_string();
        assert!(error.contains("run `weir nic attach nowhere0` as root"), "{error}");
    }
}
