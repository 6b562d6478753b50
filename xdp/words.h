/* The words of a domain, and their changes for others, each of which happens once. */
#pragma once
#include "frame.h"

struct asker_key {
    __u64 domain, asker;
};

struct answer {
    __u64 number, result;
};

struct asker {
    struct bpf_spin_lock lock;
    __u32 unused;
    struct answer answers[WEIR_UNANSWERED];
};

struct word_array {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_TYPE(key, __u32);
    MAP_TYPE(value, __u64);
    MAP_UINT(max_entries, WEIR_WORDS + WEIR_SLOT_WORDS * WEIR_REPLY_SLOTS);
    MAP_UINT(map_flags, BPF_F_MMAPABLE);
};

struct {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    MAP_UINT(key_size, 4);
    MAP_UINT(value_size, 4);
    MAP_UINT(max_entries, WEIR_MAX_DOMAINS);
    struct word_array *values[];
} words SECTION(".maps");

struct {
    MAP_UINT(type, BPF_MAP_TYPE_HASH);
    MAP_TYPE(key, struct asker_key);
    MAP_TYPE(value, struct asker);
    MAP_UINT(max_entries, WEIR_MAX_ASKERS);
} askers SECTION(".maps");

INLINE __u64 *word_in(__u32 slot, __u64 place)
{
    __u32 index = place;
    void *array;

    if (place >= WEIR_WORDS)
        return 0;
    array = bpf_map_lookup_elem(&words, &slot);
    return array ? bpf_map_lookup_elem(array, &index) : 0;
}

INLINE __u64 *word_at(const struct domain *domain, __u64 place)
{
    return word_in(domain->slot, place);
}

INLINE struct asker *asker_of(const struct weir_packet *packet)
{
    struct asker_key key = {.domain = packet->domain, .asker = packet->asker};
    struct asker *asker = bpf_map_lookup_elem(&askers, &key);
    struct asker blank = {};

    if (asker)
        return asker;
    bpf_map_update_elem(&askers, &key, &blank, BPF_NOEXIST);
    return bpf_map_lookup_elem(&askers, &key);
}

INLINE struct outcome word(const struct domain *domain, const struct frame *frame)
{
    struct weir_packet *packet = frame->packet;
    __u64 number = packet->number, operand = packet->operand, compare = packet->compare, result = 0;
    __u8 operation = packet->operation;
    __u64 *word = word_at(domain, packet->place);
    struct answer *kept;
    struct asker *asker;
    int seen;

    if (!word)
        return answered(WEIR_COUNT_REFUSED, WEIR_NO_SUCH_WORD, WEIR_WORDS);
    if (operation > WEIR_XOR)
        return answered(WEIR_COUNT_REFUSED, WEIR_NO_SUCH_OPERATION, 0);
    if (operation == WEIR_READ)
        return answered(WEIR_COUNT_REQUESTS, WEIR_DONE, *(volatile __u64 *)word);
    asker = asker_of(packet);
    if (!asker)
        return answered(WEIR_COUNT_REFUSED, WEIR_TABLE_FULL, WEIR_MAX_ASKERS);
    bpf_spin_lock(&asker->lock);
    kept = &asker->answers[number & (WEIR_UNANSWERED - 1)];
    seen = kept->number == number ? 1 : kept->number > number ? 2 : 0;
    if (seen == 0) {
        if (operation == WEIR_ADD) {
            result = __sync_fetch_and_add(word, operand);
        } else if (operation == WEIR_SWAP) {
            result = __sync_lock_test_and_set(word, operand);
        } else if (operation == WEIR_COMPARE_SWAP) {
            result = __sync_val_compare_and_swap(word, compare, operand);
        } else if (operation == WEIR_AND) {
            result = __sync_fetch_and_and(word, operand);
        } else if (operation == WEIR_OR) {
            result = __sync_fetch_and_or(word, operand);
        } else {
            result = __sync_fetch_and_xor(word, operand);
        }
        kept->number = number;
        kept->result = result;
    } else if (seen == 1) {
        result = kept->result;
    }
    bpf_spin_unlock(&asker->lock);
    if (seen == 2)
        return dropped(WEIR_COUNT_OLD);
    return answered(seen ? WEIR_COUNT_DUPLICATES : WEIR_COUNT_REQUESTS, WEIR_DONE, result);
}
