/* Multi-send: one frame of a process becomes a copy for each of many hosts, whose programs write it to memory and acknowledge it.
 *
 *   process -> another host -> (sent back) program of its own host -> a copy for each receiver (devmap with copies of one interface)
 *   copy    -> program of the receiver's host: written to a buffer that is free -> acknowledgement
 *   acknowledgement -> program of the sender's host: a bit in a word, which the process looks at
 *
 * Receivers have told the sender's host where they are, as members of a barrier do. User space sends again until all bits are
 * set. A message that is written already is acknowledged again. */
#pragma once
#include "barrier.h"
#include "frame.h"
#include "words.h"

/* Copies the words of a frame to the words of a domain. */
static __attribute__((noinline)) int put_words(struct xdp_md *context, void *array, __u32 place, __u32 words)
{
    for (__u32 at = 0; at < WEIR_MAX_VECTOR_WORDS; at++) {
        __u64 *from = at < words ? word_in_frame(context, at) : 0, *into;
        __u32 index = place + at;

        if (!from)
            break;
        into = bpf_map_lookup_elem(array, &index);
        if (into)
            *into = *from;
    }
    return 0;
}

/* Where a receiver is. */
INLINE struct outcome subscribe(const struct frame *frame)
{
    __u32 member = frame->packet->operand;

    if (member >= WEIR_MAX_MEMBERS)
        return dropped(WEIR_COUNT_MALFORMED);
    if (remember_member(frame, member))
        return answered(WEIR_COUNT_REFUSED, WEIR_TABLE_FULL, WEIR_MAX_MEMBER_ENTRIES);
    return answered(WEIR_COUNT_REQUESTS, WEIR_DONE, 0);
}

/* The frame of the sender, which another host has sent back. Upper half of its operand: whom it is for. */
INLINE int send_copies(const struct frame *frame)
{
    __u32 size = frame->packet->operand;

    if (size == 0 || size > WEIR_MAX_MEMBERS || !(frame->packet->kind & WEIR_RELAYED))
        return drop(WEIR_COUNT_MALFORMED);
    return begin_release(frame, size);
}

/* A copy that is for us. */
INLINE struct outcome take_copy(struct xdp_md *context, const struct domain *domain, const struct frame *frame)
{
    struct weir_packet *packet = frame->packet;
    __u32 number = packet->compare, words_in_it = frame->words, slot = domain->slot, place = packet->place, index;
    __u64 *header, *taken, *length, state;
    void *array = bpf_map_lookup_elem(&words, &slot);

    if (!array || packet->place > WEIR_WORDS - WEIR_INBOX_WORDS || words_in_it > WEIR_MAX_VECTOR_WORDS)
        return dropped(WEIR_COUNT_MALFORMED);
    index = place;
    taken = bpf_map_lookup_elem(array, &index);
    place += 1 + (number & 1) * WEIR_BUFFER_WORDS;
    index = place;
    header = bpf_map_lookup_elem(array, &index);
    index = place + 1;
    length = bpf_map_lookup_elem(array, &index);
    if (!taken || !header || !length)
        return dropped(WEIR_COUNT_MALFORMED);
    state = *(volatile __u64 *)header;
    if ((__s32)((__u32)(state >> 2) - number) >= 0)
        return (state & 3) == WEIR_SLOT_WRITTEN ? answered(WEIR_COUNT_DUPLICATES, WEIR_DONE, 0)
                                                : dropped(WEIR_COUNT_OLD);
    /* Both buffers are full: the process has to take one first, and the sender sends again. */
    if ((__s32)(number - (__u32)*(volatile __u64 *)taken) > 2)
        return dropped(WEIR_COUNT_REFUSED);
    if (__sync_val_compare_and_swap(header, state, (__u64)number << 2 | WEIR_SLOT_CLAIMED) != state)
        return dropped(WEIR_COUNT_OLD);
    *length = words_in_it;
    put_words(context, array, place + 2, words_in_it);
    __sync_lock_test_and_set(header, (__u64)number << 2 | WEIR_SLOT_WRITTEN);
    return answered(WEIR_COUNT_REQUESTS, WEIR_DONE, 0);
}

/* Turns a copy into its acknowledgement, which is for the program of the sender's host and has no vector. The rest of the frame
 * is padding. */
INLINE void acknowledge(struct frame *frame)
{
    swap_hosts(frame);
    frame->packet->kind = WEIR_KIND_ACKNOWLEDGE;
    frame->words = 0;
    frame->ip->tot_len = __builtin_bswap16(sizeof(struct iphdr) + sizeof(struct udphdr) + sizeof(struct weir_packet));
    frame->udp->len = __builtin_bswap16(sizeof(struct udphdr) + sizeof(struct weir_packet));
}

/* An acknowledgement: a bit in the lower half of a word, if the upper one is the number of the message. */
INLINE int take_acknowledgement(const struct domain *domain, const struct frame *frame)
{
    struct weir_packet *packet = frame->packet;
    __u64 *word = word_at(domain, packet->place), bit = 1ULL << (packet->operand & 31);

    if (!word)
        return drop(WEIR_COUNT_MALFORMED);
    for (int attempt = 0; attempt < 16; attempt++) {
        __u64 state = *(volatile __u64 *)word;

        if ((__u32)(state >> 32) != (__u32)packet->compare)
            return drop(WEIR_COUNT_OLD);
        if (__sync_val_compare_and_swap(word, state, state | bit) == state)
            return drop(WEIR_COUNT_ACKNOWLEDGED);
    }
    return XDP_DROP; /* the message is sent again */
}
