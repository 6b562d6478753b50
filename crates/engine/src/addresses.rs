//! The address table: addresses by number and numbers by address. The engine numbers its peers with one, and the
//! provider the entries of an address vector.
//!
//! A peer without contact costs 64 bytes for its address and 5 to 11 for the hash table, which holds numbers only and
//! compares the addresses themselves. The segment and the key in an address are random, so the hash is computed from a
//! few of their bytes.
//! ```text
//! insert(a) -> 0, insert(b) -> 1, insert(a) -> 0; remove(0); insert(c) -> 0
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashTable;
use weir_link::Address;

/// Addresses, numbered densely from 0. Removed numbers are used again, the lowest first.
#[derive(Debug, Default)]
pub struct AddressTable {
    addresses: Vec<Address>,
    numbers: HashTable<u32>,
    free: BinaryHeap<Reverse<u32>>,
}

/// Hashes the segment's number and half of its key. Chosen addresses could make the table slow, but addresses come from
/// the job's own launcher.
fn hash(address: &Address) -> u64 {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| address.0[at + byte]));
    // Spread over all bits: addresses of other links may be consecutive.
    (word(8) ^ word(16)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl AddressTable {
    /// The number of `address`. A new address gets a number now.
    pub fn insert(&mut self, address: Address) -> u32 {
        if let Some(number) = self.number(&address) {
            return number;
        }
        let number = match self.free.pop() {
            Some(Reverse(number)) => {
                self.addresses[number as usize] = address;
                number
            }
            None => {
                self.addresses.push(address);
                self.addresses.len() as u32 - 1
            }
        };
        let addresses = &self.addresses;
        self.numbers.insert_unique(hash(&address), number, |&number| hash(&addresses[number as usize]));
        number
    }

    /// The number of an address, if it has one.
    pub fn number(&self, address: &Address) -> Option<u32> {
        let same = |&number: &u32| self.addresses[number as usize] == *address;
        self.numbers.find(hash(address), same).copied()
    }

    /// The address of a number, also if the number was removed since. `None`: the number was never assigned.
    pub fn address(&self, number: u32) -> Option<&Address> {
        self.addresses.get(number as usize)
    }

    /// Removes an address; its number can be used again.
    pub fn remove(&mut self, number: u32) {
        let Some(address) = self.addresses.get(number as usize) else { return };
        if let Ok(entry) = self.numbers.find_entry(hash(address), |&other| other == number) {
            entry.remove();
            self.free.push(Reverse(number));
        }
    }

    /// Numbers assigned so far, removed ones included.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Whether no number was ever assigned.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_link::ADDRESS_BYTES;

    fn address(number: u64) -> Address {
        let mut bytes = [0; ADDRESS_BYTES];
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        Address(bytes)
    }

    #[test]
    fn numbers_are_dense_and_stable() {
        let mut table = AddressTable::default();
        for number in 0..10_000 {
            assert_eq!(table.insert(address(number)), number as u32);
        }
        for number in 0..10_000 {
            assert_eq!(table.insert(address(number)), number as u32);
            assert_eq!(table.address(number as u32), Some(&address(number)));
        }
        assert_eq!(table.number(&address(10_000)), None);
        assert_eq!(table.len(), 10_000);
    }

    #[test]
    fn a_removed_address_is_absent_and_its_number_is_reused() {
        let mut table = AddressTable::default();
        for number in 0..100 {
            table.insert(address(number));
        }
        table.remove(7);
        table.remove(7);
        assert_eq!(table.number(&address(7)), None);
        assert_eq!(table.insert(address(200)), 7);
        assert_eq!(table.insert(address(201)), 100);
        assert_eq!(table.number(&address(200)), Some(7));
    }

    #[test]
    fn a_new_address_gets_the_lowest_free_number() {
        let mut table = AddressTable::default();
        for number in 0..10 {
            table.insert(address(number));
        }
        for number in [3, 8, 5] {
            table.remove(number);
        }
        assert_eq!([20, 21, 22, 23].map(|number| table.insert(address(number))), [3, 5, 8, 10]);
    }
}
