//! The address of an endpoint: 64 bytes that MPI libraries exchange when a job starts. It identifies the endpoint,
//! proves with a key that its owner belongs to the job, and has a part for each link that reaches the endpoint.
//!
//! ```text
//! 0    version      1 B
//! 1    parts        1 B   number of parts
//! 2    packets      1 B   version of the packet format
//! 3    scheme       1 B   number of the flow-control scheme, from 1 on; 0: not said
//! 4    zero         1 B
//! 5    protection   1 B   number of a [`Protection`]
//! 6    zero         2 B
//! 8    identity     8 B   a random number that identifies the endpoint and may be shown
//! 16   key         16 B   proves that whoever has the address belongs to the job
//! 32   parts       32 B   one after the other: kind (1 B), length (1 B), contents; then zeroes
//! ```
//! Identity and key belong to the endpoint, not to a link. A part says what one link needs to reach it, beside those.
//! An endpoint ignores parts of kinds ([`LinkKind`]) that it does not know. The text of an address shows identity and
//! parts, but not the key.
//!
//! Both ends of a path compare what they must agree on: the versions here, and the scheme where they connect. So they
//! find out before a packet leaves, also if the other one would not understand it. For the protection nobody has to refuse the
//! other: the stronger one of both holds. A link over datagrams seals the address
//! in its introduction, so nobody outside the job can change it.
//!
//! MPI libraries exchange addresses as bytes. MPICH takes at most 64 bytes (`FI_NAME_MAX` of libfabric). Beside shared
//! memory, 22 bytes are left for the part of another link: an IPv6 address with its port takes 20.

use crate::SchemeName;
use core::fmt;
use std::net::{IpAddr, SocketAddr};

/// Length of an address. Unit: bytes.
pub const ADDRESS_BYTES: usize = 64;
/// Version of this layout, and of what the key seals (`datagram/seal.rs`).
pub const ADDRESS_VERSION: u8 = 6;
/// The bytes before the identity: versions, number of parts, scheme.
const PACKETS_AT: usize = 2;
const SCHEME_AT: usize = 3;
const PROTECTION_AT: usize = 5;
/// The first byte behind the identity.
const IDENTITY_END: usize = 16;
/// Length of an address in shared memory ([`Address::packed`]). Unit: bytes.
pub(crate) const PACKED_BYTES: usize = 4 + ADDRESS_BYTES - IDENTITY_END;

const PARTS_OFFSET: usize = 32;
const PART_HEADER_BYTES: usize = 2;

/// The kind of a link, as the parts of an address name it. An endpoint prefers the link with the lowest number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LinkKind {
    /// One process ([`crate::local`]). The part names the process.
    Local = 1,
    /// Shared memory of one node ([`crate::shm`]). The part says where its mailboxes meet; the identity is the number of
    /// the segment.
    SharedMemory = 2,
    /// UDP sockets ([`crate::udp`]). The part is the IP address and the port of the endpoint's socket.
    Udp = 3,
    /// A core provider of libfabric ([`crate::ofi`]). The part is the endpoint's name at that provider, shortened.
    Ofi = 4,
    /// A link of tests that carries packets only to peers that no other link reaches ([`crate::faulty`]).
    LastChoice = 255,
}

/// What protects datagrams on their way through a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protection {
    /// Nobody else can read, change or forge them.
    #[default]
    Encrypt = 0,
    /// Nobody else can change or forge them. Everyone on the network can read them.
    Authenticate = 1,
    /// Everyone on the network can read, change and forge them. Whoever cannot read them cannot forge them either: they carry
    /// a secret. Bytes that change by accident are found by the checksum of the network alone.
    Off = 2,
}

impl Protection {
    /// All of them, the strongest first.
    pub const ALL: [Protection; 3] = [Protection::Encrypt, Protection::Authenticate, Protection::Off];

    /// The word of the setting.
    pub fn word(self) -> &'static str {
        match self {
            Protection::Encrypt => "encrypt",
            Protection::Authenticate => "authenticate",
            Protection::Off => "off",
        }
    }
}

/// Names an endpoint, and holds the key that proves that the owner of the address belongs to the job.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address(pub [u8; ADDRESS_BYTES]);

