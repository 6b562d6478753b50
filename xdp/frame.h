/* Frames with one of our packets: found, authenticated, and sent back to where they came from. */
#pragma once
#include "format.h"
#include "outcome.h"
#include "siphash.h"
#include "vector.h"
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

struct {
    MAP_UINT(type, BPF_MAP_TYPE_HASH);
    MAP_TYPE(key, __u64);
    MAP_TYPE(value, struct domain);
    MAP_UINT(max_entries, WEIR_MAX_DOMAINS);
} domains SECTION(".maps");

/* A domain at the place that the lowest bits of its name say, so that most packets find theirs without a hash. */
struct near_domain {
    __u64 name;
    struct domain domain;
};

struct {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_TYPE(key, __u32);
    MAP_TYPE(value, struct near_domain);
    MAP_UINT(max_entries, WEIR_MAX_DOMAINS);
} near_domains SECTION(".maps");

INLINE struct domain *domain_of(__u64 name)
{
    __u32 place = name & (WEIR_MAX_DOMAINS - 1);
    struct near_domain *near = bpf_map_lookup_elem(&near_domains, &place);

    if (near && near->name == name)
        return &near->domain;
    return bpf_map_lookup_elem(&domains, &name);
}

struct frame {
    struct ethhdr *ethernet;
    struct iphdr *ip;
    struct udphdr *udp;
    struct weir_packet *packet;
    /* Length of the vector behind the packet. Unit: 64-bit words. */
    __u32 words;
    /* It is a reply to a process of this host. */
    int is_reply;
};

/* Finds our packet in a frame. Returns XDP_TX if there is one, else what happens to the frame. */
INLINE int parse(struct xdp_md *context, struct frame *frame)
{
    void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
    __u32 bytes;

    frame->ethernet = data;
    frame->ip = (void *)(frame->ethernet + 1);
    frame->udp = (void *)(frame->ip + 1);
    frame->packet = (void *)(frame->udp + 1);
    if (UNLIKELY((void *)frame->packet > end) || frame->ethernet->h_proto != __builtin_bswap16(ETH_P_IP))
        return XDP_PASS;
    if (frame->ip->ihl != 5 || frame->ip->version != 4 || frame->ip->protocol != IPPROTO_UDP)
        return XDP_PASS;
    if (frame->ip->frag_off & __builtin_bswap16(0x3fff))
        return XDP_PASS;
    if (frame->ip->daddr != weir_address)
        return XDP_PASS;
    frame->is_reply = frame->udp->dest != __builtin_bswap16(weir_port);
    if (frame->is_reply && frame->udp->source != __builtin_bswap16(weir_port))
        return XDP_PASS;
    bytes = __builtin_bswap16(frame->udp->len) - (__u32)(sizeof(struct udphdr) + sizeof(struct weir_packet));
    if (bytes > sizeof(struct vector) || bytes % 8)
        return frame->is_reply ? XDP_PASS : drop(WEIR_COUNT_MALFORMED);
    frame->words = bytes / 8;
    if ((void *)(frame->packet + 1) > end || frame->packet->magic != WEIR_MAGIC)
        return frame->is_reply ? XDP_PASS : drop(WEIR_COUNT_MALFORMED);
    if (frame->packet->version != WEIR_VERSION)
        return frame->is_reply ? XDP_PASS : drop(WEIR_COUNT_OTHER_VERSION);
    return XDP_TX;
}

/* Both addresses, as the tag covers them. */
INLINE __u64 way_between(__u32 from, __u32 to)
{
    return (__u64)from << 32 | to;
}

/* The tag of a packet on its way between two addresses: the first word of its hash, which is ended. */
INLINE __u64 tag_of(struct xdp_md *context, struct siphash *hash, const struct domain *domain, const struct frame *frame,
                    __u64 way)
{
    siphash_begin(hash, domain->k0, domain->k1);
    hash_common(context, hash, frame->words);
    return hash_rest(hash, frame->packet->operand, way, frame->words);
}

/* New time to live, checksum of the IP header, no checksum of UDP. */
INLINE void renew_headers(const struct frame *frame)
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
}

/* New headers, and the tag. */
INLINE void seal(struct xdp_md *context, const struct domain *domain, const struct frame *frame)
{
    struct siphash hash;

    renew_headers(frame);
    frame->packet->tag = tag_of(context, &hash, domain, frame, way_between(frame->ip->saddr, frame->ip->daddr));
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
