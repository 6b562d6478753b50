/* Kernel programs of `weir nic attach`: remote words, barriers, all-reduces and multi-sends, where frames arrive (XDP).
 *
 *   request  -> authenticated -> new: performed, answer kept   -> answer from the same interface (XDP_TX)
 *                             -> seen before: kept answer      -> the same
 *   arrival  -> authenticated -> not the last: recorded, dropped
 *                             -> the last: one copy for each member (devmap with copies of one interface)
 *
 *   reply    -> its process looks at memory: written there, dropped; else it passes, to a socket
 *
 * Whatever is not for or from our port passes. User space keeps timers and sends again; every step here may happen twice.
 */
#include "all_reduce.h"
#include "barrier.h"
#include "frame.h"
#include "multi_send.h"
#include "reply.h"
#include "words.h"

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
    if (frame.is_reply)
        return domain ? deliver(context, domain, &frame) : XDP_PASS;
    if (!domain)
        return drop(WEIR_COUNT_STRANGERS);
    if (frame.packet->tag != tag_of(context, domain, &frame))
        return drop(WEIR_COUNT_FORGED);
    if (frame.packet->kind & WEIR_RELAY) {
        relay(&frame);
    } else {
        __u8 kind = frame.packet->kind & WEIR_KIND_MASK;

        if (kind == WEIR_KIND_REDUCE)
            outcome = reduce(context, domain, &frame);
        else if (kind == WEIR_KIND_COPIES)
            return send_copies(&frame);
        else if (kind == WEIR_KIND_COPY)
            outcome = take_copy(context, domain, &frame);
        else if (frame.words)
            return drop(WEIR_COUNT_MALFORMED);
        else if (kind == WEIR_KIND_WORD && frame.packet->number)
            outcome = word(domain, &frame);
        else if (kind == WEIR_KIND_ARRIVE)
            outcome = arrive(domain, &frame);
        else if (kind == WEIR_KIND_SUBSCRIBE)
            outcome = subscribe(&frame);
        else if (kind == WEIR_KIND_ACKNOWLEDGE)
            return take_acknowledgement(domain, &frame);
        else
            return drop(WEIR_COUNT_MALFORMED);
        if (outcome.action != XDP_TX)
            return outcome.action;
        if (kind == WEIR_KIND_COPY)
            acknowledge(&frame);
        else
            answer(&frame, outcome.status, outcome.result);
    }
    seal(context, domain, &frame);
    return XDP_TX;
}

/* Addresses one copy of a release, or of a multi-send. Copies of one frame leave one after the other on one processor. */
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
    if ((frame.packet->kind & WEIR_KIND_MASK) == WEIR_KIND_COPIES) {
        if (!(frame.packet->operand >> 32 >> (key.member & 31) & 1))
            return XDP_DROP;
        frame.packet->kind = WEIR_KIND_COPY;
        frame.packet->operand = key.member;
        frame.udp->source = frame.udp->dest;
        seal(context, domain, &frame);
        return XDP_PASS;
    }
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
    seal(context, domain, &frame);
    return XDP_PASS;
}

/* No helper that these programs call asks for another one. */
char terms[] SECTION("license") = "MIT";
