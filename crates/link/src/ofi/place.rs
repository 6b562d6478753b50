//! The place of an endpoint ([`OfiPlace`]): its name at the core, made short, as it stands in weir's address.
//!
//! ```text
//! sockaddr_in     8 bytes    address, port, port of the witness; most significant byte first
//! sockaddr_in6   20 bytes    as above. The zone is that of the receiver of the address
//! others                     runs: how many zero bytes and others follow (four bits each), then the others. Zero bytes
//!                            at the end are left out. A run of nothing follows where the length would be 8 or 20
//! ```
//! So a name is as long as what it says. EFA's 32 bytes take 19.

use super::core_endpoint::{CoreName, NameFormat};
use std::net::{IpAddr, SocketAddr};

/// Room for the part beside that of shared memory. Unit: bytes.
pub const MOST_PART_BYTES: usize = 20;

const V4_BYTES: usize = 8;
const V6_BYTES: usize = 20;
/// Lengths of `sockaddr_in` and `sockaddr_in6`.
const SOCKADDR_V4_BYTES: usize = 16;
const SOCKADDR_V6_BYTES: usize = 28;
/// A run counts its bytes in four bits.
const MOST_RUN: usize = 15;

/// See the head of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OfiPlace {
    bytes: [u8; MOST_PART_BYTES],
    length: u8,
}

impl OfiPlace {
    /// The place in a part of an address. `None`: it is too long.
    pub fn from_part(part: &[u8]) -> Option<OfiPlace> {
        let mut bytes = [0; MOST_PART_BYTES];
        bytes.get_mut(..part.len())?.copy_from_slice(part);
        Some(OfiPlace { bytes, length: part.len() as u8 })
    }

