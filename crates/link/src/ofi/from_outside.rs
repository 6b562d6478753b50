//! What this link reads in the address of a peer, as functions of bytes, for fuzzers (`crates/fuzz`).

use super::core_endpoint::CoreName;
use super::place::OfiPlace;
use std::net::SocketAddr;

/// What an endpoint with the name `own` takes from the part of a peer's address: the peer's name at the core, and where its
/// kernel answers. `None`: the part is too long.
pub fn peer_of_part(part: &[u8], own: &CoreName) -> Option<(Option<Vec<u8>>, Option<SocketAddr>)> {
    let place = OfiPlace::from_part(part)?;
    Some((place.name(own), place.witness(own)))
}

/// The part of the address of an endpoint with this name, whose kernel answers at the port `witness`. `None`: it is too long.
pub fn part_of_name(name: &CoreName, witness: u16) -> Option<Vec<u8>> {
    OfiPlace::of(name, witness).ok().map(|place| place.part().to_vec())
}
