//! Whom a rank knows: its machine numbers peers in the order in which it meets them, as the engine's address vector does.
//!
//! What a machine keeps by peer number then grows with those it meets, not with the world: among 262,144 ranks a
//! barrier makes everybody meet 36.

/// Numbers in a cache line, while they are few.
const LINE: u32 = 32;
/// A table of so many places has numbers of two bytes.
const FEW: usize = 1 << 16;

/// Peer numbers plus one by place, 0 for nobody.
#[derive(Debug)]
enum Numbers {
    Few(Vec<u16>),
    Many(Vec<u32>),
}

impl Default for Numbers {
    fn default() -> Numbers {
        Numbers::Few(Vec::new())
    }
}

impl Numbers {
    /// A table of nobody.
    fn with_places(places: usize) -> Numbers {
        if places <= FEW { Numbers::Few(vec![0; places]) } else { Numbers::Many(vec![0; places]) }
    }

    #[inline]
    fn places(&self) -> usize {
        match self {
            Numbers::Few(numbers) => numbers.len(),
            Numbers::Many(numbers) => numbers.len(),
        }
    }

    #[inline]
    fn get(&self, place: usize) -> u32 {
        match self {
            Numbers::Few(numbers) => numbers[place].into(),
            Numbers::Many(numbers) => numbers[place],
        }
    }

    fn set(&mut self, place: usize, number: u32) {
        match self {
            Numbers::Few(numbers) => numbers[place] = u16::try_from(number).expect("fewer than places"),
            Numbers::Many(numbers) => numbers[place] = number,
        }
    }
}

/// Ranks by peer number, and back.
#[derive(Debug, Default)]
pub(super) struct Acquaintances {
    ranks: Vec<u32>,
    /// A hash table with linear probing, at most three quarters full.
    numbers: Numbers,
}

impl Acquaintances {
    /// The rank of a peer that was met.
    #[inline]
    pub fn rank(&self, peer: u32) -> u32 {
        self.ranks[peer as usize]
    }

    /// The number of a rank, from now on if it was not met before.
    #[inline]
    pub fn number(&mut self, rank: u32) -> u32 {
        match self.find(rank) {
            Ok(number) => number,
            Err(place) => self.meet(rank, place),
        }
    }

    /// Where a rank stands in the table: its number, or the place for it.
    #[inline]
    fn find(&self, rank: u32) -> Result<u32, usize> {
        let Some(mask) = self.numbers.places().checked_sub(1) else { return Err(0) };
        // Fibonacci hashing (Knuth, volume 3, 6.4): the upper bits of the product are mixed best. Ranks of the same line stay
        // together: who meets one meets the next, and of a thousand tables each is looked at rarely.
        let line = (u64::from(rank / LINE).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
        let mut place = line.wrapping_mul(LINE).wrapping_add(rank % LINE) as usize & mask;
        loop {
            match self.numbers.get(place) {
                0 => return Err(place),
                number if self.ranks[number as usize - 1] == rank => return Ok(number - 1),
                _ => place = (place + 1) & mask,
            }
        }
    }

    #[cold]
    fn meet(&mut self, rank: u32, mut place: usize) -> u32 {
        if self.ranks.len() == self.ranks.capacity() {
            self.ranks.reserve_exact((self.ranks.len() / 2).max(4));
        }
        self.ranks.push(rank);
        if 4 * self.ranks.len() > 3 * self.numbers.places() {
            self.numbers = Numbers::with_places((2 * self.numbers.places()).max(4));
            for number in 0..self.ranks.len() - 1 {
                let place = self.find(self.ranks[number]).expect_err("each rank is met once");
                self.numbers.set(place, number as u32 + 1);
            }
            place = self.find(rank).expect_err("it is new");
        }
        self.numbers.set(place, self.ranks.len() as u32);
        self.ranks.len() as u32 - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_keep_their_numbers() {
        let mut known = Acquaintances::default();
        let rank = |number: u32| number.wrapping_mul(2_654_435_761) >> 8;
        for number in 0..100_000 {
            assert_eq!(known.number(rank(number)), number);
            assert!(known.numbers.places() <= (3 * number as usize).max(4));
        }
        for number in 0..100_000 {
            assert_eq!((known.number(rank(number)), known.rank(number)), (number, rank(number)));
        }
    }
}
