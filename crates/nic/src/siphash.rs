//! SipHash-2-4 with a result of two words: the keyed hash that authenticates packets. The kernel programs compute the same
//! (`xdp/siphash.h`).
//!
//! Source: Aumasson and Bernstein, SipHash: a fast short-input PRF (2012), section 2; two words: their reference implementation.

/// Length of a key. Unit: bytes.
pub const KEY_BYTES: usize = 16;

/// The hash of whole words under a key of two words. `bytes`: their length, as the hash is to know it.
pub fn hash<'a>(key: [u64; 2], words: impl IntoIterator<Item = &'a u64>, bytes: usize) -> [u64; 2] {
    let mut state = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d ^ 0xee,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let mut take = |word: u64| {
        state[3] ^= word;
        rounds(&mut state, 2);
        state[0] ^= word;
    };
    words.into_iter().for_each(|&word| take(word));
    take((bytes as u64) << 56);
    state[2] ^= 0xee;
    let mut end = || {
        rounds(&mut state, 4);
        let word = state[0] ^ state[1] ^ state[2] ^ state[3];
        state[1] ^= 0xdd;
        word
    };
    [end(), end()]
}

fn rounds([v0, v1, v2, v3]: &mut [u64; 4], count: usize) {
    for _ in 0..count {
        *v0 = v0.wrapping_add(*v1);
        *v1 = v1.rotate_left(13) ^ *v0;
        *v0 = v0.rotate_left(32);
        *v2 = v2.wrapping_add(*v3);
        *v3 = v3.rotate_left(16) ^ *v2;
        *v0 = v0.wrapping_add(*v3);
        *v3 = v3.rotate_left(21) ^ *v0;
        *v2 = v2.wrapping_add(*v1);
        *v1 = v1.rotate_left(17) ^ *v2;
        *v2 = v2.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source: the reference implementation's vectors (`vectors_sip128`), for 0, 8 and 16 bytes.
    #[test]
    fn hashes_equal_the_published_ones() {
        let words = |bytes: std::ops::Range<u8>| -> Vec<u64> {
            let bytes: Vec<u8> = bytes.collect();
            bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
        };
        let key = words(0..16).try_into().unwrap();
        let hash = |bytes: u8| {
            let words = hash(key, &words(0..bytes), bytes.into());
            words.map(|word| format!("{:016x}", word.swap_bytes())).concat()
        };
        assert_eq!(hash(0), "a3817f04ba25a8e66df67214c7550293");
        assert_eq!(hash(8), "3b62a9ba6258f5610f83e264f31497b4");
        assert_eq!(hash(16), "6ee2a4ca67b054bbfd3315bf85230577");
    }
}
