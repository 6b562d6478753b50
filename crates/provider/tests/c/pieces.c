/* Compares what weir allocates for an answer with what the core allocates. Argument: the core's file. Exit status: the
 * number of pieces that are too small, or 99. */
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

int main(int count, char **arguments) {
    void *core = count == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!core)
        return 99;
    int (*get)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **) =
        dlsym(core, "fi_getinfo");
    struct fi_info *(*duplicate)(const struct fi_info *) = dlsym(core, "fi_dupinfo");
    struct fi_info *hints = duplicate(NULL), *empty = duplicate(NULL), *info = NULL;
    hints->fabric_attr->prov_name = strdup("weir");
    int error = get(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info);
    if (error) {
        printf("fi_getinfo: %d\n", error);
        return 99;
    }
    return too_small("fi_info", info, empty) + too_small("tx_attr", info->tx_attr, empty->tx_attr) +
           too_small("rx_attr", info->rx_attr, empty->rx_attr) +
           too_small("ep_attr", info->ep_attr, empty->ep_attr) +
           too_small("domain_attr", info->domain_attr, empty->domain_attr) +
           too_small("fabric_attr", info->fabric_attr, empty->fabric_attr);
}
