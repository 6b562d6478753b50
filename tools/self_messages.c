/* Sends messages from a libfabric endpoint to itself, for tools/budget.py: each message is received, sent and read once,
 * so that every run executes the same instructions. Usage: self_messages MESSAGES BYTES */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The longest message that is injected. Unit: bytes. */
#define MOST_BYTES 4096
#define TAG 7

#define CHECK(call)                                                                       \
    do {                                                                                  \
        long result = (long)(call);                                                       \
        if (result < 0) {                                                                 \
            fprintf(stderr, "%s: %s\n", #call, fi_strerror((int)-result));                \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

int main(int argc, char **argv) {
    long messages = argc == 3 ? atol(argv[1]) : 0, bytes = argc == 3 ? atol(argv[2]) : -1;
    if (messages < 1 || bytes < 0 || bytes > MOST_BYTES) {
        fprintf(stderr, "usage: self_messages MESSAGES BYTES (1 or more, 0 to %d)\n", MOST_BYTES);
        return 2;
    }
    struct fi_info *hints = fi_allocinfo(), *info;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_TAGGED;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->fabric_attr->prov_name = strdup("weir");
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *vector;
    struct fid_cq *queue;
    struct fid_ep *endpoint;
    struct fi_av_attr vector_attr = {.type = FI_AV_TABLE};
    struct fi_cq_attr queue_attr = {.format = FI_CQ_FORMAT_TAGGED};
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
    CHECK(fi_domain(fabric, info, &domain, NULL));
    CHECK(fi_av_open(domain, &vector_attr, &vector, NULL));
    CHECK(fi_cq_open(domain, &queue_attr, &queue, NULL));
    CHECK(fi_endpoint(domain, info, &endpoint, NULL));
    CHECK(fi_ep_bind(endpoint, &vector->fid, 0));
    CHECK(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV));
    CHECK(fi_enable(endpoint));
    char address[64];
    size_t address_bytes = sizeof address;
    fi_addr_t self;
    CHECK(fi_getname(&endpoint->fid, address, &address_bytes));
    CHECK(fi_av_insert(vector, address, 1, &self, 0, NULL));

    static char from[MOST_BYTES], into[MOST_BYTES];
    static struct fi_context2 context;
    for (long message = 0; message < messages; message++) {
        struct fi_cq_tagged_entry entry;
        ssize_t read;
        CHECK(fi_trecv(endpoint, into, (size_t)bytes, NULL, self, TAG, 0, &context));
        CHECK(fi_tinjectdata(endpoint, from, (size_t)bytes, 3, self, TAG));
        while ((read = fi_cq_read(queue, &entry, 1)) == -FI_EAGAIN) {
        }
        CHECK(read);
    }
    CHECK(fi_close(&endpoint->fid));
    return 0;
}
