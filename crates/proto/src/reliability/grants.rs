//! Grants: how many datagrams each peer may have under way to one receiver, so that what the receiver's host buffers for
//! it is enough ([`Grants`]). A host drops what does not fit. So many senders to one receiver would turn into loss.
//!
//! ```text
//! capacity 64, least 8, two peers            A: 8, B: 8      both begin with the least grant
//! A sends                                    A: 56           the rest, as B uses nothing
//! B sends too                                A: told 32      A may still use 56
//! A has acknowledged its lower grant         B: 32
//! ```
//! The grants that are in force never exceed the capacity in sum, however long a message to a peer travels. A lower grant
//! counts when the peer has acknowledged it. Each peer has the least grant without being told. With so many peers that
//! these need more than half of the capacity, the others share half of it all the same: most peers are idle then.
//!
//! This file does not know paths or frames. Peers are numbers.

use alloc::vec::Vec;

use super::mutant::{Broken, Mutant};
use crate::time::Instant;

/// The grant of a peer that was told nothing. Unit: datagrams.
pub const LEAST_GRANT: u16 = 8;
/// The time between two looks at who sends: the least, and for each peer. A look reads all peers.
const ROUND_NS: u64 = 100_000;
const ROUND_NS_PER_PEER: u64 = 1_000;
/// A peer that has sent nothing for so many rounds is idle.
const IDLE_ROUNDS: u64 = 16;

#[derive(Clone, Copy, Debug)]
struct Share {
    /// What the peer was told last.
    told: u16,
    /// What it may still use: more than it was told, until it has acknowledged that.
    in_force: u16,
    /// The round in which it has sent last.
    used_in: u64,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Grants {
    capacity: u64,
    most: u16,
    /// By number of the peer.
    shares: Vec<Option<Share>>,
    peers: u64,
    /// The sum of what is in force beyond the least grants.
    beyond_least: u64,
    round: u64,
    /// The next round begins at this time.
    round_at: Instant,
    /// Something has arrived or changed since the last round.
    has_news: bool,
    broken: Broken,
}

impl Grants {
    /// A receiver for which `capacity` datagrams are buffered. No peer is granted more than `most`.
    pub fn new(capacity: u64, most: u16) -> Grants {
        Grants {
            capacity,
            most: most.max(LEAST_GRANT),
            shares: Vec::new(),
            peers: 0,
            beyond_least: 0,
            round: IDLE_ROUNDS,
            round_at: Instant(0),
            has_news: false,
            broken: Broken::default(),
        }
    }

    /// A peer, which has the least grant.
    pub fn add(&mut self, peer: u32) {
        let index = peer as usize;
        if self.shares.len() <= index {
            self.shares.resize(index + 1, None);
        }
        self.remove(peer);
        self.shares[index] = Some(Share { told: LEAST_GRANT, in_force: LEAST_GRANT, used_in: 0 });
        self.peers += 1;
    }

    /// The peer sends nothing more.
    pub fn remove(&mut self, peer: u32) {
        if let Some(share) = self.shares.get_mut(peer as usize).and_then(Option::take) {
            self.peers -= 1;
            self.beyond_least -= u64::from(share.in_force - LEAST_GRANT);
            self.has_news = true;
        }
    }

    /// The peer has sent a bundle.
    #[inline]
    pub fn arrived(&mut self, peer: u32) {
        if let Some(Some(share)) = self.shares.get_mut(peer as usize) {
            share.used_in = self.round;
            self.has_news = true;
        }
    }

    /// The peer has acknowledged what it was told last.
    pub fn acknowledged(&mut self, peer: u32) {
        if let Some(Some(share)) = self.shares.get_mut(peer as usize) {
            self.beyond_least -= u64::from(share.in_force - share.told);
            share.in_force = share.told;
            self.has_news = true;
        }
    }

    /// The sum of the grants that peers may use now.
    pub fn in_force(&self) -> u64 {
        self.peers * u64::from(LEAST_GRANT) + self.beyond_least
    }

    /// The most that may be in force beyond the least grants.
    fn most_beyond_least(&self) -> u64 {
        self.capacity.saturating_sub(self.peers * u64::from(LEAST_GRANT)).max(self.capacity / 2)
    }

    /// Whether [`Grants::tell`] has something to do.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        self.has_news && now >= self.round_at
    }

