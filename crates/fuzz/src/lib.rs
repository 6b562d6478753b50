//! Everything of weir that reads bytes from outside, as one function of bytes ([`read`]), for a fuzzer.
//!
//! The first byte of an input chooses the reader ([`READERS`]), the rest is what it reads. A reader may refuse its input. It
//! must not panic, hang, or take more memory than its bounds; where there is an encoder too, what was read is written and
//! read again.
//!
//! | reader | who writes the bytes |
//! |---|---|
//! | packets, bundles | a peer: slots of shared memory, datagrams |
//! | endpoint | a peer: packets in any order, to a machine |
//! | datagrams, from a stranger and from a member | anybody in the network; with `cfg(fuzzing)` the seal is open |
//! | witness | whoever listens at a port |
//! | addresses | a peer, by way of the launcher |
//! | segments | a process of the same user: headers of mailboxes and node segments |
//! | hosts, counters, traces, answers | a file of the user; files and lines of another host |

mod datagrams;
mod endpoint;
mod files;
mod wire;
mod witness;

/// A reader: its name, and what it does with bytes.
pub type Reader = (&'static str, fn(&[u8]));

/// All readers. The first byte of an input is an index, modulo their number.
pub const READERS: [Reader; 11] = [
    ("packets", wire::packets),
    ("bundles", wire::bundles),
    ("endpoint", endpoint::packets_of_a_peer),
    ("datagrams", datagrams::arrive),
    ("datagrams of several peers", datagrams::arrive_from_several),
    ("witness", witness::bytes_of_a_listener),
    ("addresses", wire::addresses),
    ("segments", files::segments),
    ("hosts", files::hosts),
    ("counters and traces", files::counters_and_traces),
    ("answers of helpers", files::answers),
];

/// Lets the reader that the first byte names read the rest.
pub fn read(bytes: &[u8]) {
    if let Some((first, rest)) = bytes.split_first() {
        READERS[usize::from(*first) % READERS.len()].1(rest);
    }
}

/// Inputs to begin with: for each reader nothing, and what a correct writer writes.
pub fn seeds() -> Vec<Vec<u8>> {
    let of_reader = |name: &str, bytes: &[u8]| {
        let index = READERS.iter().position(|reader| reader.0 == name).expect("a reader");
        [&[index as u8], bytes].concat()
    };
    let empty = READERS.iter().map(|(name, _)| of_reader(name, &[]));
    let valid =
        wire::seeds().into_iter().chain(endpoint::seeds()).chain(datagrams::seeds()).chain(files::seeds());
    empty.chain(valid.map(|(name, bytes)| of_reader(name, &bytes))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_and_their_neighbours_are_read() {
        let mut random = fastrand::Rng::with_seed(1);
        for seed in seeds() {
            read(&seed);
            for _ in 0..200 {
                let mut bytes = seed.clone();
                for _ in 0..random.usize(1..4) {
                    if bytes.len() > 1 {
                        let at = random.usize(1..bytes.len());
                        bytes[at] = random.u8(..);
                    }
                }
                bytes.truncate(random.usize(1..=bytes.len()));
                read(&bytes);
            }
        }
    }

    #[test]
    fn random_bytes_are_read() {
        let mut random = fastrand::Rng::with_seed(2);
        for reader in 0..READERS.len() {
            for _ in 0..300 {
                let length = random.usize(..400);
                let mut bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(length).collect();
                bytes.insert(0, reader as u8);
                read(&bytes);
            }
        }
    }
}