impl Address {
    /// An address without parts and without a scheme.
    pub fn new(identity: u64, key: [u8; 16]) -> Address {
        let mut bytes = [0; ADDRESS_BYTES];
        bytes[0] = ADDRESS_VERSION;
        bytes[PACKETS_AT] = weir_proto::wire::VERSION;
        bytes[8..16].copy_from_slice(&identity.to_le_bytes());
        bytes[16..32].copy_from_slice(&key);
        Address(bytes)
    }

    /// The same address with a part for one more link. `None`: the part does not fit, or there is one of this kind.
    pub fn with_part(mut self, kind: LinkKind, contents: &[u8]) -> Option<Address> {
        let used: usize = self.parts()?.map(|(_, part)| PART_HEADER_BYTES + part.len()).sum();
        if self.part(kind).is_some() {
            return None;
        }
        let at = PARTS_OFFSET + used;
        let end = at + PART_HEADER_BYTES + contents.len();
        let room = self.0.get_mut(at..end)?;
        room[0] = kind as u8;
        room[1] = contents.len() as u8;
        room[PART_HEADER_BYTES..].copy_from_slice(contents);
        self.0[1] += 1;
        Some(self)
    }

    /// The same address, of an endpoint with this scheme.
    pub fn with_scheme(mut self, scheme: SchemeName) -> Address {
        self.0[SCHEME_AT] = scheme.number();
        self
    }

    /// The same address, of an endpoint that wants at least this protection.
    pub fn with_protection(mut self, protection: Protection) -> Address {
        self.0[PROTECTION_AT] = protection as u8;
        self
    }

    /// What protects datagrams between the endpoints at these two addresses: the stronger of what they want.
    pub fn protection_with(&self, other: &Address) -> Protection {
        let number = self.0[PROTECTION_AT].min(other.0[PROTECTION_AT]);
        Protection::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// The scheme of the endpoint.
    pub(crate) fn scheme(&self) -> SchemeName {
        SchemeName::of_number(self.0[SCHEME_AT])
    }

    /// The address without the identity and the version of the layout, for shared memory, whose users know both.
    pub(crate) fn packed(&self) -> [u8; PACKED_BYTES] {
        let mut packed = [0; PACKED_BYTES];
        packed[0] = self.0[PROTECTION_AT];
        packed[1..4].copy_from_slice(&self.0[1..4]);
        packed[4..].copy_from_slice(&self.0[IDENTITY_END..]);
        packed
    }

    /// The address of this identity that was packed.
    pub(crate) fn unpacked(identity: u64, packed: &[u8; PACKED_BYTES]) -> Address {
        let mut bytes = [0; ADDRESS_BYTES];
        (bytes[0], bytes[PROTECTION_AT]) = (ADDRESS_VERSION, packed[0]);
        bytes[1..4].copy_from_slice(&packed[1..4]);
        bytes[IDENTITY_END - 8..IDENTITY_END].copy_from_slice(&identity.to_le_bytes());
        bytes[IDENTITY_END..].copy_from_slice(&packed[4..]);
        Address(bytes)
    }

    /// Whether both endpoints have one scheme.
    pub(crate) fn has_scheme_of(&self, other: &Address) -> bool {
        self.0[SCHEME_AT] == other.0[SCHEME_AT]
    }

    /// Whether its endpoint has this version of addresses and of packets.
    pub(crate) fn is_of_this_version(&self) -> bool {
        (self.0[0], self.0[PACKETS_AT]) == (ADDRESS_VERSION, weir_proto::wire::VERSION)
    }

    /// The part of a link. `None`: the endpoint has no such link, or this is no address of this version.
    pub fn part(&self, kind: LinkKind) -> Option<&[u8]> {
        self.parts()?.find(|&(found, _)| found == kind as u8).map(|(_, part)| part)
    }

    /// Whether these bytes are an address of this version, with a part for at least one link.
    pub fn is_well_formed(&self) -> bool {
        self.parts().is_some_and(|mut parts| parts.next().is_some())
    }

    /// All parts, by kind. `None`: this is no address of this version.
    fn parts(&self) -> Option<impl Iterator<Item = (u8, &[u8])>> {
        let (head, mut rest) = self.0.split_at(PARTS_OFFSET);
        let is_protection = usize::from(head[PROTECTION_AT]) < Protection::ALL.len();
        if !self.is_of_this_version() || !is_protection || (head[4], &head[6..8]) != (0, &[0; 2]) {
            return None;
        }
        let mut parts = [(0, &rest[..0]); (ADDRESS_BYTES - PARTS_OFFSET) / PART_HEADER_BYTES];
        let count = usize::from(head[1]);
        for part in parts.get_mut(..count)? {
            let (&[kind, bytes], after) = rest.split_first_chunk()?;
            let (contents, after) = after.split_at_checked(bytes.into())?;
            if kind == 0 {
                return None;
            }
            *part = (kind, contents);
            rest = after;
        }
        let is_rest_zero = rest.iter().all(|byte| *byte == 0);
        is_rest_zero.then(|| parts.into_iter().take(count))
    }

    /// Where the endpoint's socket is, if it has one.
    pub fn place(&self) -> Option<SocketAddr> {
        udp_place(self.part(LinkKind::Udp)?)
    }

    /// A number that identifies the endpoint and may be shown. It is not the key. Never 0.
    pub fn identity(&self) -> u64 {
        self.identity_word().max(1)
    }

    /// The identity as it is in the address.
    pub(crate) fn identity_word(&self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|byte| self.0[8 + byte]))
    }

    /// The key.
    pub(crate) fn key(&self) -> [u8; 16] {
        std::array::from_fn(|byte| self.0[16 + byte])
    }
}

