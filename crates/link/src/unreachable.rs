//! Prints one line on standard error when no link of an endpoint reaches a peer.
//!
//! The caller gets [`weir_proto::PeerFault::Unreachable`], which is a number. The line names the links of both, and
//! says what to change.

use crate::{ADDRESS_VERSION, Address};
use std::io::{self, Write};
use std::sync::Once;

/// Reports that the endpoint at `own` cannot reach the one at `peer`. Once in a process, because it is most often so for
/// many peers.
pub(crate) fn report(own: &Address, peer: &Address) {
    static REPORTED: Once = Once::new();
    REPORTED.call_once(|| {
        // In one piece, because many ranks share the terminal. A closed standard error is no reason to fail.
        let _ = io::stderr().write_all(format!("weir: {}\n", text(own, peer)).as_bytes());
    });
}

fn text(own: &Address, peer: &Address) -> String {
    let advice = if peer.0[0] == ADDRESS_VERSION {
        "run all ranks on one host, as one user, with one /dev/shm and one FI_WEIR_SHM_DIR"
    } else {
        "run one version of weir on all ranks"
    };
    format!("cannot connect: no link reaches the endpoint {peer} from {own}; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinkKind;

    #[test]
    fn the_message_names_both_endpoints_and_where_they_meet_others() {
        let address = |identity, place| {
            Address::new(identity, [9; 16]).with_part(LinkKind::SharedMemory, &[place; 2]).expect("room")
        };
        assert_eq!(
            text(&address(1, 0xaa), &address(2, 0xbb)),
            "cannot connect: no link reaches the endpoint 0000000000000002 (shared memory bbbb) \
             from 0000000000000001 (shared memory aaaa); \
             run all ranks on one host, as one user, with one /dev/shm and one FI_WEIR_SHM_DIR"
        );
        let mut older = address(2, 0xbb);
        older.0[0] = 2;
        assert!(text(&address(1, 0xaa), &older).ends_with("run one version of weir on all ranks"));
    }
}
