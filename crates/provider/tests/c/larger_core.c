/* A core of libfabric with the structures of its main branch of August 2026, which no release has yet. It declares what
 * that version adds to fi_ep_attr and fi_domain_attr (fi_endpoint(3), fi_domain(3)), and allocates and copies by the
 * sizes of the result, as its fi_dupinfo does. It loads the plug-in that WEIR_PLUG_IN names. Like every core, it skips a
 * provider that reports an older version than the program asks for. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/providers/fi_prov.h>

/* What 1.17 has, whatever headers are installed. */
enum {
    EP_BYTES_OF_1_17 = offsetof(struct fi_ep_attr, auth_key) + sizeof(uint8_t *),
    DOMAIN_BYTES_OF_1_17 = offsetof(struct fi_domain_attr, tclass) + sizeof(uint64_t),
};

struct ep_attr_of_main {
    char before[EP_BYTES_OF_1_17];
    void *xpu_ctx;
};

struct domain_attr_of_main {
    char before[DOMAIN_BYTES_OF_1_17];
    size_t max_ep_auth_key;      /* since 1.20 */
    uint32_t max_group_id;       /* since 2.0 */
    uint64_t max_cntr_value;     /* since 2.5 */
    uint64_t max_err_cntr_value; /* since 2.5 */
    size_t max_xpu_ctx_cnt;
};

_Static_assert(sizeof(struct ep_attr_of_main) == 104 && offsetof(struct ep_attr_of_main, xpu_ctx) == 96, "");
_Static_assert(sizeof(struct domain_attr_of_main) == 232, "");
_Static_assert(offsetof(struct domain_attr_of_main, max_ep_auth_key) == 192, "");
_Static_assert(offsetof(struct domain_attr_of_main, max_xpu_ctx_cnt) == 224, "");

uint32_t fi_version(void) {
    return FI_VERSION(2, 7);
}

/* A copy of `bytes` at `original`, or as many zeros. */
static void *copy(const void *original, size_t bytes) {
    void *place = calloc(1, bytes);
    return original ? memcpy(place, original, bytes) : place;
}

static char *copy_text(const char *text) {
    return text ? strdup(text) : NULL;
}

static void *copy_bytes(const void *original, size_t bytes) {
    return original ? copy(original, bytes) : NULL;
}

struct fi_info *fi_dupinfo(const struct fi_info *original) {
    static const struct fi_info empty;
    const struct fi_info *from = original ? original : &empty;
    struct fi_info *info = copy(original, sizeof *info);
    info->next = NULL;
    info->src_addr = copy_bytes(from->src_addr, from->src_addrlen);
    info->dest_addr = copy_bytes(from->dest_addr, from->dest_addrlen);
    info->tx_attr = copy(from->tx_attr, sizeof *info->tx_attr);
    info->rx_attr = copy(from->rx_attr, sizeof *info->rx_attr);
    info->ep_attr = copy(from->ep_attr, sizeof(struct ep_attr_of_main));
    info->ep_attr->auth_key = copy_bytes(info->ep_attr->auth_key, info->ep_attr->auth_key_size);
    info->domain_attr = copy(from->domain_attr, sizeof(struct domain_attr_of_main));
    info->domain_attr->name = copy_text(info->domain_attr->name);
    info->domain_attr->auth_key = copy_bytes(info->domain_attr->auth_key, info->domain_attr->auth_key_size);
    info->fabric_attr = copy(from->fabric_attr, sizeof *info->fabric_attr);
    info->fabric_attr->name = copy_text(info->fabric_attr->name);
    info->fabric_attr->prov_name = copy_text(info->fabric_attr->prov_name);
    info->nic = NULL;
    return info;
}

/* The number of members since 1.17 that have another value than weir's: no additional keys, groups and XPU contexts, and
 * counters without a limit. */
int unexpected_members(const struct fi_info *info) {
    const struct ep_attr_of_main *ep = (const void *)info->ep_attr;
    const struct domain_attr_of_main *domain = (const void *)info->domain_attr;
    return (ep->xpu_ctx != NULL) + (domain->max_xpu_ctx_cnt != 0) + (domain->max_ep_auth_key != 0) +
           (domain->max_group_id != 0) + (domain->max_cntr_value != UINT64_MAX) +
           (domain->max_err_cntr_value != UINT64_MAX);
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
               const struct fi_info *hints, struct fi_info **info) {
    void *plug_in = dlopen(getenv("WEIR_PLUG_IN"), RTLD_NOW);
    struct fi_provider *(*initialise)(void) = plug_in ? dlsym(plug_in, "fi_prov_ini") : NULL;
    if (!initialise)
        return -FI_ENOSYS;
    struct fi_provider *volatile provider = initialise();
    if (FI_VERSION_LT(provider->fi_version, version))
        return -FI_ENODATA;
    return provider->getinfo(version, node, service, flags, hints, info);
}
