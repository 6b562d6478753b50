/* All-reduces: members arrive as at a barrier, each with a vector. The last one's frame combines all vectors in the order of
 * members, and becomes a copy of the result for each of them.
 *
 * The word of an all-reduce is that of a barrier, with one more step: when all bits are set, the round ends only after the
 * result is kept. Who asks again for a round that has ended gets it. A round is over at all members before the next but one
 * begins, so two places for each vector are enough. */
#pragma once
#include "barrier.h"
#include "vector.h"

/* The place of the result, behind those of members. */
#define RESULT WEIR_MAX_MEMBERS

struct vector_key {
    __u64 domain;
    __u32 place;
    __u16 member, parity;
};

struct vector_entry {
    __u32 round;
    __u16 words;
    __u16 operation;
    struct vector vector;
};

struct {
    MAP_UINT(type, BPF_MAP_TYPE_HASH);
    MAP_TYPE(key, struct vector_key);
    MAP_TYPE(value, struct vector_entry);
    MAP_UINT(max_entries, WEIR_MAX_VECTORS);
} vectors SECTION(".maps");

/* What a new entry is made from: it is too long for the stack. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_TYPE(key, __u32);
    MAP_TYPE(value, struct vector_entry);
    MAP_UINT(max_entries, 1);
} blank SECTION(".maps");

INLINE struct vector_entry *vector_of(const struct vector_key *key)
{
    struct vector_entry *entry = bpf_map_lookup_elem(&vectors, key), *empty;
    __u32 zero = 0;

    if (entry)
        return entry;
    empty = bpf_map_lookup_elem(&blank, &zero);
    if (!empty)
        return 0;
    bpf_map_update_elem(&vectors, key, empty, BPF_NOEXIST);
    return bpf_map_lookup_elem(&vectors, key);
}

INLINE int is_vector_operation(__u8 operation)
{
    __u8 type = operation & WEIR_VECTOR_TYPE, what = operation & WEIR_VECTOR_OPERATION;
    int is_bitwise = what == WEIR_VECTOR_AND || what == WEIR_VECTOR_OR;

    return what <= WEIR_VECTOR_PROD && type <= (is_bitwise ? WEIR_VECTOR_I64 : WEIR_VECTOR_F64);
}

/* All vectors of a round, combined. Returns the result, or null if members differ or a vector is missing. */
INLINE struct vector_entry *combine(const struct weir_packet *packet, __u32 size, __u32 words)
{
    struct vector_key key = {.domain = packet->domain, .place = packet->place, .member = RESULT};
    __u32 round = packet->compare, operation = packet->operation;
    struct vector_entry *result, *entry;

    key.parity = round & 1;
    result = vector_of(&key);
    if (!result)
        return 0;
    for (__u32 member = 0; member < WEIR_MAX_MEMBERS; member++) {
        if (member >= size)
            break;
        key.member = member;
        entry = bpf_map_lookup_elem(&vectors, &key);
        if (!entry || entry->round != round || entry->words != words || entry->operation != operation)
            return 0;
        if (member == 0)
            copy_vector(&result->vector, &entry->vector, words);
        else
            combine_vector(&result->vector, &entry->vector, operation, words);
    }
    result->round = round;
    result->words = words;
    result->operation = operation;
    return result;
}

/* Answers a member of a round that has ended: the copy for it was lost. */
INLINE struct outcome again(struct xdp_md *context, const struct weir_packet *packet, __u32 words)
{
    struct vector_key key = {.domain = packet->domain, .place = packet->place, .member = RESULT};
    struct vector_entry *result;

    key.parity = packet->compare & 1;
    result = bpf_map_lookup_elem(&vectors, &key);
    if (!result || result->round != (__u32)packet->compare || result->words != words)
        return dropped(WEIR_COUNT_OLD);
    put_vector(context, &result->vector, words);
    return answered(WEIR_COUNT_DUPLICATES, WEIR_DONE, 0);
}

INLINE struct outcome reduce(struct xdp_md *context, const struct domain *domain, const struct frame *frame)
{
    struct weir_packet *packet = frame->packet;
    __u32 member = packet->operand, size = packet->operand >> 32, round = packet->compare, words = frame->words;
    struct vector_key key = {.domain = packet->domain, .place = packet->place, .member = member};
    struct vector_entry *entry;
    __u64 *word = word_at(domain, packet->place);
    __u32 all, bit;

    if (!word)
        return answered(WEIR_COUNT_REFUSED, WEIR_NO_SUCH_WORD, WEIR_WORDS);
    if (size == 0 || size > WEIR_MAX_MEMBERS || member >= size || words == 0)
        return dropped(WEIR_COUNT_MALFORMED);
    if (!is_vector_operation(packet->operation))
        return answered(WEIR_COUNT_REFUSED, WEIR_NO_SUCH_OPERATION, 0);
    if ((__s32)(round - (__u32)(*(volatile __u64 *)word >> 32)) < 0)
        return again(context, packet, words);
    key.parity = round & 1;
    entry = vector_of(&key);
    /* Before the bit is set: whoever comes last needs both. */
    if (!entry || remember_member(frame, member, 0))
        return answered(WEIR_COUNT_REFUSED, WEIR_TABLE_FULL, WEIR_MAX_VECTORS);
    all = size == 32 ? ~0U : (1U << (size & 31)) - 1;
    bit = 1U << (member & 31);
    for (int attempt = 0; attempt < 16; attempt++) {
        __u64 state = *(volatile __u64 *)word, next = state | bit;

        if ((__u32)(state >> 32) != round)
            return dropped(WEIR_COUNT_MALFORMED);
        if (state & bit)
            return answered(WEIR_COUNT_DUPLICATES, WEIR_MEMBERS_MISSING, (__u32)state);
        if (attempt == 0) {
            take_vector(context, &entry->vector, words);
            entry->round = round;
            entry->words = words;
            entry->operation = packet->operation;
        }
        if (__sync_val_compare_and_swap(word, state, next) != state)
            continue;
        count(WEIR_COUNT_REQUESTS);
        if ((__u32)next != all)
            return (struct outcome){.action = XDP_DROP};
        entry = combine(packet, size, words);
        if (!entry)
            return answered(WEIR_COUNT_REFUSED, WEIR_MEMBERS_DIFFER, 0);
        put_vector(context, &entry->vector, words);
        __sync_lock_test_and_set(word, (__u64)(__u32)(round + 1) << 32);
        return (struct outcome){.action = begin_release(frame, size)};
    }
    return (struct outcome){.action = XDP_DROP}; /* it is sent again */
}
