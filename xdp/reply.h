/* Replies to processes of this host that look at memory: written to their reply slots. So they need no system call, and the
 * frame does not go up to a socket. All other replies pass. */
#pragma once
#include "frame.h"
#include "words.h"

/* A word of the reply slot of an asker. */
INLINE __u64 *slot_word(void *array, __u64 asker, __u32 which)
{
    __u32 index = WEIR_WORDS + WEIR_SLOT_WORDS * (__u32)(asker & (WEIR_REPLY_SLOTS - 1)) + which;

    return bpf_map_lookup_elem(array, &index);
}

INLINE int deliver(struct xdp_md *context, const struct domain *domain, const struct frame *frame)
{
    struct weir_packet *packet = frame->packet;
    __u64 asker = packet->asker, waiting = packet->number << 2 | WEIR_SLOT_WAITING;
    __u32 number = domain->slot;
    __u64 *name, *state, *result, *status;
    void *array = bpf_map_lookup_elem(&words, &number);
    struct siphash hash;

    if (!array || packet->kind != WEIR_KIND_REPLY || frame->words)
        return XDP_PASS;
    name = slot_word(array, asker, WEIR_SLOT_ASKER);
    state = slot_word(array, asker, WEIR_SLOT_STATE);
    result = slot_word(array, asker, WEIR_SLOT_RESULT);
    status = slot_word(array, asker, WEIR_SLOT_STATUS);
    if (!name || !state || !result || !status)
        return XDP_PASS;
    /* First what costs nothing: most replies to others end here. */
    if (*(volatile __u64 *)name != asker || *(volatile __u64 *)state != waiting)
        return XDP_PASS;
    if (packet->tag != tag_of(context, &hash, domain, frame, way_between(frame->ip->saddr, frame->ip->daddr)))
        return XDP_PASS;
    /* Whoever has claimed the slot writes it alone; the process leaves it only before that. */
    if (__sync_val_compare_and_swap(state, waiting, waiting ^ WEIR_SLOT_WAITING ^ WEIR_SLOT_CLAIMED) != waiting)
        return XDP_PASS;
    *result = packet->operand;
    *status = packet->status;
    __sync_lock_test_and_set(state, waiting ^ WEIR_SLOT_WAITING ^ WEIR_SLOT_WRITTEN);
    return drop(WEIR_COUNT_DELIVERED);
}
