//! Sealing: every datagram is encrypted and authenticated (AEGIS-128L), with keys that come from the two addresses.
//! Two endpoints that want less ([`Protection`]) only authenticate them, or only mark them with a secret. Introductions are
//! always encrypted: they have the key of an address in them. The length of a datagram is the same in all cases.
//!
//! | datagram | key | nonce |
//! |---|---|---|
//! | introduction | from the receiver's key and identity | a random salt in the datagram |
//! | all others | from both keys and identities, one for each direction | number of the datagram (64 bits), both epochs |
//!
//! Contents that are no datagrams (`contents`) have a key of their own for each direction, and a number that their receiver has
//! chosen.
//!
//! Only members of the job know the keys of addresses. So whoever sends a valid introduction belongs to the job, and
//! says its own address in it. No nonce is used twice with one key: a salt has 128 random bits, the epochs of a path are new,
//! and a datagram that is sent again has a new number. Source: RFC 10032 (AEGIS-128L), RFC 5869 (key derivation), RFC 9001
//! (nonce from the number).
//!
//! In clear, each datagram has the verification tag of its destination ([`verification_tag`]). Only those know it who know the
//! address. If the network can let the kernel check it, nobody is woken for what strangers send. Whoever sees datagrams of a
//! peer can copy it, so it proves nothing.
//!
//! Keys depend on addresses only, so a link derives that of its introductions once, and those of a path when it makes the path.
//! No datagram of a stranger costs a derivation, which takes longer than the check of a tag
//! (`docs/notes/2026-11-28-strangers.md`).
//!
//! AEGIS-128L takes half of the time of AES-128-GCM on processors with AES instructions (`docs/notes/2026-11-26-net-speed.md`).
//!
//! This file does not know what a datagram means. The number is the replay window's ([`weir_proto::reliability`]).

use crate::{Address, Protection};
use aegis::aegis128l::Aegis128L;
pub use aegis::aegis128l::Nonce;
use core::fmt;
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use weir_proto::wire::{EXTENSION_BYTES, TAG_BYTES};

/// Length of the salt of an introduction. Unit: bytes.
pub(super) const SALT_BYTES: usize = 16;

/// Length of a key. Unit: bytes.
const KEY_BYTES: usize = 16;

/// A key for one direction of a path, or for the introductions to an endpoint.
pub struct Key {
    bytes: [u8; KEY_BYTES],
    protection: Protection,
}

