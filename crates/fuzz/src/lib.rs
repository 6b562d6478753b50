//! Everything of weir that reads bytes from outside, as one function of bytes ([`read`]), for a fuzzer.
//!
//! The first byte of an input chooses the reader ([`READERS`]), the rest is what it reads. A reader may refuse its input. It
//! must not panic, hang, or take more memory than its bounds; where there is an encoder too, what was read is written and
//! read again.
//!
//! | reader | who writes the bytes |
//! |---|---|
//! | packets, bundles | a peer: slots of shared memory, datagrams |
//! | endpoint | members: packets in any order, to the machine of an endpoint and its offloaded machines, under every scheme |
//! | lock | members: the words of a queue lock |
//! | datagrams, also of a lossless network | strangers and members; with `cfg(fuzzing)` the seal is open |
//! | witness | whoever listens at a port |
//! | probe | anybody in the network: datagrams at the socket of `weir doctor` |
//! | addresses, names of cores | a peer, by way of the launcher |
//! | kernel programs, control messages | anybody in the network; a process of the host |
//! | segments | a process of the same user: headers of mailboxes and node segments |
//! | hosts, counters, traces, answers | a file of the user; files and lines of another host |

mod datagrams;
mod endpoint;
mod files;
mod kernel_programs;
mod lock;
mod memory;
mod rank;
mod wire;
mod witness;

/// A reader: its name, and what it does with bytes.
pub type Reader = (&'static str, fn(&[u8]));

/// All readers. The first byte of an input is an index, modulo their number.
pub const READERS: [Reader; 17] = [
    ("packets", wire::packets),
    ("bundles", wire::bundles),
    ("endpoint", endpoint::packets_of_peers),
    ("lock", lock::words_of_members),
    ("datagrams", datagrams::arrive),
    ("datagrams of several peers", datagrams::arrive_from_several),
    ("datagrams of a lossless network", datagrams::arrive_without_loss),
    ("datagrams at a probe", wire::probe_datagrams),
    ("witness", witness::bytes_of_a_listener),
    ("addresses", wire::addresses),
    ("names of cores", wire::names_of_cores),
    ("packets of kernel programs", kernel_programs::packets),
    ("control messages of an interface", kernel_programs::control_messages),
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
    let all = [
        wire::seeds(),
        endpoint::seeds(),
        lock::seeds(),
        datagrams::seeds(),
        kernel_programs::seeds(),
        files::seeds(),
    ];
    let valid = all.into_iter().flatten();
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
            for _ in 0..80 {
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
