//! What this link reads that another process wrote, as functions of bytes, for fuzzers (`crates/fuzz`). Each says whether it
//! takes the bytes.

use super::layout::{FACTS_BYTES, Facts, SegmentAddress, Shape};
use super::node_segment::{header_example, takes_header};
use crate::Address;

/// Unit: bytes.
const PAGE_BYTES: u64 = 4096;

/// The header of a mailbox in a file of `file_bytes` bytes.
pub fn mailbox_header(bytes: &[u8], file_bytes: u64) -> bool {
    let Some(header) = bytes.first_chunk::<FACTS_BYTES>() else { return false };
    match Facts::parse(header, file_bytes, PAGE_BYTES) {
        Err(_) => false,
        Ok(facts) => {
            let shape = facts.shape;
            assert!(shape.segment_bytes() <= file_bytes, "all lanes are inside the file");
            assert!(shape.lane_offset(shape.max_lanes - 1) < file_bytes);
            assert_eq!(Facts::parse(&facts.bytes(), file_bytes, PAGE_BYTES), Ok(facts));
            true
        }
    }
}

/// The header of a node segment in a file of `file_bytes` bytes.
pub fn node_segment_header(bytes: &[u8], file_bytes: u64) -> bool {
    takes_header(bytes, file_bytes)
}

/// The part of this link in an address.
pub fn segment_address(address: &Address) -> bool {
    SegmentAddress::parse(address).is_some()
}

/// Correct headers.
pub fn examples() -> Vec<Vec<u8>> {
    let shape = Shape::new(64, 3, 2, 8, false, PAGE_BYTES);
    let mailbox = shape.map(|shape| Facts {
        pid: 7,
        pid_namespace: 9,
        id: 5,
        key: [3; 16],
        full_fences: false,
        shape,
        lock_file: 99,
    });
    mailbox.iter().map(|facts| facts.bytes().to_vec()).chain([header_example()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_taken_and_shorter_files_refused() {
        let [mailbox, node_segment] = &examples()[..] else { panic!("two examples") };
        assert!(mailbox_header(mailbox, 1 << 40) && node_segment_header(node_segment, 1 << 40));
        assert!(!mailbox_header(mailbox, 4096) && !node_segment_header(node_segment, 4096));
        assert!(!mailbox_header(node_segment, 1 << 40) && !node_segment_header(mailbox, 1 << 40));
    }
}
