/* SipHash-2-4 of whole words with a result of two words. Source: Aumasson and Bernstein, SipHash: a fast short-input PRF (2012),
 * section 2; the second word is that of the same authors' reference implementation. */
#pragma once
#include "bpf.h"

struct siphash {
    __u64 v0, v1, v2, v3;
};

#define ROTATE(x, bits) (((x) << (bits)) | ((x) >> (64 - (bits))))

INLINE void siphash_round(struct siphash *s)
{
    s->v0 += s->v1; s->v1 = ROTATE(s->v1, 13); s->v1 ^= s->v0; s->v0 = ROTATE(s->v0, 32);
    s->v2 += s->v3; s->v3 = ROTATE(s->v3, 16); s->v3 ^= s->v2;
    s->v0 += s->v3; s->v3 = ROTATE(s->v3, 21); s->v3 ^= s->v0;
    s->v2 += s->v1; s->v1 = ROTATE(s->v1, 17); s->v1 ^= s->v2; s->v2 = ROTATE(s->v2, 32);
}

INLINE void siphash_begin(struct siphash *s, __u64 k0, __u64 k1)
{
    s->v0 = k0 ^ 0x736f6d6570736575ULL;
    s->v1 = k1 ^ 0x646f72616e646f6dULL ^ 0xee;
    s->v2 = k0 ^ 0x6c7967656e657261ULL;
    s->v3 = k1 ^ 0x7465646279746573ULL;
}

INLINE void siphash_word(struct siphash *s, __u64 word)
{
    s->v3 ^= word;
    siphash_round(s);
    siphash_round(s);
    s->v0 ^= word;
}

/* The four rounds at the end. A loop: short code is in the cache of instructions more often. */
INLINE void siphash_rounds(struct siphash *s)
{
#pragma clang loop unroll(disable)
    for (int round = 0; round < 4; round++)
        siphash_round(s);
}

/* Returns the first word of the result. */
INLINE __u64 siphash_end(struct siphash *s, __u64 bytes)
{
    siphash_word(s, bytes << 56);
    s->v2 ^= 0xee;
    siphash_rounds(s);
    return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

/* The second word, after the first one. */
INLINE __u64 siphash_second(struct siphash *s)
{
    s->v1 ^= 0xdd;
    siphash_rounds(s);
    return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}
