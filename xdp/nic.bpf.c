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
    int found = parse(context, &frame), is_back, taken;
    struct outcome outcome;
    struct domain *domain;
    struct siphash hash;
    __u64 tag;
    __u8 kind;

    if (UNLIKELY(found != XDP_TX))
        return found;
    kind = frame.packet->kind;
    if (kind == WEIR_KIND_ACKNOWLEDGE && !frame.is_reply)
        return take_acknowledgement(&frame);
    domain = domain_of(frame.packet->domain);
    if (frame.is_reply)
        return domain ? deliver(context, domain, &frame) : XDP_PASS;
    if (UNLIKELY(!domain))
        return drop(WEIR_COUNT_STRANGERS);
    /* A message that comes back is authenticated as its sender has sent it. */
    is_back = kind == (WEIR_KIND_COPIES | WEIR_RELAYED);
    if (is_back)
        frame.packet->kind = WEIR_KIND_COPIES | WEIR_RELAY;
    tag = tag_of(context, &hash, domain, &frame,
                 is_back ? way_between(frame.ip->daddr, frame.ip->saddr) : way_between(frame.ip->saddr, frame.ip->daddr));
    taken = is_back && frame.packet->tag == hash_second(&hash);
    if (UNLIKELY(frame.packet->tag != tag && !taken))
        return drop(WEIR_COUNT_FORGED);
    if (is_back)
        return send_copies(context, domain, &frame, taken);
    if (kind == (WEIR_KIND_COPIES | WEIR_RELAY) || kind == WEIR_KIND_COPY) {
        outcome = take_copy(context, domain, &frame);
        if (kind != WEIR_KIND_COPY)
            send_back(&frame, &hash, outcome.action == XDP_TX);
        else if (outcome.action == XDP_TX)
            acknowledge(&frame, &hash);
        else
            return outcome.action;
        return XDP_TX;
    }
    if (kind & WEIR_RELAY) {
        relay(&frame);
    } else {
        kind &= WEIR_KIND_MASK;
        if (kind == WEIR_KIND_REDUCE)
            outcome = reduce(context, domain, &frame);
        else if (frame.words)
            return drop(WEIR_COUNT_MALFORMED);
        else if (kind == WEIR_KIND_WORD && frame.packet->number)
            outcome = word(domain, &frame);
        else if (kind == WEIR_KIND_ARRIVE)
            outcome = arrive(domain, &frame);
        else if (kind == WEIR_KIND_SUBSCRIBE)
            outcome = subscribe(domain, &frame);
        else
            return drop(WEIR_COUNT_MALFORMED);
        if (outcome.action != XDP_TX)
            return outcome.action;
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
    int is_copy;

    copies = bpf_map_lookup_elem(&copying, &zero);
    if (parse(context, &frame) != XDP_TX || !copies)
        return XDP_DROP;
    if (copies->batch != frame.packet->number) {
        copies->batch = frame.packet->number;
        copies->index = 0;
    }
    is_copy = frame.packet->kind == WEIR_KIND_COPY;
    key.member = is_copy ? next_receiver(copies, &frame) : copies->index++;
    if (key.member >= (is_copy ? WEIR_MAX_MEMBERS : (__u32)frame.packet->operand))
        return XDP_DROP;
    key.domain = frame.packet->domain;
    key.place = frame.packet->place;
    member = bpf_map_lookup_elem(&members, &key);
    if (!member)
        return XDP_DROP;
    __builtin_memcpy(frame.ethernet->h_source, frame.ethernet->h_dest, ETH_ALEN);
    __builtin_memcpy(frame.ethernet->h_dest, member->ethernet, ETH_ALEN);
    frame.ip->saddr = frame.ip->daddr;
    frame.ip->daddr = member->address;
    if (is_copy)
        return finish_copy(&frame, copies, member, key.member);
    domain = domain_of(frame.packet->domain);
    if (!domain)
        return XDP_DROP;
    frame.packet->asker = member->asker;
    frame.packet->number = member->number;
    frame.packet->status = WEIR_DONE;
    if (member->path == WEIR_RELAYED) {
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
