//! Peer numbers of a rank. Its endpoint machine numbers peers in the order of first contact, as the engine does. Also
//! stores our number at each peer.
//!
//! So the tables of a machine grow with its number of peers, not with the world: a barrier among 262,144
//! ranks gives each rank 36 peers. A rank with nearly all ranks as peers has a table by rank. That is smaller
//! than the next larger hash table and needs no comparison. In a large world most ranks have few peers; a
//! rank searches them without a table.

/// Numbers of a cache line, while two bytes hold one.
const LINE: u32 = 32;
/// Ranks of a large world with at most this number of peers have no table.
const MAX_LISTED: usize = 48;
/// Worlds with more ranks are large.
const SMALL_WORLD: u32 = 4096;
/// Tables of up to this size have numbers of two bytes.
const MAX_U16_PLACES: usize = 1 << 16;

/// Peer numbers plus one; 0 for unknown ranks.
#[derive(Debug)]
enum Numbers {
    /// A hash table with linear probing, at most three quarters full.
    Hash16(Vec<u16>),
    /// The same with larger numbers.
    Hash32(Vec<u32>),
    /// By rank, in a world that is no larger than the next hash table.
    ByRank(Vec<u16>),
}

impl Default for Numbers {
    fn default() -> Numbers {
        Numbers::Hash16(Vec::new())
    }
}

impl Numbers {
    /// An empty table.
    fn with_places(places: usize, world: usize) -> Numbers {
        match places {
            places if places >= world && world < MAX_U16_PLACES => Numbers::ByRank(vec![0; world]),
            places if places <= MAX_U16_PLACES => Numbers::Hash16(vec![0; places]),
            places => Numbers::Hash32(vec![0; places]),
        }
    }

    #[inline]
    fn places(&self) -> usize {
        match self {
            Numbers::Hash16(numbers) | Numbers::ByRank(numbers) => numbers.len(),
            Numbers::Hash32(numbers) => numbers.len(),
        }
    }

    /// Number of peer numbers that fit.
    fn room(&self) -> usize {
        if let Numbers::ByRank(numbers) = self { numbers.len() } else { self.places() / 4 * 3 }
    }

    #[inline]
    fn get(&self, place: usize) -> u32 {
        match self {
            Numbers::Hash16(numbers) | Numbers::ByRank(numbers) => numbers[place].into(),
            Numbers::Hash32(numbers) => numbers[place],
        }
    }

    fn set(&mut self, place: usize, number: u32) {
        match self {
            Numbers::Hash16(numbers) | Numbers::ByRank(numbers) => {
                numbers[place] = u16::try_from(number).expect("at most as many numbers as places");
            }
            Numbers::Hash32(numbers) => numbers[place] = number,
        }
    }
}

/// Ranks by peer number, and the reverse.
#[derive(Debug)]
pub(super) struct PeerNumbers {
    ranks: Vec<u32>,
    /// Our numbers at our peers plus one, by peer number, as far as known. May be shorter than `ranks`.
    number_at_peer: Box<[u32]>,
    numbers: Numbers,
    /// Number of ranks of the world.
    world: u32,
}

impl PeerNumbers {
    /// No peers yet, in a world of `world` ranks.
    pub fn with_ranks(world: u32) -> PeerNumbers {
        PeerNumbers { ranks: Vec::new(), number_at_peer: Box::default(), numbers: Numbers::default(), world }
    }

    /// The rank of a peer.
    #[inline]
    pub fn rank(&self, peer: u32) -> u32 {
        self.ranks[peer as usize]
    }

    /// Our number at a peer, if known.
    #[inline]
    pub fn number_at_peer(&self, peer: u32) -> Option<u32> {
        self.number_at_peer.get(peer as usize)?.checked_sub(1)
    }

    /// Notes our number at a peer.
    pub fn set_number_at_peer(&mut self, peer: u32, number_at_peer: u32) {
        if self.number_at_peer.len() <= peer as usize {
            let mut more = vec![0; self.ranks.capacity()];
            more[..self.number_at_peer.len()].copy_from_slice(&self.number_at_peer);
            self.number_at_peer = more.into_boxed_slice();
        }
        self.number_at_peer[peer as usize] = number_at_peer + 1;
    }

