/* A core of libfabric whose structures are larger than those that weir knows, as a later version's are. It loads the
 * plug-in that WEIR_PLUG_IN names. */
#include <dlfcn.h>
#include <stdlib.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/providers/fi_prov.h>

enum { MORE_BYTES = 1024 };

struct fi_info *fi_dupinfo(const struct fi_info *original) {
    if (original)
        return NULL; /* the test does not need it */
    struct fi_info *info = calloc(1, sizeof *info + MORE_BYTES);
    info->tx_attr = calloc(1, sizeof *info->tx_attr + MORE_BYTES);
    info->rx_attr = calloc(1, sizeof *info->rx_attr + MORE_BYTES);
    info->ep_attr = calloc(1, sizeof *info->ep_attr + MORE_BYTES);
    info->domain_attr = calloc(1, sizeof *info->domain_attr + MORE_BYTES);
    info->fabric_attr = calloc(1, sizeof *info->fabric_attr + MORE_BYTES);
    return info;
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
               const struct fi_info *hints, struct fi_info **info) {
    void *plug_in = dlopen(getenv("WEIR_PLUG_IN"), RTLD_NOW);
    struct fi_provider *(*initialise)(void) = plug_in ? dlsym(plug_in, "fi_prov_ini") : NULL;
    if (!initialise)
        return -FI_ENOSYS;
    struct fi_provider *volatile provider = initialise();
    return provider->getinfo(version, node, service, flags, hints, info);
}
