//! The border to the core of libfabric: an endpoint for reliable datagrams of a core provider ([`CoreEndpoint`]), its name,
//! and the reasons why there is none ([`CoreError`]).
//!
//! ```text
//! link                         core
//! address_of(name of B)        12
//! send(12, message)            Taken: the bytes are copied
//! send(12, message)            Busy: later
//! receive                      each message that has arrived
//! next_failure                 12: a message to it will not arrive
//!
//! memory().register(memory)    handle 3, key and address for peers
//! memory().start(12, read)     Taken
//! memory().next_end            the context of that copy, and whether all its bytes are there
//!
//! large().begin                16 receives
//! large().send(12, message)    Taken: it leaves by itself
//! ```

use crate::memory::UserMemory;
use crate::{LocalHandle, PeerAccess};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::BorrowedFd;
use weir_proto::{Direction, RemoteAddress};

/// The longest message. The core may have a lower limit. With the headers of TCP it is below 64 KiB, so the kernel passes it
/// on in one piece; a call of the core costs more than copying it. Unit: bytes.
pub const MESSAGE_BYTES: usize = 60 << 10;
/// The most receives that are posted at a time.
pub const POSTED_RECEIVES: usize = 64;
/// The most messages to a peer that it has not acknowledged: a bound for what it keeps of them.
pub const WINDOW: u32 = 64;

/// A peer as the core numbers it (`fi_addr_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoreAddress(pub u64);

/// The format of names at a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameFormat {
    /// `sockaddr_in` or `sockaddr_in6`.
    Socket,
    /// Bytes of the provider.
    Other,
}

/// The name of an endpoint at its provider (`fi_getname`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreName {
    /// Its format.
    pub format: NameFormat,
    /// Its bytes. All names of a provider have the same length.
    pub bytes: Vec<u8>,
}

impl CoreName {
    /// The IP address in it.
    pub fn ip(&self) -> Option<IpAddr> {
        match self.format {
            NameFormat::Socket => self.socket_address().map(|address| address.ip()),
            NameFormat::Other => None,
        }
    }

    /// The address and the port in a `sockaddr_in` or `sockaddr_in6`, with the zone of the latter.
    pub(super) fn socket_address(&self) -> Option<SocketAddr> {
        let name = &self.bytes;
        let family = i32::from(u16::from_ne_bytes(*name.first_chunk()?));
        let port = u16::from_be_bytes(*name.get(2..)?.first_chunk()?);
        match family {
            libc::AF_INET => {
                let octets = name.get(4..)?.first_chunk::<4>()?;
                Some(SocketAddr::new((*octets).into(), port))
            }
            libc::AF_INET6 => {
                let (octets, rest) = name.get(8..)?.split_first_chunk::<16>()?;
                let zone = u32::from_ne_bytes(*rest.first_chunk()?);
                Some(SocketAddrV6::new((*octets).into(), port, 0, zone).into())
            }
            _ => None,
        }
    }
}

/// How contents of large messages reach their memory, beside packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreAccess {
    /// Packets carry everything.
    Packets,
    /// Reads and writes of the core ([`CoreMemory`]), which nothing protects.
    Memory,
    /// Large messages ([`CoreLarge`]), which the link seals.
    Large,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The core delivers it, or reports a failure.
    Taken,
    /// The core takes nothing now. Nothing was sent.
    Busy,
    /// The core does not send to this peer any more.
    Failed,
}

/// An endpoint of a core provider. It has one owner, and does nothing while nobody calls it.
pub trait CoreEndpoint: Send {
    /// The provider, as the setting names it.
    fn provider(&self) -> &str;

    /// Its own name.
    fn name(&self) -> &CoreName;

    /// Length of the longest message, at most [`MESSAGE_BYTES`]. Unit: bytes.
    fn longest_message(&self) -> usize;

    /// Receives that are posted at a time, at most [`POSTED_RECEIVES`].
    fn posted_receives(&self) -> usize;

    /// The address of the peer with this name. `None`: the core does not know such names.
    fn address_of(&mut self, name: &[u8]) -> Option<CoreAddress>;

    /// Sends `head` and `body` as one message. The bytes can be reused at once.
    fn send(&mut self, to: CoreAddress, head: &[u8], body: &[u8]) -> Sent;

    /// Passes messages that have arrived to `take`, until that returns `false`. Returns whether there may be more.
    fn receive(&mut self, take: &mut dyn FnMut(&[u8]) -> bool) -> bool;

    /// A peer to which a message was taken and will not arrive. Each failure is reported once.
    fn next_failure(&mut self) -> Option<CoreAddress>;

    /// A descriptor that is readable when there may be something to receive, or to do. `None`: the core has none.
    fn wait_descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Whether the caller may wait for the descriptor now. `false`: there is something already.
    fn may_wait(&mut self) -> bool;

    /// Access to the memory of peers. `None`: the provider has none, or nobody has asked for it.
    fn memory(&mut self) -> Option<&mut dyn CoreMemory> {
        None
    }

    /// Large messages. `None`: the provider has none, or nobody has asked for them.
    fn large(&mut self) -> Option<&mut dyn CoreLarge> {
        None
    }
}

/// Length of the longest large message: short enough that whoever seals or opens it finds it in the cache. Unit: bytes.
pub const LARGE_MESSAGE_BYTES: usize = (128 << 10) + 64;
/// The most receives for large messages.
pub const LARGE_RECEIVES: usize = 16;
/// The most large messages to one peer that have not left. So a peer that does not read leaves room for others.
pub const LARGE_SENDS_PER_PEER: usize = 4;

