/* Kernel programs of pretended hosts, for tests and benchmarks: what a switch and a network card do outside of a host. */
#include "bpf.h"
#include <linux/if_ether.h>

/* The ports, by the last byte of the address of the host there. */
struct {
    MAP_UINT(type, BPF_MAP_TYPE_DEVMAP);
    MAP_UINT(key_size, 4);
    MAP_UINT(value_size, 8);
    MAP_UINT(max_entries, 64);
} ports SECTION(".maps");

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