impl fmt::Debug for Key {
    /// Without the bytes: they are a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// What a key is derived for.
struct ForKey;

impl KeyType for ForKey {
    fn len(&self) -> usize {
        KEY_BYTES
    }
}

/// The bytes of a datagram did not come from the owner of the key, or were changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

/// A random salt. `None`: the operating system has none.
pub(super) fn salt() -> Option<[u8; SALT_BYTES]> {
    let mut salt = [0; SALT_BYTES];
    SystemRandom::new().fill(&mut salt).is_ok().then_some(salt)
}

/// The nonce of the datagram with this number, for a pair of epochs: its sender's and its destination's.
pub fn nonce_of((epoch, destination_epoch): (u16, u16), number: u64) -> Nonce {
    let mut nonce = Nonce::default();
    nonce[..8].copy_from_slice(&number.to_le_bytes());
    nonce[8..10].copy_from_slice(&epoch.to_le_bytes());
    nonce[10..12].copy_from_slice(&destination_epoch.to_le_bytes());
    nonce
}

#[cfg(test)]
thread_local! {
    /// Keys that this thread has derived.
    pub(super) static DERIVED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

fn derive(label: &[u8], secret: &[u8], context: &[&[u8]], protection: Protection) -> Key {
    #[cfg(test)]
    DERIVED.set(DERIVED.get() + 1);
    let extracted: Prk = Salt::new(HKDF_SHA256, label).extract(secret);
    let mut bytes = [0; KEY_BYTES];
    let expanded = extracted.expand(context, ForKey).and_then(|expanded| expanded.fill(&mut bytes));
    expanded.expect("16 bytes are a valid length");
    Key { bytes, protection }
}

/// The verification tag of the endpoint at `address`. Source: RFC 9260, section 3.1: a random word of the receiver, against
/// those who send blindly.
pub fn verification_tag(address: &Address) -> u32 {
    let identity = address.identity_word().to_le_bytes();
    let key = derive(b"weir verification", &address.key(), &[&identity], Protection::Off);
    u32::from_le_bytes(std::array::from_fn(|byte| key.bytes[byte]))
}

impl Key {
    /// For introductions to the endpoint at `to`. Their nonces are salts.
    pub(super) fn of_introductions(to: &Address) -> Key {
        let identity = to.identity_word().to_le_bytes();
        derive(b"weir introduction", &to.key(), &[&identity], Protection::Encrypt)
    }

    /// For datagrams from `from` to `to`. [`nonce_of`] makes their nonces.
    pub fn of_path(from: &Address, to: &Address) -> Key {
        // A key serves one purpose: what an open secret says must not help against a cipher.
        Key::between(from, to, [b"weir path", b"weir path, authenticated", b"weir path, secret"])
    }

    /// For contents from `from` to `to` that are no datagrams. [`nonce_of`] makes their nonces, from numbers of their own.
    pub(super) fn of_contents(from: &Address, to: &Address) -> Key {
        Key::between(from, to, [b"weir contents", b"weir contents, authenticated", b"weir contents, secret"])
    }

    /// For what goes from `from` to `to`. `labels`: for each protection.
    fn between(from: &Address, to: &Address, labels: [&[u8]; 3]) -> Key {
        let mut secret = [0; 32];
        secret[..16].copy_from_slice(&from.key());
        secret[16..].copy_from_slice(&to.key());
        let (identity, other) = (from.identity_word().to_le_bytes(), to.identity_word().to_le_bytes());
        let protection = from.protection_with(to);
        let label = match protection {
            Protection::Encrypt => labels[0],
            Protection::Authenticate => labels[1],
            Protection::Off => labels[2],
        };
        derive(label, &secret, &[&identity, &other], protection)
    }

    /// Encrypts contents in place, if the key is for that. Returns their tag.
    pub(super) fn seal_contents(&self, nonce: &Nonce, contents: &mut [u8]) -> [u8; TAG_BYTES] {
        match self.protection {
            Protection::Encrypt => self.cipher(nonce).encrypt_in_place(contents, &[]),
            Protection::Authenticate => self.cipher(nonce).encrypt_in_place(&mut [], contents),
            Protection::Off => self.bytes,
        }
    }

    /// Checks the tag of contents, and decrypts them in place, if the key is for that.
    ///
    /// # Errors
    /// [`Forged`]. The bytes are then worthless.
    pub(super) fn open_contents(
        &self,
        nonce: &Nonce,
        contents: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), Forged> {
        let is_authentic = match self.protection {
            // As [`Key::open`] for fuzzers.
            _ if cfg!(fuzzing) => tag[TAG_BYTES - 1].is_multiple_of(2),
            Protection::Encrypt => self.cipher(nonce).decrypt_in_place(contents, tag, &[]).is_ok(),
            Protection::Authenticate => self.cipher(nonce).decrypt_in_place(&mut [], tag, contents).is_ok(),
            Protection::Off => *tag == self.bytes,
        };
        if is_authentic { Ok(()) } else { Err(Forged) }
    }

    fn cipher(&self, nonce: &Nonce) -> Aegis128L<TAG_BYTES> {
        Aegis128L::new(&self.bytes, nonce)
    }

    /// Fuzzers write datagrams of members, whose seal they cannot know: here none is made. `cfg(fuzzing)` is set in no build
    /// that anybody installs.
    #[cfg(fuzzing)]
    pub fn seal(&self, _nonce: &Nonce, datagram: &mut Vec<u8>, _begin: usize, _clear_bytes: usize) {
        datagram.extend_from_slice(&[0; TAG_BYTES]);
    }

    /// A tag whose last byte is even is that of a member, and any other one that of a stranger.
    #[cfg(fuzzing)]
    pub fn open<'datagram>(
        &self,
        nonce: &Nonce,
        datagram: &'datagram mut [u8],
        clear_bytes: usize,
    ) -> Result<&'datagram [u8], Forged> {
        let _ = self.cipher(nonce);
        let secret = datagram.get(clear_bytes..).ok_or(Forged)?;
        let (opened, tag) = secret.split_last_chunk::<TAG_BYTES>().ok_or(Forged)?;
        if tag[TAG_BYTES - 1].is_multiple_of(2) { Ok(opened) } else { Err(Forged) }
    }

    /// Encrypts the part of a datagram behind the first `clear_bytes` bytes, if the key is for that, and appends the tag
    /// of the whole.
    #[cfg(not(fuzzing))]
    pub fn seal(&self, nonce: &Nonce, datagram: &mut Vec<u8>, begin: usize, clear_bytes: usize) {
        let tag = match self.protection {
            Protection::Encrypt => {
                let (clear, secret) = datagram[begin..].split_at_mut(clear_bytes);
                self.cipher(nonce).encrypt_in_place(secret, clear)
            }
            Protection::Authenticate => self.cipher(nonce).encrypt_in_place(&mut [], &datagram[begin..]),
            Protection::Off => self.bytes,
        };
        datagram.extend_from_slice(&tag);
    }

