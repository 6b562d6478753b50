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
    if ((void *)frame->packet > end || frame->ethernet->h_proto != __builtin_bswap16(ETH_P_IP))
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

/* The tag of a packet on its way between two addresses. */
INLINE __u64 tag_of(struct xdp_md *context, const struct domain *domain, const struct frame *frame)
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
    if (frame->words)
        hash_vector(context, &hash, frame->words);
    return siphash_end(&hash, 64 + frame->words * 8);
}

/* New time to live, checksum of the IP header, no checksum of UDP, and the tag. */
INLINE void seal(struct xdp_md *context, const struct domain *domain, const struct frame *frame)
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
    frame->packet->tag = tag_of(context, domain, frame);
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
