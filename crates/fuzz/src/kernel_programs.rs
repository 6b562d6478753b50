//! Packets of the kernel programs (`weir-nic`), and what processes and the service of an interface say to each other.

use std::net::Ipv4Addr;
use weir_nic::Domain;
use weir_nic::control::{self, ANSWER_BYTES, Answer, Command};
use weir_nic::format::{MAX_BYTES, MAX_VECTOR_WORDS, PACKET_BYTES, Packet, Way, kind};

const WAY: Way = Way { from: Ipv4Addr::new(10, 99, 0, 1), to: Ipv4Addr::new(10, 99, 0, 2) };

fn domain() -> Domain {
    Domain::of(&[7; 16])
}

/// Bytes of anybody, which are refused unless they have the tag; and the same fields and vector with the tag of a member.
pub fn packets(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(MAX_BYTES + 1)];
    let domain = domain();
    let read = |bytes: &[u8]| Packet::of_frame(bytes, &domain, WAY);
    if let Some((packet, vector)) = read(bytes) {
        let (again, length) = packet.to_frame(&domain, WAY, &vector);
        assert_eq!(&again[..length], bytes, "what was read is written again");
    }
    let Some((head, rest)) = bytes.split_first_chunk::<PACKET_BYTES>() else { return };
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at * 8 + byte]));
    let [asker, number, place, compare, operand] = std::array::from_fn(|at| word(at + 2));
    let [kind, operation, status] = [head[5], head[6], head[7]];
    let packet = Packet { kind, operation, status, asker, number, place, operand, compare };
    let vector: Vec<u64> = rest
        .chunks_exact(8)
        .take(MAX_VECTOR_WORDS)
        .map(|word| u64::from_le_bytes(std::array::from_fn(|byte| word[byte])))
        .collect();
    let (frame, length): ([u8; MAX_BYTES], usize) = packet.to_frame(&domain, WAY, &vector);
    assert_eq!(read(&frame[..length]), Some((packet, vector)), "what a member writes is read");
}

/// What a process or the service of an interface says.
pub fn control_messages(bytes: &[u8]) {
    if let Some((command, secret)) = control::read_request(bytes) {
        assert_eq!(control::read_request(&control::request(command, &secret)), Some((command, secret)));
    }
    if let Some(bytes) = bytes.first_chunk::<ANSWER_BYTES>() {
        let _ = control::understand("eth0", bytes);
        if let Some(answer) = Answer::of_bytes(bytes) {
            assert_eq!(Answer::of_bytes(&answer.to_bytes()), Some(answer));
        }
    }
}

pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let packet = Packet {
        kind: kind::REPLY,
        operation: 1,
        status: 0,
        asker: 5,
        number: 6,
        place: 7,
        operand: 8,
        compare: 9,
    };
    let (frame, length) = packet.to_frame(&domain(), WAY, &[1, 2, 3]);
    vec![
        ("packets of kernel programs", frame[..length].to_vec()),
        ("packets of kernel programs", packet.to_bytes(&domain(), WAY).to_vec()),
        ("control messages of an interface", control::request(Command::Join, &[9; 16]).to_vec()),
    ]
}
