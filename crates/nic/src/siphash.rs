//! SipHash-2-4: the keyed hash that authenticates packets. The kernel programs compute the same (`xdp/siphash.h`).
//!
//! Source: Aumasson and Bernstein, SipHash: a fast short-input PRF (2012), section 2.

/// Length of a key. Unit: bytes.
pub const KEY_BYTES: usize = 16;

/// The hash of whole words under a key of two words.
pub fn hash<'a>(key: [u64; 2], words: impl IntoIterator<Item = &'a u64>) -> u64 {
    let mut state = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let mut take = |word: u64| {
        state[3] ^= word;
        rounds(&mut state, 2);
        state[0] ^= word;
    };
    let mut length: u64 = 0;
    for &word in words {
        take(word);
        length += 8;
    }
    take(length << 56);
    state[2] ^= 0xff;
    rounds(&mut state, 4);
    state[0] ^ state[1] ^ state[2] ^ state[3]
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

    /// Source: the reference implementation's vectors (`vectors_sip64`), for 0, 8 and 16 bytes.
    #[test]
    fn hashes_equal_the_published_ones() {
        let words = |bytes: std::ops::Range<u8>| -> Vec<u64> {
            let bytes: Vec<u8> = bytes.collect();
            bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
        };
        let key = words(0..16).try_into().unwrap();
        assert_eq!(hash(key, &[]).to_le_bytes(), [0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72]);
        assert_eq!(hash(key, &words(0..8)).to_le_bytes(), [0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93]);
        assert_eq!(hash(key, &words(0..16)).to_le_bytes(), [0xdb, 0x9b, 0xc2, 0x57, 0x7f, 0xcc, 0x2a, 0x3f]);
    }
}
