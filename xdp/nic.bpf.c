/* Kernel programs of `weir nic attach`: remote words and barriers, answered where frames arrive (XDP).
 *
 *   request  -> authenticated -> new: performed, answer kept   -> answer from the same interface (XDP_TX)
 *                             -> seen before: kept answer      -> the same
 *   arrival  -> authenticated -> not the last: recorded, dropped
 *                             -> the last: one copy for each member (devmap with copies of one interface)
 *
 * Whatever is not for our port passes. User space keeps timers and sends again; every step here may happen twice.
 */
#include "bpf.h"
#include "format.h"
#include "siphash.h"
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

/* The loader sets both. Unit of the address: as in the IP header. */
const volatile __u32 weir_address = 0;
const volatile __u16 weir_port = WEIR_PORT;

/* The part of a job on this interface. */
struct domain {
    __u64 k0, k1;
    __u32 slot;
    __u32 unused;
};

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

struct member_key {
    __u64 domain;
    __u32 place, member;
};

/* Where the release of a barrier goes: the return path of the last arrival of this member. */
struct member {
    __u64 asker, number;
    __u32 address;
    __be16 port;
    __u8 ethernet[ETH_ALEN];
    __u32 relayed;
};

struct copies {
    __u64 next_batch, batch, index;
};

struct {
    MAP_UINT(type, BPF_MAP_TYPE_HASH);
    MAP_TYPE(key, __u64);
    MAP_TYPE(value, struct domain);
    MAP_UINT(max_entries, WEIR_MAX_DOMAINS);
} domains SECTION(".maps");

