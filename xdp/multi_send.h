/* Multi-send: one frame of a process becomes a copy for each of many hosts, whose programs write it to memory and acknowledge it.
 *
 *   process -> a receiver's host: written to a buffer -> (sent back) program of the process's host: a bit in a word, and
 *              a copy for each other receiver (devmap with copies of one interface)
 *   copy    -> program of the receiver's host: written to a buffer that is free -> acknowledgement
 *   acknowledgement -> program of the sender's host: a bit in a word, which the process looks at
 *
 * The hash of a copy has two words, which only who knows the key can compute. The first one is its tag. The second one is that of
 * its acknowledgement: so the receiver has it already, and the sender keeps it until it comes. Neither hashes a second time.
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
    void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
    __u64 *word = data + VECTOR_OFFSET, *into;

    for (__u32 at = 0; at < WEIR_MAX_VECTOR_WORDS; at++) {
        if (at >= words || (void *)(word + 1) > end)
            break;
        into = bpf_map_lookup_elem(array, &place);
        if (into)
            *into = *word;
        word++;
        place++;
    }
    return 0;
}

/* Where a receiver is. */
INLINE struct outcome subscribe(const struct domain *domain, const struct frame *frame)
{
    __u32 member = frame->packet->operand;

    if (member >= WEIR_MAX_MEMBERS)
        return dropped(WEIR_COUNT_MALFORMED);
    if (remember_member(frame, member, RECEIVER | domain->slot))
        return answered(WEIR_COUNT_REFUSED, WEIR_TABLE_FULL, WEIR_MAX_MEMBER_ENTRIES);
    return answered(WEIR_COUNT_REQUESTS, WEIR_DONE, 0);
}

/* A receiver has a message: a bit in the lower half of a word, if the upper one is the number of the message. */
INLINE int set_bit(__u32 slot, __u64 place, __u32 number, __u32 member)
{
    __u64 *word = word_in(slot, place), bit = 1ULL << (member & 31);

    if (!word)
        return drop(WEIR_COUNT_MALFORMED);
    for (int attempt = 0; attempt < 16; attempt++) {
        __u64 state = *(volatile __u64 *)word;

        if ((__u32)(state >> 32) != number)
            return drop(WEIR_COUNT_OLD);
        if (__sync_val_compare_and_swap(word, state, state | bit) == state)
            return drop(WEIR_COUNT_ACKNOWLEDGED);
    }
    return XDP_DROP; /* the message is sent again */
}

/* The frame of the sender, which the host of a receiver has sent back. Its operand: how many copies (a byte), the receiver that
 * has sent it back (a byte), and in the upper half whom the copies are for. `taken`: that receiver has the message. */
INLINE int send_copies(struct xdp_md *context, const struct domain *domain, const struct frame *frame, int taken)
{
    struct weir_packet *packet = frame->packet;
    __u32 count_of_copies = packet->operand & 0xff, sent_back_by = packet->operand >> 8 & 0xff, zero = 0;
    struct copies *copies = bpf_map_lookup_elem(&copying, &zero);
    struct siphash *common;

    if (!copies)
        return XDP_ABORTED;
    if (count_of_copies > WEIR_MAX_MEMBERS)
        return drop(WEIR_COUNT_MALFORMED);
    if (taken)
        set_bit(domain->slot, packet->place, packet->compare, sent_back_by);
    if (count_of_copies == 0)
        return drop(WEIR_COUNT_RELEASES);
    packet->kind = WEIR_KIND_COPY;
    common = &copies->common[(copies->next_batch + 1) & (WAITING_COPIES - 1)];
    siphash_begin(common, domain->k0, domain->k1);
    hash_common(context, common, frame->words);
    return copy_frame(frame, copies, count_of_copies);
}