    /// The number of a rank. A new rank gets the next number.
    #[inline]
    pub fn number(&mut self, rank: u32) -> u32 {
        match self.find(rank) {
            Ok(number) => number,
            Err(place) => self.assign(rank, place),
        }
    }

    /// The number of a rank, or the place in the table where it belongs.
    #[inline]
    fn find(&self, rank: u32) -> Result<u32, usize> {
        if let Numbers::ByRank(numbers) = &self.numbers {
            return u32::from(numbers[rank as usize]).checked_sub(1).ok_or(rank as usize);
        }
        let Some(mask) = self.numbers.places().checked_sub(1) else {
            let place = self.ranks.iter().position(|&met| met == rank);
            return place.map(|place| place as u32).ok_or(0);
        };
        // Fibonacci hashing (Knuth, volume 3, 6.4): the upper bits of the product are mixed best. Ranks with
        // neighbouring numbers stay in one cache line. A rank that has one of them as peer often has the
        // next, and tables are rarely in the caches.
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
    fn assign(&mut self, rank: u32, mut place: usize) -> u32 {
        if self.ranks.len() == self.ranks.capacity() {
            self.ranks.reserve_exact((self.ranks.len() / 2).max(4));
        }
        self.ranks.push(rank);
        let number = self.ranks.len() as u32 - 1;
        let listed = if self.world > SMALL_WORLD { MAX_LISTED } else { 0 };
        if self.ranks.len() <= listed {
            return number;
        }
        if self.ranks.len() > self.numbers.room() {
            let places = (2 * self.numbers.places()).max(2 * listed.next_power_of_two()).max(4);
            self.numbers = Numbers::with_places(places, self.world as usize);
            for number in 0..self.ranks.len() - 1 {
                let place = self.find(self.ranks[number]).expect_err("each rank is met once");
                self.numbers.set(place, number as u32 + 1);
            }
            place = self.find(rank).expect_err("it is new");
        }
        self.numbers.set(place, number + 1);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_numbers_are_stable() {
        let rank = |number: u32| number.wrapping_mul(2_654_435_761) >> 8;
        let mut peers = PeerNumbers::with_ranks(1 << 24);
        for number in 0..100_000 {
            assert_eq!(peers.number(rank(number)), number);
            assert!(peers.numbers.places() <= (3 * number as usize).max(4));
        }
        for number in 0..100_000 {
            assert_eq!((peers.number(rank(number)), peers.rank(number)), (number, rank(number)));
        }
    }

    #[test]
    fn the_number_at_a_peer_is_known_after_it_was_set() {
        let mut peers = PeerNumbers::with_ranks(1 << 20);
        for number in 0..1000 {
            assert_eq!(peers.number(3 * number), number);
            assert_eq!(peers.number_at_peer(number), None);
            if number % 7 == 0 {
                peers.set_number_at_peer(number, number / 7);
            }
        }
        let told = |number| (number % 7 == 0).then_some(number / 7);
        assert!((0..1000).all(|number| peers.number_at_peer(number) == told(number)));
        peers.set_number_at_peer(14, 5);
        assert_eq!(
            (peers.number_at_peer(14), peers.number_at_peer(21), peers.number_at_peer(1000)),
            (Some(5), Some(3), None)
        );
    }

    #[test]
    fn a_table_of_all_ranks_has_one_place_per_rank() {
        for world in [1, 2, 3, 4, 5, 48, 64, 1000, 1024, 1025, 65_535] {
            let mut peers = PeerNumbers::with_ranks(world);
            let rank = |number: u32| world - 1 - number;
            for number in 0..world {
                assert_eq!(peers.number(rank(number)), number, "of {world}");
                assert!(peers.numbers.places() <= (3 * number as usize).max(4), "of {world}");
            }
            assert!(matches!(peers.numbers, Numbers::ByRank(_)) && peers.numbers.places() == world as usize);
            for number in 0..world {
                assert_eq!((peers.number(rank(number)), peers.rank(number)), (number, rank(number)));
            }
        }
    }
}
