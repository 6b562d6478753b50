//! Domains: the shares of jobs of the kernel programs on an interface.

use crate::siphash::{self, KEY_BYTES};

/// What the members of a job know and nobody else. It must be random: it is the only protection.
pub type Secret = [u8; KEY_BYTES];

/// The name of a domain, which packets show, and its key, which they do not. Both follow from the secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Domain {
    pub(crate) name: u64,
    pub(crate) key: [u64; 2],
}

impl std::fmt::Debug for Domain {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Domain({:016x})", self.name)
    }
}

impl Domain {
    /// The domain of a secret. SipHash is a pseudorandom function, so the name does not tell the key.
    pub fn of(secret: &Secret) -> Domain {
        let (low, high) = secret.split_at(8);
        let key = [low, high].map(|half| u64::from_le_bytes(std::array::from_fn(|at| half[at])));
        let derived = |number| siphash::hash(key, &[u64::from_le_bytes(*b"weir nic"), number], 16)[0];
        Domain { name: derived(0), key: [derived(1), derived(2)] }
    }
}
