/* Barriers: members that arrive are counted in a word, and the last one's frame becomes a copy for each of them. */
#pragma once
#include "frame.h"
#include "words.h"

struct member_key {
    __u64 domain;
    __u32 place, member;
};

/* Where the release of a barrier goes: the return path of the last arrival of this member. Or where a receiver of a multi-send
 * is: then the number is that of its last message with a step, and the asker is the tag of its acknowledgement. */
struct member {
    __u64 asker, number;
    __u32 address;
    __be16 port;
    __u8 ethernet[ETH_ALEN];
    /* WEIR_RELAYED, or RECEIVER and the slot of the domain. */
    __u32 path;
};
#define RECEIVER 0x100

/* Bound, a power of two: frames of one interface that wait for their way out (16: DEV_MAP_BULK_SIZE of the kernel's devmap.c), and the
 * one that makes them leave. */
#define WAITING_COPIES 32

struct copies {
    __u64 next_batch, batch, index;
    /* Of multi-sends, by the number of the batch: the hash of what all copies have in common. */
    struct siphash common[WAITING_COPIES];
};

struct {
    MAP_UINT(type, BPF_MAP_TYPE_HASH);
    MAP_TYPE(key, struct member_key);
    MAP_TYPE(value, struct member);
    MAP_UINT(max_entries, WEIR_MAX_MEMBER_ENTRIES);
} members SECTION(".maps");

struct {
    MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    MAP_TYPE(key, __u32);
    MAP_TYPE(value, struct copies);
    MAP_UINT(max_entries, 1);
} copying SECTION(".maps");

/* A broadcast goes to all entries of a map, so there is one for some numbers of copies, and others are rounded up: powers of two
 * for barriers, and one less for multi-sends, whose frame one of the receivers has already. */
#define COPIES_MAP(count)                      \
    struct {                                   \
        MAP_UINT(type, BPF_MAP_TYPE_DEVMAP);   \
        MAP_UINT(key_size, 4);                 \
        MAP_UINT(value_size, 8);               \
        MAP_UINT(max_entries, count);          \
    } copies_##count SECTION(".maps")
COPIES_MAP(1);
COPIES_MAP(2);
COPIES_MAP(3);
COPIES_MAP(4);
COPIES_MAP(7);
COPIES_MAP(8);
COPIES_MAP(15);
COPIES_MAP(16);
COPIES_MAP(31);
COPIES_MAP(32);

/* Keeps the return path of a member. `receiver`: 0, or the path of a receiver. Returns an error of the kernel, if the table is
 * full. */
INLINE long remember_member(const struct frame *frame, __u32 member, __u32 receiver)
{
    const struct weir_packet *packet = frame->packet;
    struct member_key key = {.domain = packet->domain, .place = packet->place, .member = member};
    struct member path = {}, *known;

    if (receiver) {
        known = bpf_map_lookup_elem(&members, &key);
        /* A recorded packet must not change what is expected of it, or where its copies go. */
        if (known && known->path == receiver && known->address == frame->ip->saddr)
            return 0;
        path.path = receiver;
    } else {
        path.asker = packet->asker;
        path.number = packet->number;
        path.path = packet->kind & WEIR_RELAYED;
    }
    path.address = frame->ip->saddr;
    path.port = frame->udp->source;
    __builtin_memcpy(path.ethernet, frame->ethernet->h_source, ETH_ALEN);
    return bpf_map_update_elem(&members, &key, &path, BPF_ANY);
}

/* The frame becomes `size` copies, which `weir_release` addresses. */
INLINE int copy_frame(const struct frame *frame, struct copies *copies, __u32 size)
{
    struct weir_packet *packet = frame->packet;

    count(WEIR_COUNT_RELEASES);
    packet->number = ++copies->next_batch;
    /* The upper half of the operand is the caller's. */
    packet->operand = (packet->operand >> 32) << 32 | size;
    if (size <= 1)
        return bpf_redirect_map(&copies_1, 0, BPF_F_BROADCAST);
    if (size <= 2)
        return bpf_redirect_map(&copies_2, 0, BPF_F_BROADCAST);
    if (size <= 3)
        return bpf_redirect_map(&copies_3, 0, BPF_F_BROADCAST);
    if (size <= 4)
        return bpf_redirect_map(&copies_4, 0, BPF_F_BROADCAST);
    if (size <= 7)
        return bpf_redirect_map(&copies_7, 0, BPF_F_BROADCAST);
    if (size <= 8)
        return bpf_redirect_map(&copies_8, 0, BPF_F_BROADCAST);
    if (size <= 15)
        return bpf_redirect_map(&copies_15, 0, BPF_F_BROADCAST);
    if (size <= 16)
        return bpf_redirect_map(&copies_16, 0, BPF_F_BROADCAST);
    if (size <= 31)
        return bpf_redirect_map(&copies_31, 0, BPF_F_BROADCAST);
    return bpf_redirect_map(&copies_32, 0, BPF_F_BROADCAST);
}

/* The last member has arrived: the frame becomes one copy for each member. */
INLINE int begin_release(const struct frame *frame, __u32 size)
{
    __u32 zero = 0;
    struct copies *copies = bpf_map_lookup_elem(&copying, &zero);

    return copies ? copy_frame(frame, copies, size) : XDP_ABORTED;
}

/* A member arrives at a barrier. Its word: the round in the upper half, a bit for each member in the lower one. */
INLINE struct outcome arrive(const struct domain *domain, const struct frame *frame)
{
    struct weir_packet *packet = frame->packet;
    __u32 member = packet->operand, size = packet->operand >> 32, round = packet->compare;
    __u64 *word = word_at(domain, packet->place);
    __u32 all, bit;

    if (!word)
        return answered(WEIR_COUNT_REFUSED, WEIR_NO_SUCH_WORD, WEIR_WORDS);
    if (size == 0 || size > WEIR_MAX_MEMBERS || member >= size)
        return dropped(WEIR_COUNT_MALFORMED);
    if ((__s32)(round - (__u32)(*(volatile __u64 *)word >> 32)) < 0)
        return answered(WEIR_COUNT_DUPLICATES, WEIR_DONE, 0);
    /* Before the bit is set: whoever comes last needs it. */
    if (remember_member(frame, member, 0))
        return answered(WEIR_COUNT_REFUSED, WEIR_TABLE_FULL, WEIR_MAX_MEMBER_ENTRIES);
    all = size == 32 ? ~0U : (1U << (size & 31)) - 1;
    bit = 1U << (member & 31);
    for (int attempt = 0; attempt < 16; attempt++) {
        __u64 state = *(volatile __u64 *)word, next = state | bit;

        if ((__u32)(state >> 32) != round)
            return dropped(WEIR_COUNT_MALFORMED);
        if (state & bit)
            return answered(WEIR_COUNT_DUPLICATES, WEIR_MEMBERS_MISSING, (__u32)state);
        if ((__u32)next == all)
            next = (__u64)(__u32)(round + 1) << 32;
        if (__sync_val_compare_and_swap(word, state, next) != state)
            continue;
        count(WEIR_COUNT_REQUESTS);
        return (struct outcome){.action = (__u32)next ? XDP_DROP : begin_release(frame, size)};
    }
    return (struct outcome){.action = XDP_DROP}; /* it is sent again */
}
