//! The mark in an address: its process takes part in collective operations across nodes, by `libweir-mpi.so`.
//!
//! MPI libraries exchange addresses, so the mark comes from ranks that nobody can ask, and from all others alike. It is a
//! byte that the engine's addresses have free. It is set when a program reads the address of its endpoint, and taken out
//! when a program inserts an address. Engines and links never see it.
//!
//! Only the MPI knows which address a rank has. It looks for a message of the rank (`MPI_Iprobe`), and the provider notes
//! whose mark the address of this look has. This file does not know MPI.

use std::cell::Cell;
use std::ffi::c_int;

use weir_engine::node_group_interface::{MARKED, UNMARKED, UNSEEN};
use weir_link::{ADDRESS_BYTES, Address};

/// A byte that is 0 in the engine's addresses.
const PLACE: usize = 4;
const MARK: u8 = 1;

thread_local! {
    static PROBED: Cell<c_int> = const { Cell::new(UNSEEN) };
}

/// The bytes for programs.
pub fn with_mark(address: &Address, is_marked: bool) -> [u8; ADDRESS_BYTES] {
    let mut bytes = address.0;
    bytes[PLACE] = if is_marked { MARK } else { 0 };
    bytes
}

/// The address without its mark, and whether it has one.
pub fn without_mark(mut bytes: [u8; ADDRESS_BYTES]) -> (Address, bool) {
    let is_marked = bytes[PLACE] == MARK;
    if is_marked {
        bytes[PLACE] = 0;
    }
    (Address(bytes), is_marked)
}

/// This thread looks for a message of somebody.
pub fn note_probe(is_marked: bool) {
    PROBED.set(if is_marked { MARKED } else { UNMARKED });
}

/// See [`weir_engine::node_group_interface::NodeGroupFunctions`].
///
/// # Safety
/// None: it takes nothing. Its type is that of the table.
pub unsafe extern "C" fn probed() -> c_int {
    PROBED.replace(UNSEEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_comes_and_goes_and_the_address_stays() {
        let address = Address::new(7, [3; 16]);
        assert_eq!(without_mark(with_mark(&address, true)), (address, true));
        assert_eq!(without_mark(with_mark(&address, false)), (address, false));
        let mut other = address.0;
        other[PLACE] = 2;
        assert!(!without_mark(other).0.is_well_formed(), "no mark of this version");
    }

    #[test]
    fn a_probe_is_told_once() {
        // SAFETY: it takes nothing.
        let told = || unsafe { probed() };
        assert_eq!(told(), UNSEEN);
        note_probe(true);
        assert_eq!((told(), told()), (MARKED, UNSEEN));
        note_probe(false);
        assert_eq!(told(), UNMARKED);
    }
}
