/* Compares what weir allocates for an answer with what the core allocates, and the answer with the copy that the core
 * makes of it. Asks for the core's own version, as MPICH does. Argument: the core's file. Exit status: the number of
 * differences, or 99. */
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

static int too_small(const char *piece, void *ours, void *cores) {
    size_t have = malloc_usable_size(ours), need = malloc_usable_size(cores);
    if (have < need)
        printf("%s has %zu bytes, the core needs %zu\n", piece, have, need);
    return have < need;
}

static int differ(const char *piece, const void *ours, const void *copy, size_t bytes) {
    int different = memcmp(ours, copy, bytes) != 0;
    if (different)
        printf("the copy of %s differs\n", piece);
    return different;
}

int main(int count, char **arguments) {
    void *core = count == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!core)
        return 99;
    int (*get)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **) =
        dlsym(core, "fi_getinfo");
    struct fi_info *(*duplicate)(const struct fi_info *) = dlsym(core, "fi_dupinfo");
    uint32_t (*version)(void) = dlsym(core, "fi_version");
    /* The core with main's structures has it. */
    int (*unexpected_members)(const struct fi_info *) = dlsym(core, "unexpected_members");
    struct fi_info *hints = duplicate(NULL), *empty = duplicate(NULL), *info = NULL;
    hints->fabric_attr->prov_name = strdup("weir");
    int error = get(version(), NULL, NULL, 0, hints, &info);
    if (error) {
        printf("fi_getinfo: %d\n", error);
        return 99;
    }
    int wrong = too_small("fi_info", info, empty) + too_small("tx_attr", info->tx_attr, empty->tx_attr) +
                too_small("rx_attr", info->rx_attr, empty->rx_attr) +
                too_small("ep_attr", info->ep_attr, empty->ep_attr) +
                too_small("domain_attr", info->domain_attr, empty->domain_attr) +
                too_small("fabric_attr", info->fabric_attr, empty->fabric_attr);
    struct fi_info *copy = duplicate(info);
    wrong += differ("tx_attr", info->tx_attr, copy->tx_attr, sizeof *copy->tx_attr) +
             differ("rx_attr", info->rx_attr, copy->rx_attr, sizeof *copy->rx_attr) +
             differ("src_addr", info->src_addr, copy->src_addr, info->src_addrlen);
    if (info->ep_attr->max_msg_size != copy->ep_attr->max_msg_size ||
        info->domain_attr->mr_cnt != copy->domain_attr->mr_cnt ||
        strcmp(info->domain_attr->name, copy->domain_attr->name) != 0)
        wrong += printf("the copy of ep_attr or domain_attr differs\n") > 0;
    for (int which = 0; unexpected_members && which < 2; which++) {
        int unexpected = unexpected_members(which ? copy : info);
        if (unexpected)
            printf("%d unexpected members in the %s\n", unexpected, which ? "copy" : "answer");
        wrong += unexpected;
    }
    return wrong;
}