impl fmt::Display for Address {
    /// Identity and parts. The key is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x} (", self.identity())?;
        match self.parts() {
            None => write!(f, "address version {}, packet format {}", self.0[0], self.0[PACKETS_AT])?,
            Some(mut parts) => match parts.next() {
                None => f.write_str("no links")?,
                Some(first) => {
                    write_part(f, first)?;
                    parts.try_for_each(|part| {
                        f.write_str(", ")?;
                        write_part(f, part)
                    })?;
                }
            },
        }
        f.write_str(")")
    }
}

fn write_part(f: &mut fmt::Formatter<'_>, (kind, contents): (u8, &[u8])) -> fmt::Result {
    if kind == LinkKind::Udp as u8
        && let Some(place) = udp_place(contents)
    {
        return write!(f, "UDP {place}");
    }
    match kind {
        kind if kind == LinkKind::SharedMemory as u8 => f.write_str("shared memory ")?,
        kind if kind == LinkKind::Local as u8 => f.write_str("process ")?,
        kind if kind == LinkKind::Ofi as u8 => f.write_str("ofi ")?,
        kind => write!(f, "link {kind} ")?,
    }
    contents.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// The address and the port in the part of [`LinkKind::Udp`]: 4 or 6, the address, the port, most significant byte first.
fn udp_place(contents: &[u8]) -> Option<SocketAddr> {
    let (contents, port) = contents.split_last_chunk()?;
    let address: IpAddr = match contents.split_first()? {
        (4, octets) => <[u8; 4]>::try_from(octets).ok()?.into(),
        (6, octets) => <[u8; 16]>::try_from(octets).ok()?.into(),
        _ => return None,
    };
    Some(SocketAddr::new(address, u16::from_be_bytes(*port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Address {
        Address::new(0xfeed, [9; 16])
    }

    #[test]
    fn the_text_of_an_address_has_its_identity_and_parts_but_not_its_key() {
        assert_eq!(address().to_string(), "000000000000feed (no links)");
        let with = address().with_part(LinkKind::SharedMemory, &[1, 0xab]).expect("room");
        let with = with.with_part(LinkKind::LastChoice, &[7]).expect("room");
        assert_eq!(with.to_string(), "000000000000feed (shared memory 01ab, link 255 07)");
        let with = address().with_part(LinkKind::Udp, &[4, 10, 1, 2, 3, 0x4e, 0x84]).expect("room");
        assert_eq!(with.to_string(), "000000000000feed (UDP 10.1.2.3:20100)");
        assert_eq!(with.place(), Some("10.1.2.3:20100".parse().expect("a place")));
        assert_eq!(address().place(), None);
        let mut part = [0; 19];
        (part[0], part[16], part[18]) = (6, 1, 80);
        let with = address().with_part(LinkKind::Udp, &part).expect("room");
        assert_eq!(with.to_string(), "000000000000feed (UDP [::1]:80)");
        let with = address().with_part(LinkKind::Udp, &[5, 1]).expect("room");
        assert_eq!(with.to_string(), "000000000000feed (link 3 0501)");
        let mut older = address();
        older.0[0] = 2;
        assert_eq!(older.to_string(), "000000000000feed (address version 2, packet format 6)");
    }

    #[test]
    fn a_packed_address_keeps_all_that_peers_compare() {
        for protection in Protection::ALL {
            let address = address().with_scheme(SchemeName::new("static")).with_protection(protection);
            let address = address.with_part(LinkKind::Udp, &[1, 2, 3, 4, 5, 6]).expect("room");
            assert_eq!(Address::unpacked(0xfeed, &address.packed()), address);
        }
    }

    #[test]
    fn parts_are_unchanged_after_encoding_and_parsing() {
        assert_eq!(address().part(LinkKind::SharedMemory), None);
        let with = address().with_part(LinkKind::SharedMemory, &[1, 2, 3]).expect("room");
        assert_eq!(with.part(LinkKind::SharedMemory), Some(&[1, 2, 3][..]));
        assert_eq!((with.identity(), with.key()), (0xfeed, [9; 16]));
        assert_eq!(with.with_part(LinkKind::SharedMemory, &[]), None, "one part of each kind");
        let both = with.with_part(LinkKind::Local, &[4; 25]).expect("room");
        assert_eq!(both.part(LinkKind::SharedMemory), Some(&[1, 2, 3][..]));
        assert_eq!(both.part(LinkKind::Local), Some(&[4; 25][..]));
        let whole = address().with_part(LinkKind::SharedMemory, &[7; 30]).expect("room");
        assert_eq!(whole.part(LinkKind::SharedMemory), Some(&[7; 30][..]));
        assert_eq!(address().with_part(LinkKind::SharedMemory, &[7; 31]), None);
    }

    #[test]
    fn the_scheme_of_an_address_is_compared_and_named() {
        let with = |name| address().with_scheme(SchemeName::new(name));
        assert!(with("static").has_scheme_of(&with("static")));
        assert!(!with("static").has_scheme_of(&with("demand")) && !with("static").has_scheme_of(&address()));
        let part = with("demand").with_part(LinkKind::Udp, &[1]).expect("room");
        assert_eq!((part.scheme().to_string(), part.part(LinkKind::Udp)), ("demand".into(), Some(&[1][..])));
    }

    #[test]
    fn parts_of_unknown_kinds_are_skipped() {
        let mut newer = address();
        newer.0[1] = 2;
        newer.0[32..39].copy_from_slice(&[200, 2, 5, 5, 2, 1, 6]);
        assert_eq!(newer.part(LinkKind::SharedMemory), Some(&[6][..]));
    }

    #[test]
    fn malformed_addresses_have_no_parts() {
        let with = address().with_part(LinkKind::SharedMemory, &[1, 2, 3]).expect("room");
        // Version, number of parts, packet format, reserved byte, kind, length, byte behind the parts.
        for (at, byte) in [
            (0, 1),
            (1, 0),
            (1, 2),
            (1, 255),
            (2, 1),
            (2, 3),
            (4, 1),
            (7, 1),
            (33, 2),
            (33, 255),
            (37, 1),
            (63, 1),
        ] {
            let mut other = with;
            other.0[at] = byte;
            assert_eq!(other.part(LinkKind::SharedMemory), None, "byte {at}");
            assert!(!other.is_well_formed(), "byte {at}");
        }
        assert!(with.is_well_formed() && !address().is_well_formed());
        assert_eq!(Address([0; ADDRESS_BYTES]).part(LinkKind::SharedMemory), None);
    }
}
