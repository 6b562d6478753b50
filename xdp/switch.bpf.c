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

/* No helper that these programs call asks for another one. */
char terms[] SECTION("license") = "MIT";