    /// The part of an address.
    pub fn part(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The place of the endpoint with this name. `witness`: the port at which its kernel answers.
    ///
    /// # Errors
    /// The bytes that it would take, more than [`MOST_PART_BYTES`].
    pub(super) fn of(name: &CoreName, witness: u16) -> Result<OfiPlace, usize> {
        let part = match (name.format, name.socket_address()) {
            (NameFormat::Socket, Some(address)) => {
                let octets = match address.ip() {
                    IpAddr::V4(v4) => v4.octets().to_vec(),
                    IpAddr::V6(v6) => v6.octets().to_vec(),
                };
                [&octets[..], &address.port().to_be_bytes(), &witness.to_be_bytes()].concat()
            }
            _ => in_runs(&name.bytes),
        };
        OfiPlace::from_part(&part).ok_or(part.len())
    }

    /// The name at the core, for an endpoint whose own name is `own`. `None`: no endpoint of its provider has this place.
    pub(super) fn name(&self, own: &CoreName) -> Option<Vec<u8>> {
        match (own.format, self.witness_without_zone()) {
            (NameFormat::Socket, Some(witness)) => {
                // Family and zone are those of the own name.
                let (mut name, [high, low]) = (own.bytes.clone(), self.port()?.to_be_bytes());
                (name[2], name[3]) = (high, low);
                match (witness.ip(), own.bytes.len()) {
                    (IpAddr::V4(v4), SOCKADDR_V4_BYTES) => name[4..8].copy_from_slice(&v4.octets()),
                    (IpAddr::V6(v6), SOCKADDR_V6_BYTES) => name[8..24].copy_from_slice(&v6.octets()),
                    _ => return None,
                }
                Some(name)
            }
            (NameFormat::Socket, None) => None,
            (NameFormat::Other, _) => from_runs(self.part(), own.bytes.len()),
        }
    }

    fn port(&self) -> Option<u16> {
        let (_, port) = self.part().split_last_chunk::<4>()?;
        Some(u16::from_be_bytes([port[0], port[1]]))
    }

    /// Where the kernel of the endpoint answers as long as its process lives, for an endpoint whose own name is `own`. `None`:
    /// this is no socket's name.
    pub(super) fn witness(&self, own: &CoreName) -> Option<SocketAddr> {
        match (self.witness_without_zone()?, own.socket_address()) {
            (SocketAddr::V6(mut peer), Some(SocketAddr::V6(own))) if peer.ip().is_unicast_link_local() => {
                peer.set_scope_id(own.scope_id());
                Some(peer.into())
            }
            (peer, _) => Some(peer),
        }
    }

    /// The IP address of its host, where names are those of sockets.
    pub(super) fn ip(&self) -> Option<IpAddr> {
        self.witness_without_zone().map(|witness| witness.ip())
    }

    fn witness_without_zone(&self) -> Option<SocketAddr> {
        let (octets, ports) = self.part().split_last_chunk::<4>()?;
        let address: IpAddr = match self.part().len() {
            V4_BYTES => <[u8; 4]>::try_from(octets).ok()?.into(),
            V6_BYTES => <[u8; 16]>::try_from(octets).ok()?.into(),
            _ => return None,
        };
        Some(SocketAddr::new(address, u16::from_be_bytes([ports[2], ports[3]])))
    }
}

fn in_runs(name: &[u8]) -> Vec<u8> {
    let end = name.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let mut rest = &name[..end];
    let mut runs = Vec::new();
    while !rest.is_empty() {
        let zeroes = rest.iter().take_while(|byte| **byte == 0).count().min(MOST_RUN);
        let others = &rest[zeroes..];
        // A single zero byte costs less than a run.
        let is_end = |at: usize| others[at] == 0 && others.get(at + 1).is_none_or(|next| *next == 0);
        let count = (0..others.len()).take_while(|at| !is_end(*at)).count().min(MOST_RUN);
        runs.push((zeroes << 4 | count) as u8);
        runs.extend_from_slice(&others[..count]);
        rest = &others[count..];
    }
    if matches!(runs.len(), V4_BYTES | V6_BYTES) {
        runs.push(0);
    }
    runs
}

fn from_runs(mut runs: &[u8], bytes: usize) -> Option<Vec<u8>> {
    let mut name = Vec::with_capacity(bytes);
    while let Some((&run, rest)) = runs.split_first() {
        let (others, rest) = rest.split_at_checked(usize::from(run & 15))?;
        name.resize(name.len() + usize::from(run >> 4), 0);
        name.extend_from_slice(others);
        runs = rest;
    }
    if name.len() > bytes {
        return None;
    }
    name.resize(bytes, 0);
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket_name(family: i32, bytes: usize, address: &[u8], port: u16, offset: usize) -> CoreName {
        let mut name = vec![0; bytes];
        name[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        name[2..4].copy_from_slice(&port.to_be_bytes());
        name[offset..offset + address.len()].copy_from_slice(address);
        CoreName { format: NameFormat::Socket, bytes: name }
    }

    fn other(bytes: &[u8]) -> CoreName {
        CoreName { format: NameFormat::Other, bytes: bytes.to_vec() }
    }

    #[test]
    fn a_name_of_a_socket_takes_its_address_and_two_ports() {
        let v4 = socket_name(libc::AF_INET, 16, &[10, 0, 0, 7], 4000, 4);
        let place = OfiPlace::of(&v4, 5000).expect("short");
        assert_eq!(place.part(), [10, 0, 0, 7, 0x0f, 0xa0, 0x13, 0x88]);
        assert_eq!(place.witness(&v4), Some("10.0.0.7:5000".parse().expect("an address")));
        let peer = socket_name(libc::AF_INET, 16, &[10, 0, 0, 9], 1, 4);
        assert_eq!(place.name(&peer), Some(v4.bytes.clone()));
        let mut fd = [0; 16];
        (fd[0], fd[15]) = (0xfd, 9);
        let v6 = socket_name(libc::AF_INET6, 28, &fd, 4000, 8);
        let place = OfiPlace::of(&v6, 5000).expect("short");
        assert_eq!((place.part().len(), place.witness(&v6)), (20, "[fd00::9]:5000".parse().ok()));
        // A link-local address is in the zone of whoever reads it.
        let mut peer = socket_name(libc::AF_INET6, 28, &[1; 16], 1, 8);
        peer.bytes[24] = 3;
        let name = place.name(&peer).expect("the same provider");
        assert_eq!((&name[..24], name[24]), (&v6.bytes[..24], 3));
        let local = socket_name(libc::AF_INET6, 28, &[&[0xfe, 0x80][..], &[7; 14]].concat(), 4000, 8);
        let place = OfiPlace::of(&local, 5000).expect("short");
        let zone = |peer: Option<SocketAddr>| match peer {
            Some(SocketAddr::V6(peer)) => peer.scope_id(),
            other => panic!("{other:?}"),
        };
        assert_eq!(zone(place.witness(&peer)), u32::from_ne_bytes([3, 0, 0, 0]));
        assert_eq!(place.name(&v4), None, "the other family");
        assert_eq!(place.name(&other(&[0; 28])).map(|name| name.len()), None, "another provider");
    }

    #[test]
    fn names_of_fabrics_are_unchanged_after_encoding_and_parsing() {
        let mut efa = [0; 32];
        efa[..2].copy_from_slice(&[0xfe, 0x80]);
        efa[8..18].copy_from_slice(&[4, 0x6b, 0, 0xff, 0xfe, 1, 2, 3, 0x21, 0x43]);
        efa[20..24].copy_from_slice(&[9, 8, 7, 6]);
        let part = in_runs(&efa);
        assert_eq!(part.len(), 19, "{part:x?}");
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let zeroes = random.u32(..100);
            let length = random.usize(..40);
            let name: Vec<u8> =
                (0..length).map(|_| if random.u32(..100) < zeroes { 0 } else { random.u8(..) }).collect();
            let name = other(&name);
            match OfiPlace::of(&name, 0) {
                Ok(place) => {
                    assert_eq!(place.name(&name).as_ref(), Some(&name.bytes), "{name:x?}");
                    assert_eq!(place.witness(&name), None, "{name:x?}");
                }
                Err(bytes) => assert!(bytes > MOST_PART_BYTES && length >= MOST_PART_BYTES - 2, "{name:x?}"),
            }
        }
        assert_eq!(OfiPlace::of(&other(&[1; 32]), 0), Err(35));
    }

    #[test]
    fn bytes_of_strangers_are_no_name_of_the_provider() {
        let own = other(&[1; 8]);
        let mut random = fastrand::Rng::with_seed(8);
        for _ in 0..20_000 {
            let part: Vec<u8> = (0..random.usize(..=MOST_PART_BYTES)).map(|_| random.u8(..)).collect();
            let place = OfiPlace::from_part(&part).expect("short");
            assert!(place.name(&own).is_none_or(|name| name.len() == 8), "{part:x?}");
        }
        assert_eq!(OfiPlace::from_part(&[0; 21]), None);
    }
}
