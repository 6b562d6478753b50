/* Packets, hashed, and vectors behind them: taken from frames, put into frames, and combined. Each function here is verified by
 * itself, so a loop over words is followed once and not once for each place that calls it. */
#pragma once
#include "bpf.h"
#include "floats.h"
#include "format.h"
#include "siphash.h"
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>

struct vector {
    __u64 words[WEIR_MAX_VECTOR_WORDS];
};

/* Headers before our packet, and before the vector behind it. */
#define PACKET_OFFSET (ETH_HLEN + sizeof(struct iphdr) + sizeof(struct udphdr))
#define VECTOR_OFFSET (PACKET_OFFSET + sizeof(struct weir_packet))

/* The word of a vector in a frame. Null: the frame ends before it. */
INLINE __u64 *word_in_frame(struct xdp_md *context, __u32 at)
{
    void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
    __u64 *word = data + VECTOR_OFFSET + (at & (WEIR_MAX_VECTOR_WORDS - 1)) * 8;

    return (void *)(word + 1) > end ? 0 : word;
}

/* Continues a hash with what all copies of a packet have in common: its words before the operand, and the vector. The domain has
 * the key, so its name needs none. Multi-sends have neither asker nor number. */
SEPARATE int hash_common(struct xdp_md *context, struct siphash *hash, __u32 words)
{
    void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
    struct weir_packet *packet = data + PACKET_OFFSET;
    __u64 *word = (__u64 *)packet;
    __u32 before;
    struct siphash s;

    if (!hash || (void *)(packet + 1) > end)
        return 0;
    s = *hash;
    siphash_word(&s, *word);
    before = (packet->kind & WEIR_KIND_MULTI_SEND) == WEIR_KIND_MULTI_SEND ? 2 : 4;
    word += 6 - before;
    for (__u32 at = 0; at < 4 + WEIR_MAX_VECTOR_WORDS; at++) {
        if (at >= before + words || (void *)(word + 1) > end)
            break;
        siphash_word(&s, *word);
        word += at == before - 1 ? 3 : 1; /* behind the operand and the tag */
    }
    *hash = s;
    return 0;
}

/* Ends it with what differs: the operand, and both addresses. Returns the first word of the result. */
SEPARATE __u64 hash_rest(struct siphash *hash, __u64 operand, __u64 way, __u32 words)
{
    struct siphash s;
    __u64 first;

    if (!hash)
        return 0;
    s = *hash;
#pragma clang loop unroll(disable)
    for (int at = 0; at < 2; at++)
        siphash_word(&s, at ? way : operand);
    first = siphash_end(&s, 64 + words * 8);
    *hash = s;
    return first;
}

/* The second word of the result, after the first one. */
SEPARATE __u64 hash_second(struct siphash *hash)
{
    return hash ? siphash_second(hash) : 0;
}

/* Copies the words of a frame. */
SEPARATE int take_vector(struct xdp_md *context, struct vector *into, __u32 words)
{
    if (!into)
        return 0;
    for (__u32 at = 0; at < WEIR_MAX_VECTOR_WORDS; at++) {
        __u64 *word = at < words ? word_in_frame(context, at) : 0;
        if (!word)
            break;
        into->words[at] = *word;
    }
    return 0;
}

/* Replaces the words of a frame. */
SEPARATE int put_vector(struct xdp_md *context, const struct vector *from, __u32 words)
{
    if (!from)
        return 0;
    for (__u32 at = 0; at < WEIR_MAX_VECTOR_WORDS; at++) {
        __u64 *word = at < words ? word_in_frame(context, at) : 0;
        if (!word)
            break;
        *word = from->words[at];
    }
    return 0;
}

/* Combines two words. Verified by itself too: in the loop below, each operation would be followed through all words. */
SEPARATE __u64 combine_words(__u32 operation, __u64 a, __u64 b)
{
    __u32 a0 = a, a1 = a >> 32, b0 = b, b1 = b >> 32;

    if ((operation & WEIR_VECTOR_TYPE) == WEIR_VECTOR_F64)
        return combine_binary64(operation, a, b);
    if ((operation & WEIR_VECTOR_TYPE) == WEIR_VECTOR_F32)
        return (__u64)combine_binary32(operation, a1, b1) << 32 | combine_binary32(operation, a0, b0);
    switch (operation) {
    case WEIR_VECTOR_SUM | WEIR_VECTOR_U64:
    case WEIR_VECTOR_SUM | WEIR_VECTOR_I64:
        return a + b;
    case WEIR_VECTOR_PROD | WEIR_VECTOR_U64:
    case WEIR_VECTOR_PROD | WEIR_VECTOR_I64:
        return a * b;
    case WEIR_VECTOR_MIN | WEIR_VECTOR_U64:
        return b < a ? b : a;
    case WEIR_VECTOR_MIN | WEIR_VECTOR_I64:
        return (__s64)b < (__s64)a ? b : a;
    case WEIR_VECTOR_MAX | WEIR_VECTOR_U64:
        return b > a ? b : a;
    case WEIR_VECTOR_MAX | WEIR_VECTOR_I64:
        return (__s64)b > (__s64)a ? b : a;
    case WEIR_VECTOR_SUM | WEIR_VECTOR_U32:
    case WEIR_VECTOR_SUM | WEIR_VECTOR_I32:
        a0 += b0;
        a1 += b1;
        break;
    case WEIR_VECTOR_PROD | WEIR_VECTOR_U32:
    case WEIR_VECTOR_PROD | WEIR_VECTOR_I32:
        a0 *= b0;
        a1 *= b1;
        break;
    case WEIR_VECTOR_MIN | WEIR_VECTOR_U32:
        a0 = b0 < a0 ? b0 : a0;
        a1 = b1 < a1 ? b1 : a1;
        break;
    case WEIR_VECTOR_MIN | WEIR_VECTOR_I32:
        a0 = (__s32)b0 < (__s32)a0 ? b0 : a0;
        a1 = (__s32)b1 < (__s32)a1 ? b1 : a1;
        break;
    case WEIR_VECTOR_MAX | WEIR_VECTOR_U32:
        a0 = b0 > a0 ? b0 : a0;
        a1 = b1 > a1 ? b1 : a1;
        break;
    case WEIR_VECTOR_MAX | WEIR_VECTOR_I32:
        a0 = (__s32)b0 > (__s32)a0 ? b0 : a0;
        a1 = (__s32)b1 > (__s32)a1 ? b1 : a1;
        break;
    default:
        return (operation & WEIR_VECTOR_OPERATION) == WEIR_VECTOR_AND ? a & b : a | b;
    }
    return (__u64)a1 << 32 | a0;
}

/* Combines the words of one vector with those of another one. */
SEPARATE int combine_vector(struct vector *into, const struct vector *with, __u32 operation, __u32 words)
{
    if (!into || !with)
        return 0;
    for (__u32 at = 0; at < WEIR_MAX_VECTOR_WORDS && at < words; at++)
        into->words[at] = combine_words(operation, into->words[at], with->words[at]);
    return 0;
}

/* Copies a vector. */
SEPARATE int copy_vector(struct vector *into, const struct vector *from, __u32 words)
{
    if (!into || !from)
        return 0;
    for (__u32 at = 0; at < WEIR_MAX_VECTOR_WORDS && at < words; at++)
        into->words[at] = from->words[at];
    return 0;
}