    /// Divides the capacity between those who send. `tell` tells a peer its new grant, and returns whether it could.
    pub fn tell(&mut self, now: Instant, mut tell: impl FnMut(u32, u16) -> bool) {
        if !self.is_due(now) {
            return;
        }
        self.round_at = now.plus_ns(ROUND_NS.max(ROUND_NS_PER_PEER * self.peers));
        self.has_news = false;
        let idle_before = self.round - IDLE_ROUNDS;
        self.round += 1;
        let is_active = |share: &Share| share.used_in > idle_before;
        let active = self.shares.iter().flatten().filter(|share| is_active(share)).count() as u64;
        let most_beyond_least = self.most_beyond_least();
        let fair = u64::from(LEAST_GRANT) + most_beyond_least / active.max(1);
        let fair = fair.min(self.most.into()) as u16;
        let wanted = self.shares.iter().flatten().filter(|share| is_active(share));
        let wanted: u64 = wanted.map(|share| u64::from(fair.saturating_sub(share.in_force))).sum();
        let is_short = self.beyond_least + wanted > most_beyond_least;
        // Lower grants first. They make room for later rounds.
        for lowers in [true, false] {
            for (peer, share) in self.shares.iter_mut().enumerate() {
                // One message at a time: an acknowledgement is that of the last one.
                let Some(share) = share.as_mut().filter(|share| share.told == share.in_force) else {
                    continue;
                };
                let grant = match (is_active(share), lowers) {
                    (true, true) if share.told > fair + fair / 4 => fair,
                    (false, true) if is_short => LEAST_GRANT,
                    (true, false) => {
                        let room = most_beyond_least.saturating_sub(self.beyond_least);
                        let grant = u64::from(fair).min(u64::from(share.told) + room) as u16;
                        // A small step is not worth a message.
                        if grant < share.told + (share.told / 8).max(1) { share.told } else { grant }
                    }
                    _ => share.told,
                };
                if grant != share.told && tell(peer as u32, grant) {
                    share.told = grant;
                    let counts = if self.broken.has(Mutant::LowerGrantsCountAtOnce) {
                        grant
                    } else {
                        grant.max(share.in_force)
                    };
                    self.beyond_least = self.beyond_least + u64::from(counts) - u64::from(share.in_force);
                    share.in_force = counts;
                    self.has_news = true;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use alloc::vec;

    /// A peer on a network in which messages take a random time, in order.
    #[derive(Default)]
    struct Peer {
        grant: u64,
        /// Grants with their numbers on the way to it, and acknowledged numbers on the way back.
        to_it: VecDeque<(u64, u16)>,
        back: VecDeque<u64>,
        /// The number of the last grant.
        last: u64,
        sends: bool,
    }

    /// Runs a receiver with peers that begin and cease to send. Returns the largest sum of what peers used.
    fn run(seed: u64, capacity: u64, count: usize, mutant: Option<Mutant>) -> u64 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut grants = Grants::new(capacity, 256);
        grants.broken = Broken { mutant };
        let mut peers: Vec<Peer> = (0..count).map(|_| Peer::default()).collect();
        for (number, peer) in peers.iter_mut().enumerate() {
            grants.add(number as u32);
            peer.grant = LEAST_GRANT.into();
        }
        let mut most = 0;
        for step in 0..4000 {
            for (number, peer) in peers.iter_mut().enumerate() {
                peer.sends ^= random.u32(..200) == 0;
                if peer.sends {
                    grants.arrived(number as u32);
                }
                if random.u32(..4) == 0
                    && let Some((number, grant)) = peer.to_it.pop_front()
                {
                    peer.grant = grant.into();
                    peer.back.push_back(number);
                }
                if random.u32(..4) == 0 && peer.back.pop_front() == Some(peer.last) {
                    grants.acknowledged(number as u32);
                }
            }
            grants.tell(Instant(step * ROUND_NS / 2), |peer, grant| {
                let accepts = random.u32(..8) > 0;
                if accepts {
                    let peer = &mut peers[peer as usize];
                    peer.last += 1;
                    peer.to_it.push_back((peer.last, grant));
                }
                accepts
            });
            most = most.max(peers.iter().map(|peer| peer.grant).sum());
        }
        most
    }

    #[test]
    fn what_peers_may_use_never_exceeds_the_capacity() {
        for seed in 0..200 {
            let capacity = 64 + seed * 7;
            let count = 1 + seed % 12;
            let most = run(seed, capacity, count as usize, None);
            let bound = capacity.max(count * u64::from(LEAST_GRANT) + capacity / 2);
            assert!(most <= bound, "seed {seed}: {most} of {bound}");
        }
    }

    #[test]
    fn a_mutant_whose_lower_grants_count_at_once_exceeds_it() {
        let exceeds = |seed| run(seed, 128, 6, Some(Mutant::LowerGrantsCountAtOnce)) > 128;
        assert!((0..20).any(exceeds));
    }

    /// Runs rounds in which some peers send and acknowledge at once. Returns what they were granted.
    fn steady(grants: &mut Grants, told: &mut [u16], senders: &[u32], begin: u64) {
        for round in 0..60 {
            senders.iter().for_each(|&sender| grants.arrived(sender));
            let mut new = Vec::new();
            grants.tell(Instant((begin + round) * ROUND_NS), |peer, grant| {
                new.push((peer, grant));
                true
            });
            for (peer, grant) in new {
                told[peer as usize] = grant;
                grants.acknowledged(peer);
            }
        }
    }

    #[test]
    fn one_sender_gets_what_others_do_not_use_and_many_share() {
        let mut grants = Grants::new(400, 256);
        (0..20).for_each(|peer| grants.add(peer));
        let mut told = vec![LEAST_GRANT; 20];
        steady(&mut grants, &mut told, &[3], 0);
        assert!(told[3] >= 200, "{told:?}");
        let all: Vec<u32> = (0..20).collect();
        steady(&mut grants, &mut told, &all, 100);
        assert!(told.iter().all(|&grant| (16..=25).contains(&grant)), "{told:?}");
        steady(&mut grants, &mut told, &[7, 8], 200);
        assert!(told[7] > 80 && told[8] > 80, "{told:?}");
        assert!(grants.in_force() <= 400);
        (0..20).for_each(|peer| grants.remove(peer));
        assert_eq!(grants.in_force(), 0);
    }

    #[test]
    fn a_large_buffer_gives_each_sender_the_most_and_takes_nothing_back() {
        let mut grants = Grants::new(100_000, 256);
        (0..20).for_each(|peer| grants.add(peer));
        let mut told = vec![LEAST_GRANT; 20];
        let all: Vec<u32> = (0..20).collect();
        steady(&mut grants, &mut told, &all, 0);
        assert_eq!(told, [256; 20]);
        steady(&mut grants, &mut told, &[1], 100);
        assert_eq!(told, [256; 20], "nobody needs what the idle ones have");
        grants.tell(Instant(1_000 * ROUND_NS), |_, _| panic!("nothing has changed"));
    }
}