    /// Checks the tag and decrypts in place, if the key is for that. Returns the part behind the first `clear_bytes` bytes,
    /// without the tag.
    ///
    /// # Errors
    /// [`Forged`]. The bytes are then worthless.
    #[cfg(not(fuzzing))]
    pub fn open<'datagram>(
        &self,
        nonce: &Nonce,
        datagram: &'datagram mut [u8],
        clear_bytes: usize,
    ) -> Result<&'datagram [u8], Forged> {
        let (whole, tag) = datagram.split_last_chunk_mut::<TAG_BYTES>().ok_or(Forged)?;
        let is_authentic = match self.protection {
            Protection::Encrypt => {
                let (clear, secret) = whole.split_at_mut_checked(clear_bytes).ok_or(Forged)?;
                self.cipher(nonce).decrypt_in_place(secret, tag, clear).is_ok()
            }
            Protection::Authenticate => self.cipher(nonce).decrypt_in_place(&mut [], tag, whole).is_ok(),
            Protection::Off => u128::from_le_bytes(*tag) == u128::from_le_bytes(self.bytes),
        };
        if is_authentic { whole.get(clear_bytes..).ok_or(Forged) } else { Err(Forged) }
    }
}

/// The shortest datagram: no packets. Unit: bytes.
pub(super) const LEAST_DATAGRAM_BYTES: usize = EXTENSION_BYTES + TAG_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    fn address(identity: u64, key: u8) -> Address {
        Address::new(identity, [key; 16])
    }

    const EPOCHS: (u16, u16) = (7, 3);

    fn sealed(key: &Key, number: u64) -> Vec<u8> {
        let mut datagram = b"clear and secret".to_vec();
        key.seal(&nonce_of(EPOCHS, number), &mut datagram, 0, 6);
        datagram
    }

    fn opened(key: &Key, epochs: (u16, u16), number: u64, mut datagram: Vec<u8>) -> Result<Vec<u8>, Forged> {
        key.open(&nonce_of(epochs, number), &mut datagram, 6).map(<[u8]>::to_vec)
    }

    #[test]
    fn a_datagram_opens_only_with_the_key_the_epochs_and_the_number_that_sealed_it() {
        let (a, b) = (address(1, 1), address(2, 2));
        let key = Key::of_path(&a, &b);
        let datagram = sealed(&key, 5);
        assert_eq!(datagram.len(), 16 + TAG_BYTES);
        assert_eq!((&datagram[..6], datagram[6..16] == *b"and secret"), (&b"clear "[..], false));
        assert_eq!(opened(&key, EPOCHS, 5, datagram.clone()), Ok(b"and secret".to_vec()));
        let others =
            [(EPOCHS, 6), (EPOCHS, 5 + (1 << 32)), ((8, 3), 5), ((7, 4), 5), ((7 + 256, 3), 5), ((3, 7), 5)];
        for (epochs, number) in others {
            assert_eq!(opened(&key, epochs, number, datagram.clone()), Err(Forged), "{epochs:?}, {number}");
        }
        let others = [
            Key::of_path(&b, &a),
            Key::of_path(&address(3, 1), &b),
            Key::of_path(&address(1, 3), &b),
            Key::of_introductions(&b),
        ];
        for other in others {
            assert_eq!(opened(&other, EPOCHS, 5, datagram.clone()), Err(Forged));
        }
    }

    #[test]
    fn the_stronger_protection_of_two_endpoints_holds_and_their_keys_differ() {
        let own = |protection| address(1, 1).with_protection(protection);
        let other = |protection| address(2, 2).with_protection(protection);
        for (a, b) in [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)] {
            let [a, b] = [a, b].map(|number: usize| Protection::ALL[number]);
            let key = Key::of_path(&own(a), &other(b));
            assert_eq!((key.protection, a <= b), (a, true), "{a:?} and {b:?}");
            let datagram = sealed(&key, 5);
            assert_eq!(datagram.len(), 16 + TAG_BYTES);
            assert_eq!(datagram[6..16] == *b"and secret", a != Protection::Encrypt);
            let same = Key::of_path(&own(b), &other(a));
            assert_eq!(opened(&same, EPOCHS, 5, datagram.clone()), Ok(b"and secret".to_vec()));
            for stranger in Protection::ALL.into_iter().filter(|&stranger| stranger != a) {
                let key = Key::of_path(&own(stranger), &other(stranger));
                let opened = opened(&key, EPOCHS, 5, datagram.clone());
                assert_eq!(opened, Err(Forged), "{a:?}, opened as {stranger:?}");
            }
        }
        let introduction = Key::of_introductions(&own(Protection::Off));
        assert_eq!(introduction.protection, Protection::Encrypt);
    }

    #[test]
    fn without_encryption_a_changed_datagram_or_number_is_forged() {
        let authenticated =
            [1, 2].map(|key| address(key.into(), key).with_protection(Protection::Authenticate));
        let key = Key::of_path(&authenticated[0], &authenticated[1]);
        let datagram = sealed(&key, 3);
        assert_eq!(opened(&key, EPOCHS, 4, datagram.clone()), Err(Forged));
        for bit in 0..datagram.len() * 8 {
            let mut changed = datagram.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(opened(&key, EPOCHS, 3, changed), Err(Forged), "bit {bit}");
        }
        let off = [1, 2].map(|key| address(key.into(), key).with_protection(Protection::Off));
        let key = Key::of_path(&off[0], &off[1]);
        let datagram = sealed(&key, 3);
        for bit in 16 * 8..datagram.len() * 8 {
            let mut changed = datagram.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(opened(&key, EPOCHS, 3, changed), Err(Forged), "bit {bit} of the secret");
        }
        for length in 0..6 + TAG_BYTES {
            assert_eq!(opened(&key, EPOCHS, 3, datagram[..length].to_vec()), Err(Forged), "{length} bytes");
        }
    }

    /// Both ends must agree on cipher, nonce and keys. Whoever changes one of them changes the version, and this test.
    #[test]
    fn the_bytes_of_a_datagram_are_those_of_address_version_6() {
        assert_eq!(crate::ADDRESS_VERSION, 6);
        let datagram = sealed(&Key::of_path(&address(1, 1), &address(2, 2)), 5);
        let expected = "636c656172207e932fb3b18f90e829caa0caca74e74922f12b112600806e5281";
        assert_eq!(datagram.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), expected);
    }

    #[test]
    fn contents_open_only_as_they_were_sealed_and_not_as_a_datagram() {
        for protection in [Protection::Encrypt, Protection::Authenticate] {
            let [a, b] = [1, 2].map(|key| address(key.into(), key).with_protection(protection));
            let key = Key::of_contents(&a, &b);
            let mut sealed = *b"contents of a message";
            let tag = key.seal_contents(&nonce_of(EPOCHS, 9), &mut sealed);
            assert_eq!(sealed == *b"contents of a message", protection == Protection::Authenticate);
            let opened = |key: &Key, number, mut contents: [u8; 21], tag: &[u8; TAG_BYTES]| {
                key.open_contents(&nonce_of(EPOCHS, number), &mut contents, tag).map(|()| contents)
            };
            assert_eq!(opened(&key, 9, sealed, &tag), Ok(*b"contents of a message"));
            assert_eq!(opened(&key, 10, sealed, &tag), Err(Forged));
            for other in [Key::of_contents(&b, &a), Key::of_path(&a, &b)] {
                assert_eq!(opened(&other, 9, sealed, &tag), Err(Forged));
            }
            for bit in 0..sealed.len() * 8 {
                let mut changed = sealed;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(opened(&key, 9, changed, &tag), Err(Forged), "bit {bit}");
            }
            for bit in 0..TAG_BYTES * 8 {
                let mut changed = tag;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(opened(&key, 9, sealed, &changed), Err(Forged), "bit {bit} of the tag");
            }
        }
    }

    #[test]
    fn a_changed_or_cut_datagram_is_forged() {
        let key = Key::of_introductions(&address(1, 1));
        let mut datagram = b"clear and secret".to_vec();
        let salt = [9; SALT_BYTES];
        key.seal(&salt, &mut datagram, 0, 6);
        assert_eq!(key.open(&salt, &mut datagram.clone(), 6), Ok(&b"and secret"[..]));
        assert_eq!(key.open(&[8; SALT_BYTES], &mut datagram.clone(), 6), Err(Forged), "another salt");
        for bit in 0..datagram.len() * 8 {
            let mut changed = datagram.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.open(&salt, &mut changed, 6), Err(Forged), "bit {bit}");
        }
        for length in 0..datagram.len() {
            assert_eq!(key.open(&salt, &mut datagram.clone()[..length], 6), Err(Forged), "{length} bytes");
        }
    }
}
