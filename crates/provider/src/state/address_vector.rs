//! The part of an address vector that belongs to the domain: the program's numbers for addresses. Numbers are dense
//! from 0 in the order of insertion, for tables and maps (MPICH relies on it). Repeated insertions of an address are
//! counted, and the last removal frees its number. A free number is used again.
//!
//! A program may fill a vector before it opens an endpoint, so the vector knows only addresses. Endpoints number their
//! peers themselves and remember the peer of each entry.

use weir_engine::addresses::AddressTable;
use weir_link::Address;

use crate::errno::Error;
use crate::ffi::FiAddr;

/// The domain's part of an address vector.
#[derive(Default)]
pub struct AddressVector {
    table: AddressTable,
    /// Number of insertions of each address. 0: removed.
    uses: Vec<u32>,
    /// Which addresses have a mark ([`crate::marks`]).
    marked: Vec<bool>,
    /// Number of addresses that the program announced. 0: not announced.
    pub expected: usize,
    /// Number of its open sets.
    pub sets: usize,
}

impl AddressVector {
    /// Inserts an address. An address that is already there keeps its number.
    pub fn insert(&mut self, address: Address, is_marked: bool) -> FiAddr {
        let number = self.table.insert(address);
        if number as usize == self.uses.len() {
            self.uses.push(0);
            self.marked.push(false);
        }
        self.uses[number as usize] += 1;
        self.marked[number as usize] = is_marked;
        FiAddr::from(number)
    }

    /// Removes an address once it has been removed as often as inserted. Returns whether it is gone.
    ///
    /// # Errors
    /// There is no such entry.
    pub fn remove(&mut self, number: FiAddr) -> Result<bool, Error> {
        let place = usize::try_from(number).ok().and_then(|place| self.uses.get_mut(place));
        let uses = place.filter(|uses| **uses > 0).ok_or(Error::INVALID)?;
        *uses -= 1;
        if *uses > 0 {
            return Ok(false);
        }
        self.table.remove(number as u32);
        Ok(true)
    }

    /// The address of an entry.
    pub fn address(&self, number: FiAddr) -> Option<Address> {
        let in_use = self.uses.get(usize::try_from(number).ok()?).is_some_and(|&uses| uses > 0);
        self.table.address(number as u32).filter(|_| in_use).copied()
    }

    /// Whether the address of an entry has a mark.
    pub fn is_marked(&self, number: FiAddr) -> bool {
        usize::try_from(number).is_ok_and(|place| self.marked.get(place) == Some(&true))
    }

    /// One more than the largest number that was ever given.
    pub fn end(&self) -> FiAddr {
        self.uses.len() as FiAddr
    }

    /// The number of an address.
    pub fn number(&self, address: &Address) -> Option<FiAddr> {
        self.table.number(address).map(FiAddr::from)
    }
}