struct word_array {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_TYPE(key, __u32);
    MAP_TYPE(value, __u64);
    MAP_UINT(max_entries, WEIR_WORDS);
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

struct {
    MAP_UINT(type, BPF_MAP_TYPE_HASH);
    MAP_TYPE(key, struct member_key);
    MAP_TYPE(value, struct member);
    MAP_UINT(max_entries, WEIR_MAX_MEMBER_ENTRIES);
} members SECTION(".maps");

struct {
    MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    MAP_TYPE(key, __u32);
    MAP_TYPE(value, __u64);
    MAP_UINT(max_entries, WEIR_COUNTERS);
} counters SECTION(".maps");

struct {
    MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    MAP_TYPE(key, __u32);
    MAP_TYPE(value, struct copies);
    MAP_UINT(max_entries, 1);
} copying SECTION(".maps");

/* A broadcast goes to all entries of a map, so there is one for each number of copies (rounded up to a power of two). */
#define COPIES_MAP(count)                      \
    struct {                                   \
        MAP_UINT(type, BPF_MAP_TYPE_DEVMAP);   \
        MAP_UINT(key_size, 4);                 \
        MAP_UINT(value_size, 8);               \
        MAP_UINT(max_entries, count);          \
    } copies_##count SECTION(".maps")
COPIES_MAP(2);
COPIES_MAP(4);
COPIES_MAP(8);
COPIES_MAP(16);
COPIES_MAP(32);

/* What happens to a frame. XDP_TX: it becomes the answer with this status and result. */
struct outcome {
    int action;
    __u8 status;
    __u64 result;
};

struct frame {
    struct ethhdr *ethernet;
    struct iphdr *ip;
    struct udphdr *udp;
    struct weir_packet *packet;
};

INLINE void count(__u32 which)
{
    __u64 *counter = bpf_map_lookup_elem(&counters, &which);
    if (counter)
        *counter += 1;
}

INLINE int drop(__u32 which)
{
    count(which);
    return XDP_DROP;
}

INLINE struct outcome dropped(__u32 which)
{
    return (struct outcome){.action = drop(which)};
}

INLINE struct outcome answered(__u32 which, __u8 status, __u64 result)
{
    count(which);
    return (struct outcome){.action = XDP_TX, .status = status, .result = result};
}

/* Finds our packet in a frame. Returns XDP_TX if there is one, else what happens to the frame. */
INLINE int parse(struct xdp_md *context, struct frame *frame)
{
    void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;

    frame->ethernet = data;
    frame->ip = (void *)(frame->ethernet + 1);
    frame->udp = (void *)(frame->ip + 1);
    frame->packet = (void *)(frame->udp + 1);
    if ((void *)frame->packet > end || frame->ethernet->h_proto != __builtin_bswap16(ETH_P_IP))
        return XDP_PASS;
    if (frame->ip->ihl != 5 || frame->ip->version != 4 || frame->ip->protocol != IPPROTO_UDP)
        return XDP_PASS;
    if (frame->ip->frag_off & __builtin_bswap16(0x3fff))
        return XDP_PASS;
    if (frame->udp->dest != __builtin_bswap16(weir_port) || frame->ip->daddr != weir_address)
        return XDP_PASS;
    if (frame->udp->len != __builtin_bswap16(sizeof(struct udphdr) + sizeof(struct weir_packet)))
        return drop(WEIR_COUNT_MALFORMED);
    if ((void *)(frame->packet + 1) > end || frame->packet->magic != WEIR_MAGIC)
        return drop(WEIR_COUNT_MALFORMED);
    if (frame->packet->version != WEIR_VERSION)
        return drop(WEIR_COUNT_OTHER_VERSION);
    return XDP_TX;
}

/* The tag of a packet on its way between two addresses. */
INLINE __u64 tag_of(const struct domain *domain, const struct frame *frame)
{
    const __u64 *word = (const __u64 *)frame->packet;
    struct siphash hash;

    siphash_begin(&hash, domain->k0, domain->k1);
    siphash_word(&hash, (__u64)frame->ip->saddr << 32 | frame->ip->daddr);
    siphash_word(&hash, word[0]);
    siphash_word(&hash, word[1]);
    siphash_word(&hash, word[2]);
    siphash_word(&hash, word[3]);
    siphash_word(&hash, word[4]);
    siphash_word(&hash, word[5]);
    siphash_word(&hash, word[6]);
    return siphash_end(&hash, 64);
}

/* New time to live, checksum of the IP header, no checksum of UDP, and the tag. */
INLINE void seal(const struct domain *domain, const struct frame *frame)
{
    const __u16 *half = (const __u16 *)frame->ip;
    __u32 sum = 0;

    frame->ip->ttl = 64;
    frame->ip->check = 0;
    for (int at = 0; at < 10; at++)
        sum += half[at];
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    frame->ip->check = ~sum;
    frame->udp->check = 0;
    frame->packet->tag = tag_of(domain, frame);
}

INLINE void swap_hosts(const struct frame *frame)
{
    __u8 ethernet[ETH_ALEN];
    __be32 address = frame->ip->saddr;

    __builtin_memcpy(ethernet, frame->ethernet->h_source, ETH_ALEN);
    __builtin_memcpy(frame->ethernet->h_source, frame->ethernet->h_dest, ETH_ALEN);
    __builtin_memcpy(frame->ethernet->h_dest, ethernet, ETH_ALEN);
    frame->ip->saddr = frame->ip->daddr;
    frame->ip->daddr = address;
}

/* Turns a request into its answer, which leaves by the same interface. */
INLINE void answer(const struct frame *frame, __u8 status, __u64 result)
{
    __be16 port = frame->udp->source;

    swap_hosts(frame);
    if (frame->packet->kind & WEIR_RELAYED) {
        /* The relay sends it to the source port. */
        frame->packet->kind = WEIR_KIND_REPLY | WEIR_RELAY;
    } else {
        frame->packet->kind = WEIR_KIND_REPLY;
        frame->udp->source = frame->udp->dest;
        frame->udp->dest = port;
    }
    frame->packet->status = status;
    frame->packet->operand = result;
}

/* Sends a packet back to the host of its sender: so processes reach the programs of their own host. */
INLINE void relay(const struct frame *frame)
{
    struct weir_packet *packet = frame->packet;

    count(WEIR_COUNT_RELAYED);
    packet->kind = (packet->kind & WEIR_KIND_MASK) | WEIR_RELAYED;
    swap_hosts(frame);
    if (packet->kind == (WEIR_KIND_REPLY | WEIR_RELAYED)) {
        __be16 port = frame->udp->source;
        frame->udp->source = frame->udp->dest;
        frame->udp->dest = port;
    }
}

INLINE __u64 *word_at(const struct domain *domain, __u64 place)
{
    __u32 index = place, slot = domain->slot;
    void *array;

    if (place >= WEIR_WORDS)
        return 0;
    array = bpf_map_lookup_elem(&words, &slot);
    return array ? bpf_map_lookup_elem(array, &index) : 0;
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

/* The last member has arrived: the frame becomes one copy for each member, which `release` addresses. */
INLINE int begin_release(const struct frame *frame, __u32 size)
{
    struct weir_packet *packet = frame->packet;
    __u32 zero = 0;
    struct copies *copies = bpf_map_lookup_elem(&copying, &zero);

    if (!copies)
        return XDP_ABORTED;
    count(WEIR_COUNT_RELEASES);
    packet->number = ++copies->next_batch;
    packet->operand = size;
    if (size <= 2)
        return bpf_redirect_map(&copies_2, 0, BPF_F_BROADCAST);
    if (size <= 4)
        return bpf_redirect_map(&copies_4, 0, BPF_F_BROADCAST);
    if (size <= 8)
        return bpf_redirect_map(&copies_8, 0, BPF_F_BROADCAST);
    if (size <= 16)
        return bpf_redirect_map(&copies_16, 0, BPF_F_BROADCAST);
    return bpf_redirect_map(&copies_32, 0, BPF_F_BROADCAST);
}

/* A member arrives at a barrier. Its word: the round in the upper half, a bit for each member in the lower one. */
INLINE struct outcome arrive(const struct domain *domain, const struct frame *frame)
{
    struct weir_packet *packet = frame->packet;
    __u32 member = packet->operand, size = packet->operand >> 32, round = packet->compare;
    __u64 *word = word_at(domain, packet->place);
    struct member_key key = {.domain = packet->domain, .place = packet->place, .member = member};
    struct member path = {.asker = packet->asker, .number = packet->number};
    __u32 all, bit;

    if (!word)
        return answered(WEIR_COUNT_REFUSED, WEIR_NO_SUCH_WORD, WEIR_WORDS);
    if (size == 0 || size > WEIR_MAX_MEMBERS || member >= size)
        return dropped(WEIR_COUNT_MALFORMED);
    if ((__s32)(round - (__u32)(*(volatile __u64 *)word >> 32)) < 0)
        return answered(WEIR_COUNT_DUPLICATES, WEIR_DONE, 0);
    path.address = frame->ip->saddr;
    path.port = frame->udp->source;
    __builtin_memcpy(path.ethernet, frame->ethernet->h_source, ETH_ALEN);
    path.relayed = packet->kind & WEIR_RELAYED;
    /* Before the bit is set: whoever comes last needs it. */
    if (bpf_map_update_elem(&members, &key, &path, BPF_ANY))
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

SECTION("xdp.frags")
int weir_nic(struct xdp_md *context)
{
    struct frame frame;
    int found = parse(context, &frame);
    struct outcome outcome;
    struct domain *domain;
    __u64 name;

    if (found != XDP_TX)
        return found;
    name = frame.packet->domain;
    domain = bpf_map_lookup_elem(&domains, &name);
    if (!domain)
        return drop(WEIR_COUNT_STRANGERS);
    if (frame.packet->tag != tag_of(domain, &frame))
        return drop(WEIR_COUNT_FORGED);
    if (frame.packet->kind & WEIR_RELAY) {
        relay(&frame);
    } else {
        __u8 kind = frame.packet->kind & WEIR_KIND_MASK;

        if (kind == WEIR_KIND_WORD && frame.packet->number)
            outcome = word(domain, &frame);
        else if (kind == WEIR_KIND_ARRIVE)
            outcome = arrive(domain, &frame);
        else
            return drop(WEIR_COUNT_MALFORMED);
        if (outcome.action != XDP_TX)
            return outcome.action;
        answer(&frame, outcome.status, outcome.result);
    }
    seal(domain, &frame);
    return XDP_TX;
}

/* Addresses one copy of a release. Copies of one frame leave one after the other on one processor. */
SECTION("xdp.frags/devmap")
int weir_release(struct xdp_md *context)
{
    struct frame frame;
    struct member_key key = {};
    struct domain *domain;
    struct copies *copies;
    struct member *member;
    __u32 zero = 0;
    __u64 name;

    copies = bpf_map_lookup_elem(&copying, &zero);
    if (parse(context, &frame) != XDP_TX || !copies)
        return XDP_DROP;
    if (copies->batch != frame.packet->number) {
        copies->batch = frame.packet->number;
        copies->index = 0;
    }
    key.member = copies->index++;
    if (key.member >= (__u32)frame.packet->operand)
        return XDP_DROP;
    name = frame.packet->domain;
    key.domain = name;
    key.place = frame.packet->place;
    domain = bpf_map_lookup_elem(&domains, &name);
    member = bpf_map_lookup_elem(&members, &key);
    if (!domain || !member)
        return XDP_DROP;
    __builtin_memcpy(frame.ethernet->h_source, frame.ethernet->h_dest, ETH_ALEN);
    __builtin_memcpy(frame.ethernet->h_dest, member->ethernet, ETH_ALEN);
    frame.ip->saddr = frame.ip->daddr;
    frame.ip->daddr = member->address;
    frame.packet->asker = member->asker;
    frame.packet->number = member->number;
    frame.packet->status = WEIR_DONE;
    if (member->relayed) {
        frame.packet->kind = WEIR_KIND_REPLY | WEIR_RELAY;
        frame.udp->source = member->port;
    } else {
        frame.packet->kind = WEIR_KIND_REPLY;
        frame.udp->source = frame.udp->dest;
        frame.udp->dest = member->port;
    }
    seal(domain, &frame);
    return XDP_PASS;
}

/* No helper that these programs call asks for another one. */
char terms[] SECTION("license") = "MIT";