/* Keeps the tag of an acknowledgement. Returns 0 if a later message is under way, or somebody else keeps one now. */
INLINE int expect(struct member *member, __u32 number, __u64 tag)
{
    __u64 state = *(volatile __u64 *)&member->number, next = (__u64)number << 2;

    if (state == (next | WEIR_SLOT_WAITING))
        return 1; /* sent again */
    if (state && ((state & 3) == WEIR_SLOT_CLAIMED || (__s32)((__u32)(state >> 2) - number) > 0))
        return 0;
    if (__sync_val_compare_and_swap(&member->number, state, next | WEIR_SLOT_CLAIMED) != state)
        return 0;
    member->asker = tag;
    __sync_lock_test_and_set(&member->number, next | WEIR_SLOT_WAITING);
    return 1;
}

/* The receiver of the next copy. WEIR_MAX_MEMBERS: there is none. */
INLINE __u32 next_receiver(struct copies *copies, const struct frame *frame)
{
    __u32 receivers = frame->packet->operand >> 32, at = copies->index;

    for (int step = 0; step < WEIR_MAX_MEMBERS; step++) {
        if (at >= WEIR_MAX_MEMBERS || receivers >> (at & 31) & 1)
            break;
        at++;
    }
    copies->index = at + 1;
    return at;
}

/* Addresses and authenticates the copy for a receiver. */
INLINE int finish_copy(const struct frame *frame, const struct copies *copies, struct member *member, __u32 number)
{
    struct weir_packet *packet = frame->packet;
    struct siphash hash = copies->common[packet->number & (WAITING_COPIES - 1)];

    if (!(member->path & RECEIVER))
        return XDP_DROP;
    packet->operand = number;
    frame->udp->source = frame->udp->dest;
    renew_headers(frame);
    packet->tag = hash_rest(&hash, number, way_between(frame->ip->saddr, frame->ip->daddr), frame->words);
    return expect(member, packet->compare, hash_second(&hash)) ? XDP_PASS : XDP_DROP;
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

/* Sends the sender's frame back. Its tag says whether this host has the message: it is the second word of the hash then. */
INLINE void send_back(struct frame *frame, struct siphash *hash, int taken)
{
    relay(frame);
    renew_headers(frame);
    if (taken)
        frame->packet->tag = hash_second(hash);
}

/* Turns a copy into its acknowledgement, which is for the program of the sender's host and has no vector. The rest of the frame
 * is padding. `hash`: that of the copy. */
INLINE void acknowledge(struct frame *frame, struct siphash *hash)
{
    swap_hosts(frame);
    frame->packet->kind = WEIR_KIND_ACKNOWLEDGE;
    frame->words = 0;
    frame->ip->tot_len = __builtin_bswap16(sizeof(struct iphdr) + sizeof(struct udphdr) + sizeof(struct weir_packet));
    frame->udp->len = __builtin_bswap16(sizeof(struct udphdr) + sizeof(struct weir_packet));
    renew_headers(frame);
    frame->packet->tag = hash_second(hash);
}

/* An acknowledgement. Only its tag is under the key, so all that it names is compared with what the sender keeps. */
INLINE int take_acknowledgement(const struct frame *frame)
{
    struct weir_packet *packet = frame->packet;
    __u32 number = packet->compare;
    struct member_key key = {.domain = packet->domain, .place = packet->place, .member = packet->operand};
    struct member *member;

    if (frame->words || packet->place >= WEIR_WORDS || packet->operand >= WEIR_MAX_MEMBERS)
        return drop(WEIR_COUNT_MALFORMED);
    member = bpf_map_lookup_elem(&members, &key);
    if (!member || !(member->path & RECEIVER))
        return drop(WEIR_COUNT_STRANGERS);
    if (*(volatile __u64 *)&member->number != ((__u64)number << 2 | WEIR_SLOT_WAITING))
        return drop(WEIR_COUNT_OLD);
    if (packet->tag != *(volatile __u64 *)&member->asker)
        return drop(WEIR_COUNT_FORGED);
    return set_bit(member->path & (RECEIVER - 1), packet->place, number, packet->operand);
}