/// Large messages (`fi_tsend`, `fi_trecv`), as [`LargeMessages`](crate::datagram::network::LargeMessages) has them.
pub trait CoreLarge {
    /// Length of the longest message, at most [`LARGE_MESSAGE_BYTES`]. Unit: bytes.
    fn longest(&self) -> usize;

    /// Posts receives, if there are none yet. Returns their number, at most [`LARGE_RECEIVES`].
    fn begin(&mut self) -> usize;

    /// Passes messages that have arrived to `take`.
    fn receive(&mut self, take: &mut dyn FnMut(&mut [u8]));

    /// Sends what `write` writes; it returns the length. If the core is busy or failed, `write` was not called. At most
    /// [`LARGE_SENDS_PER_PEER`] are under way to one peer.
    fn send(&mut self, to: CoreAddress, write: &mut dyn FnMut(&mut [u8]) -> usize) -> Sent;
}

/// A copy between memory of this endpoint and that of a peer.
#[derive(Clone, Copy, Debug)]
pub struct CoreCopy {
    /// Names it in [`CoreMemory::next_end`]. Several copies may have the same.
    pub context: u64,
    /// The peer.
    pub peer: CoreAddress,
    /// From the peer or to it.
    pub direction: Direction,
    /// Place of the bytes at the peer.
    pub remote: RemoteAddress,
    /// Their offset in our memory.
    pub offset: u64,
    /// At most [`CoreMemory::longest_copy`], and contiguous in our memory. Unit: bytes.
    pub bytes: u64,
}

/// Reads and writes of the memory of peers (`fi_read`, `fi_write`), and registered memory.
pub trait CoreMemory {
    /// Whether our end of a copy must be registered too (`FI_MR_LOCAL`).
    fn registers_own(&self) -> bool;

    /// Length of the longest copy. Unit: bytes.
    fn longest_copy(&self) -> u64;

    /// Registers memory. It must remain valid until [`CoreMemory::deregister`] or [`CoreMemory::close`]. The remote address is
    /// never [`RemoteAddress::NONE`], and its key is not 0. `None`: the core does not register this memory.
    fn register(&mut self, memory: &UserMemory, access: PeerAccess) -> Option<(LocalHandle, RemoteAddress)>;

    /// Ends a registration.
    fn deregister(&mut self, handle: LocalHandle);

    /// Starts a copy between the peer and `memory`, which is registered as `handle` if it must be. It must remain valid until
    /// the end of the copy, or until [`CoreMemory::close`].
    fn start(&mut self, copy: &CoreCopy, memory: &UserMemory, handle: Option<LocalHandle>) -> Sent;

    /// Lets the core work.
    fn progress(&mut self);

    /// A copy that has ended, and whether all its bytes are there: here for a read, there for a write.
    fn next_end(&mut self) -> Option<(u64, bool)>;

    /// Closes the endpoint: from now on nobody accesses memory. No copy ends any more, messages fail, and none arrive.
    fn close(&mut self);
}

/// There is no endpoint of the core provider.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// The process uses no libfabric.
    #[error("FI_WEIR_LINK: ofi:{provider} needs a program that uses libfabric")]
    NoLibrary {
        /// The provider.
        provider: String,
    },
    /// libfabric has no provider of this name for these endpoints.
    #[error(
        "FI_WEIR_LINK: ofi:{provider}: libfabric {version} has no provider of this name with reliable unconnected endpoints \
         (FI_EP_RDM){advice}. It has {others}"
    )]
    NoProvider {
        /// The provider.
        provider: String,
        /// Version of libfabric.
        version: String,
        /// What else may help; empty, or begins with a space.
        advice: String,
        /// The providers that it has.
        others: String,
    },
    /// The setting fits no network of the provider.
    #[error("FI_WEIR_NET={value}: ofi:{provider} has no such network. It has: {networks}")]
    NoSuchNet {
        /// The value of the setting.
        value: String,
        /// The provider.
        provider: String,
        /// Names and addresses of its networks.
        networks: String,
    },
    /// A call of libfabric failed.
    #[error("FI_WEIR_LINK: ofi:{provider}: {call} failed: {reason}")]
    Call {
        /// The provider.
        provider: String,
        /// The function.
        call: &'static str,
        /// The text of libfabric.
        reason: String,
    },
    /// The core's messages are too short.
    #[error("FI_WEIR_LINK: ofi:{provider}: its messages have at most {bytes} bytes; weir needs {least}")]
    ShortMessages {
        /// The provider.
        provider: String,
        /// The provider's limit.
        bytes: usize,
        /// What weir needs.
        least: usize,
    },
    /// The name does not fit into an address.
    #[error(
        "FI_WEIR_LINK: ofi:{provider}: its address {name} does not fit into the {most} bytes that an address of weir has for \
         it, and takes {bytes}"
    )]
    LongName {
        /// The provider.
        provider: String,
        /// The name, in hexadecimal digits.
        name: String,
        /// The bytes that it takes.
        bytes: usize,
        /// The bytes that there are.
        most: usize,
    },
    /// The port that tells peers that this process lives cannot be opened.
    #[error("FI_WEIR_LINK: ofi:{provider}: cannot listen at {address}{ports}: {error}")]
    Listen {
        /// The provider.
        provider: String,
        /// The address.
        address: IpAddr,
        /// The range of ports; empty, or begins with a comma.
        ports: String,
        /// The reason.
        error: io::Error,
    },
}
