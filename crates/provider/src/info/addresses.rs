//! The addresses in an answer of `fi_getinfo`, from node, service, flags and hints.
//!
//! An endpoint gets its address when it is enabled, and programs exchange addresses themselves (`fi_getname`). So a
//! source address is [`ANY`] until then, and node and service cannot name a destination. With `FI_SOURCE` they name the
//! own side: the node must be this host, and the service means nothing. A destination comes only from the hints, and is
//! returned as it is.
//!
//! An example, a server: `fi_getinfo(node "localhost", service "7471", FI_SOURCE)` gets the source address [`ANY`].

use std::ffi::CStr;
use std::fmt::{Display, Formatter};
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};

use weir_link::ADDRESS_BYTES;

use crate::ffi::{FiInfo, flags, inner};

type AddressBytes = [u8; ADDRESS_BYTES];

/// The source address of an endpoint that is not enabled yet.
pub const ANY: AddressBytes = [0; ADDRESS_BYTES];

/// The addresses of an answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Source.
    pub source: AddressBytes,
    /// Destination, if the hints name one.
    pub destination: Option<AddressBytes>,
}

/// The reason why there are no addresses for a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// Node or service name a destination.
    Destination,
    /// `FI_SOURCE` without node and service.
    Nothing,
    /// The node is another host, or unknown.
    NotLocal(String),
    /// The source address in the hints is not [`ANY`].
    OwnSource,
    /// An address in the hints has this many bytes.
    Length(usize),
}

impl Display for Unresolved {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Unresolved::Destination => formatter.write_str(
                "weir knows no destination by node and service; allowed: neither of them, or FI_SOURCE",
            ),
            Unresolved::Nothing => formatter
                .write_str("FI_SOURCE without node and service; allowed: either of them, or no FI_SOURCE"),
            Unresolved::NotLocal(node) => {
                write!(formatter, "the source node is {node}; allowed: a name or an IP address of this host")
            }
            Unresolved::OwnSource => {
                formatter.write_str("the hints have a source address; allowed: none, or only bytes 0")
            }
            Unresolved::Length(bytes) => {
                write!(formatter, "an address in the hints has {bytes} bytes; allowed: {ADDRESS_BYTES}")
            }
        }
    }
}

/// The addresses for a request.
///
/// # Errors
/// [`Unresolved`].
pub fn resolve(
    node: Option<&CStr>,
    service: Option<&CStr>,
    flags: u64,
    hints: Option<&FiInfo>,
) -> Result<Addresses, Unresolved> {
    let named = node.is_some() || service.is_some();
    let of_source = flags & flags::SOURCE != 0;
    if of_source && !named {
        return Err(Unresolved::Nothing);
    }
    if named && !of_source {
        return Err(Unresolved::Destination);
    }
    if let Some(node) = node {
        let node = node.to_string_lossy();
        if !is_local(&node, flags & flags::NUMERIC_HOST != 0) {
            return Err(Unresolved::NotLocal(node.into_owned()));
        }
    }
    let hinted = |address: Option<&AddressBytes>, bytes: usize| match address {
        Some(_) if bytes != ADDRESS_BYTES => Err(Unresolved::Length(bytes)),
        address => Ok(address.copied()),
    };
    let (mut source, mut destination) = (None, None);
    if let Some(hints) = hints {
        if !of_source {
            source = hinted(inner(hints.src_addr.cast()), hints.src_addrlen)?;
        }
        destination = hinted(inner(hints.dest_addr.cast()), hints.dest_addrlen)?;
    }
    match source {
        Some(source) if source != ANY => Err(Unresolved::OwnSource),
        _ => Ok(Addresses { source: ANY, destination }),
    }
}

/// Whether `node` is this host: a socket can be bound to one of its addresses. `numeric`: it is an IP address, not a
/// name.
fn is_local(node: &str, numeric: bool) -> bool {
    let can_bind = |address: IpAddr| UdpSocket::bind((address, 0)).is_ok();
    if numeric {
        return node.parse().is_ok_and(can_bind);
    }
    (node, 0).to_socket_addrs().is_ok_and(|mut found| found.any(|address| can_bind(address.ip())))
}
