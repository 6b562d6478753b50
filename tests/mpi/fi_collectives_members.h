/* The members of a group as endpoints of libfabric, for fi_collectives.c: some in this process, the others in its relatives. */

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#define CHECK(call)                                                                       \
    do {                                                                                  \
        long checked = (long)(call);                                                      \
        if (checked < 0)                                                                  \
            die(__LINE__, #call, fi_strerror((int)-checked));                             \
    } while (0)
#define EXPECT(call, expected)                                                            \
    do {                                                                                  \
        long found = (long)(call);                                                        \
        if (found != (expected)) {                                                        \
            fprintf(stderr, "%ld instead of %ld\n", found, (long)(expected));             \
            die(__LINE__, #call, "another result");                                       \
        }                                                                                 \
    } while (0)

enum { MOST = 16, NAME_BYTES = 64 };

struct member {
    int rank;
    struct fid_ep *endpoint;
    struct fid_cq *queue;
    struct fid_eq *events;
    struct fid_av *vector;
    struct fid_domain *domain;
    struct fid_av_set *set;
    struct fid_mc *group;
    fi_addr_t address;
    char *data, *result;
    int completions;
};

/* What the processes share. */
static struct {
    char names[MOST][NAME_BYTES];
    atomic_int arrived;
    atomic_int killed;
} *shared;

static int members, locals, processes, progress_kind = FI_PROGRESS_MANUAL;
static struct member local[MOST];
static void die(int line, const char *what, const char *why) {
    fprintf(stderr, "member %d, line %d: %s: %s\n", local[0].rank, line, what, why);
    exit(1);
}

static void poll_all(void) {
    for (int i = 0; i < locals; i++) {
        struct fi_cq_tagged_entry entry;
        long count = fi_cq_read(local[i].queue, &entry, 1);
        if (count == 1) {
            if (entry.flags != FI_COLLECTIVE || entry.op_context != &local[i])
                die(__LINE__, "entry", "other flags or context");
            local[i].completions++;
        } else if (count != -FI_EAGAIN) {
            struct fi_cq_err_entry error = {0};
            CHECK(fi_cq_readerr(local[i].queue, &error, 0));
            die(__LINE__, "an operation failed", fi_strerror(error.err));
        }
    }
}

/* All processes meet, outside of libfabric. */
static void meet(void) {
    static int meetings;
    meetings++;
    atomic_fetch_add(&shared->arrived, 1);
    while (atomic_load(&shared->arrived) < meetings * processes)
        poll_all();
}

static void open_member(struct member *member, int rank) {
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fid_fabric *fabric;
    struct fi_av_attr vector_attr = {.type = FI_AV_TABLE, .count = members};
    struct fi_cq_attr queue_attr = {.format = FI_CQ_FORMAT_TAGGED};
    struct fi_eq_attr events_attr = {.wait_obj = FI_WAIT_UNSPEC};
    size_t bytes = NAME_BYTES;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_COLLECTIVE;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->data_progress = progress_kind;
    hints->fabric_attr->prov_name = strdup("weir");
    CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    if (!(info->caps & info->tx_attr->caps & info->rx_attr->caps & FI_COLLECTIVE))
        die(__LINE__, "fi_getinfo", "no FI_COLLECTIVE");
    member->rank = rank;
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
    CHECK(fi_domain(fabric, info, &member->domain, NULL));
    CHECK(fi_av_open(member->domain, &vector_attr, &member->vector, NULL));
    CHECK(fi_cq_open(member->domain, &queue_attr, &member->queue, NULL));
    CHECK(fi_eq_open(fabric, &events_attr, &member->events, NULL));
    CHECK(fi_endpoint(member->domain, info, &member->endpoint, NULL));
    CHECK(fi_ep_bind(member->endpoint, &member->vector->fid, 0));
    CHECK(fi_ep_bind(member->endpoint, &member->queue->fid, FI_TRANSMIT | FI_RECV));
    CHECK(fi_ep_bind(member->endpoint, &member->events->fid, 0));
    CHECK(fi_enable(member->endpoint));
    CHECK(fi_getname(&member->endpoint->fid, shared->names[rank], &bytes));
    fi_freeinfo(hints);
    fi_freeinfo(info);
}
