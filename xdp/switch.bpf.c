/* Kernel programs of pretended hosts, for tests and benchmarks: what a switch and a network card do outside of a host. */
#include "bpf.h"
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

/* The ports, by the last byte of the address of the host there. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_DEVMAP);
    MAP_UINT(key_size, 4);
    MAP_UINT(value_size, 8);
    MAP_UINT(max_entries, 64);
} ports SECTION(".maps");

/* A host leaves the checksum of UDP to its card, and a virtual interface to whoever wants it. A frame between programs has
 * lost that mark, so the receiver would drop it. 0: it has no checksum. */
INLINE void remove_checksum(void *data, void *end)
{
    struct ethhdr *ethernet = data;
    struct iphdr *ip = (void *)(ethernet + 1);
    struct udphdr *udp = (void *)(ip + 1);

    if ((void *)(udp + 1) > end || ethernet->h_proto != __builtin_bswap16(ETH_P_IP))
        return;
    if (ip->ihl == 5 && ip->protocol == IPPROTO_UDP && !(ip->frag_off & __builtin_bswap16(0x1fff)))
        udp->check = 0;
}

/* Ports for copies of frames to all. What their programs cost is the least that a program for the same operation costs. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_DEVMAP);
    MAP_UINT(key_size, 4);
    MAP_UINT(value_size, 8);
    MAP_UINT(max_entries, 64);
} copies SECTION(".maps");

enum { ARRIVED, AWAITED };

/* Frames of barriers that have arrived, and how many one has. 0: nothing is copied. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
    MAP_UINT(key_size, 4);
    MAP_UINT(value_size, 8);
    MAP_UINT(max_entries, 2);
} arrivals SECTION(".maps");

/* UDP ports: a host's program sends the frame back to where it comes from, or lets it pass, or drops it. */
enum { BACK_PORT = 7003, PASS_PORT = 7004, DROP_PORT = 7005 };
/* The last byte of the address of a frame for all hosts, and 10.98.0.255, which its copies have. */
enum { ALL = 0xff };
#define BROADCAST __builtin_bswap32(0x0a6200ff)

/* The UDP header of a frame, behind headers without options. 0: it is no such frame. */
INLINE struct udphdr *udp_of(void *data, void *end)
{
    struct ethhdr *ethernet = data;
    struct iphdr *ip = (void *)(ethernet + 1);
    struct udphdr *udp = (void *)(ip + 1);

    if ((void *)(udp + 1) > end || ethernet->h_proto != __builtin_bswap16(ETH_P_IP))
        return 0;
    return ip->ihl == 5 && ip->protocol == IPPROTO_UDP ? udp : 0;
}

/* A frame to all hosts, addressed to 10.98.0.254, which is nobody's. Of those of a barrier the last one becomes a copy for each
 * host, and the others are dropped. A message becomes a copy for each host but its own. */
INLINE int copy_to_all(void *data, void *end)
{
    struct ethhdr *ethernet = data;
    struct iphdr *ip = (void *)(ethernet + 1);
    struct udphdr *udp = udp_of(data, end);
    __u32 at = ARRIVED, other = AWAITED;
    __u64 *arrived = bpf_map_lookup_elem(&arrivals, &at), *awaited = bpf_map_lookup_elem(&arrivals, &other);

    if (!udp || !arrived || !awaited || !*awaited)
        return XDP_PASS;
    udp->check = 0;
    if (udp->dest == __builtin_bswap16(BACK_PORT))
        return bpf_redirect_map(&copies, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS);
    if (udp->dest != __builtin_bswap16(PASS_PORT))
        return XDP_PASS;
    if ((__sync_fetch_and_add(arrived, 1) + 1) % *awaited)
        return XDP_DROP;
    /* Each host takes a copy, also the one that has sent it: so nobody is the sender. */
    __u32 sum = (__u16)~ip->check;
    sum += (__u16)~(ip->saddr & 0xffff) + (__u16)~(ip->saddr >> 16);
    sum += (BROADCAST & 0xffff) + (BROADCAST >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    ip->check = (__u16)~sum;
    ip->saddr = ip->daddr;
    ip->daddr = BROADCAST;
    for (int byte = 0; byte < ETH_ALEN; byte++)
        ethernet->h_dest[byte] = 0xff;
    return bpf_redirect_map(&copies, 0, BPF_F_BROADCAST);
}

/* Sends frames for hosts with addresses 02:77:65:69:72:N to port N. All others pass, to a bridge. */
SECTION("xdp.frags")
int weir_switch(struct xdp_md *context)
{
    void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
    const __u8 *to = data;

    if (data + ETH_HLEN > end)
        return XDP_PASS;
    if (to[0] != 2 || to[1] != 'w' || to[2] != 'e' || to[3] != 'i' || to[4] != 'r')
        return XDP_PASS;
    if (to[5] == ALL)
        return copy_to_all(data, end);
    remove_checksum(data, end);
    return bpf_redirect_map(&ports, to[5], XDP_PASS);
}

/* For the other end of a virtual pair (veth): it takes frames of XDP only while it has a program itself. */
SECTION("xdp.frags")
int weir_pass(struct xdp_md *context)
{
    (void)context;
    return XDP_PASS;
}

/* For hosts of a network that shows what a request, a copy or an answer costs at least. */
SECTION("xdp.frags")
int weir_end(struct xdp_md *context)
{
    void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
    struct ethhdr *ethernet = data;
    struct iphdr *ip = (void *)(ethernet + 1);
    struct udphdr *udp = udp_of(data, end);

    if (!udp)
        return XDP_PASS;
    if (udp->dest == __builtin_bswap16(DROP_PORT))
        return XDP_DROP;
    if (udp->dest != __builtin_bswap16(BACK_PORT))
        return XDP_PASS;
    __u16 port = udp->dest;
    __u32 address = ip->daddr;
    udp->dest = udp->source;
    udp->source = port;
    ip->daddr = ip->saddr;
    ip->saddr = address;
    for (int at = 0; at < ETH_ALEN; at++) {
        __u8 byte = ethernet->h_dest[at];
        ethernet->h_dest[at] = ethernet->h_source[at];
        ethernet->h_source[at] = byte;
    }
    return XDP_TX;
}

/* No helper that these programs call asks for another one. */
char terms[] SECTION("license") = "MIT";
