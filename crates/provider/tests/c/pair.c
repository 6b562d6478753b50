/* Two endpoints of weir in one process send messages of many lengths to each other, and write and read memory of each other.
 * Arguments: the core's file, and any word if the program is to end without closing them. Exit status: 0, 1 if a message is
 * wrong, 2 if an endpoint cannot be enabled, 99. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

enum { ENDS = 2, MESSAGES = 300, MOST_BYTES = 300000, WINDOW = 16 };

#define CHECK(call)                                                   \
    do {                                                              \
        long status_ = (call);                                        \
        if (status_) {                                               \
            printf("line %d: %s: %ld\n", __LINE__, #call, status_);    \
            exit(99);                                                 \
        }                                                             \
    } while (0)

struct end {
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    fi_addr_t peer;
    unsigned char *out[WINDOW], *in[WINDOW];
    struct fi_context contexts[2][WINDOW];
    int under_way[WINDOW], expected[WINDOW], sent, posted, received, sends_done;
};

static size_t bytes_of(int message) {
    static const size_t sizes[] = {0, 1, 8, 100, 1500, 9000, 20000, 70000, MOST_BYTES};
    return sizes[message % 9] - (message % 9 > 2 ? message % 7 : 0);
}

static unsigned char byte_of(int end, int message, size_t at) {
    return (unsigned char)(end * 91 + message * 31 + at * 7 + at / 251);
}

/* Returns -1 if the message is right. */
static int wrong_byte(const unsigned char *bytes, int end, int message) {
    for (size_t at = 0; at < bytes_of(message); at++)
        if (bytes[at] != byte_of(end, message, at))
            return (int)at;
    return -1;
}

/* Posts the receive of the next message. */
static void receive(struct end *end, int slot) {
    end->expected[slot] = end->posted++;
    CHECK(fi_trecv(end->ep, end->in[slot], MOST_BYTES, NULL, FI_ADDR_UNSPEC, 1, 0, &end->contexts[1][slot]));
}

static void work(struct end *ends, int number) {
    struct end *end = &ends[number];
    for (int slot = 0; slot < WINDOW && end->sent < MESSAGES; slot++) {
        if (end->under_way[slot])
            continue;
        for (size_t at = 0; at < bytes_of(end->sent); at++)
            end->out[slot][at] = byte_of(number, end->sent, at);
        ssize_t result = fi_tsend(end->ep, end->out[slot], bytes_of(end->sent), NULL, end->peer, 1, &end->contexts[0][slot]);
        if (result == -FI_EAGAIN)
            break;
        CHECK(result);
        end->under_way[slot] = 1;
        end->sent++;
    }
    struct fi_cq_tagged_entry entry;
    ssize_t count = fi_cq_read(end->cq, &entry, 1);
    if (count == -FI_EAGAIN)
        return;
    if (count != 1) {
        struct fi_cq_err_entry error = {0};
        fi_cq_readerr(end->cq, &error, 0);
        printf("end %d: error %d after %d sent, %d received\n", number, error.err, end->sent, end->received);
        exit(1);
    }
    if (entry.flags & FI_SEND) {
        end->under_way[(struct fi_context *)entry.op_context - end->contexts[0]] = 0;
        end->sends_done++;
        return;
    }
    int slot = (int)((struct fi_context *)entry.op_context - end->contexts[1]), message = end->expected[slot];
    if (entry.len != bytes_of(message) || wrong_byte(end->in[slot], 1 - number, message) >= 0) {
        printf("end %d: message %d of %zu bytes is wrong\n", number, message, entry.len);
        exit(1);
    }
    end->received++;
    receive(end, slot);
}

/* Waits until both ends have done what they began. */
static void wait_for_both(struct end *ends) {
    for (int done = 0; done < ENDS;)
        for (int number = 0; number < ENDS; number++) {
            struct fi_cq_tagged_entry entry;
            ssize_t read = fi_cq_read(ends[number].cq, &entry, 1);
            if (read == -FI_EAGAIN)
                continue;
            if (read != 1 || !(entry.flags & (FI_READ | FI_WRITE))) {
                printf("end %d: a remote access fails\n", number);
                exit(1);
            }
            done++;
        }
}

/* Each end writes to the memory of the other one, and reads it back. */
static void access_memory(struct end *ends, struct fid_domain *domain, struct fi_info *info) {
    static unsigned char regions[ENDS][MOST_BYTES], from[ENDS][MOST_BYTES], into[ENDS][MOST_BYTES];
    struct fid_mr *registered[ENDS];
    struct fi_context contexts[ENDS];
    uint64_t places[ENDS];
    for (int number = 0; number < ENDS; number++) {
        CHECK(fi_mr_reg(domain, regions[number], MOST_BYTES, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 70 + number, 0,
                        &registered[number], NULL));
        if (info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
            CHECK(fi_mr_bind(registered[number], &ends[number].ep->fid, 0));
            CHECK(fi_mr_enable(registered[number]));
        }
        places[number] = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)regions[number] : 0;
        for (size_t at = 0; at < MOST_BYTES; at++)
            from[number][at] = byte_of(number, 5, at);
    }
    for (int number = 0; number < ENDS; number++)
        CHECK(fi_write(ends[number].ep, from[number], MOST_BYTES, NULL, ends[number].peer, places[1 - number],
                       fi_mr_key(registered[1 - number]), &contexts[number]));
    wait_for_both(ends);
    for (int number = 0; number < ENDS; number++)
        if (memcmp(regions[1 - number], from[number], MOST_BYTES)) {
            printf("what end %d has written is wrong\n", number);
            exit(1);
        }
    for (int number = 0; number < ENDS; number++)
        CHECK(fi_read(ends[number].ep, into[number], MOST_BYTES, NULL, ends[number].peer, places[1 - number],
                      fi_mr_key(registered[1 - number]), &contexts[number]));
    wait_for_both(ends);
    for (int number = 0; number < ENDS; number++) {
        if (memcmp(into[number], from[number], MOST_BYTES)) {
            printf("what end %d has read is wrong\n", number);
            exit(1);
        }
        CHECK(fi_close(&registered[number]->fid));
    }
}

int main(int count, char **arguments) {
    void *core = count >= 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!core)
        return 99;
    int (*get)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **) =
        dlsym(core, "fi_getinfo");
    struct fi_info *(*duplicate)(const struct fi_info *) = dlsym(core, "fi_dupinfo");
    int (*open)(struct fi_fabric_attr *, struct fid_fabric **, void *) = dlsym(core, "fi_fabric");
    struct fi_info *hints = duplicate(NULL), *info = NULL;
    hints->fabric_attr->prov_name = strdup("weir");
    hints->caps = FI_TAGGED | FI_SOURCE | FI_RMA;
    hints->mode = FI_CONTEXT;
    hints->domain_attr->mr_mode = FI_MR_ENDPOINT | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    CHECK(get(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    CHECK(open(info->fabric_attr, &fabric, NULL));
    CHECK(fi_domain(fabric, info, &domain, NULL));
    struct end ends[ENDS] = {0};
    char names[ENDS][64];
    for (int number = 0; number < ENDS; number++) {
        struct end *end = &ends[number];
        struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE};
        struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = ENDS};
        CHECK(fi_endpoint(domain, info, &end->ep, NULL));
        CHECK(fi_cq_open(domain, &cq_attr, &end->cq, NULL));
        CHECK(fi_av_open(domain, &av_attr, &end->av, NULL));
        CHECK(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV));
        CHECK(fi_ep_bind(end->ep, &end->av->fid, 0));
        if (fi_enable(end->ep))
            return 2;
        size_t bytes = sizeof names[number];
        CHECK(fi_getname(&end->ep->fid, names[number], &bytes));
        for (int slot = 0; slot < WINDOW; slot++) {
            end->out[slot] = malloc(MOST_BYTES);
            end->in[slot] = malloc(MOST_BYTES);
            receive(end, slot);
        }
    }
    for (int number = 0; number < ENDS; number++)
        if (fi_av_insert(ends[number].av, names[1 - number], 1, &ends[number].peer, 0, NULL) != 1)
            return 99;
    time_t begun = time(NULL);
    while (ends[0].received < MESSAGES || ends[1].received < MESSAGES || ends[0].sends_done < MESSAGES ||
           ends[1].sends_done < MESSAGES) {
        work(ends, 0);
        work(ends, 1);
        if (time(NULL) > begun + 50) {
            printf("received %d and %d messages of %d\n", ends[0].received, ends[1].received, MESSAGES);
            return 1;
        }
    }
    access_memory(ends, domain, info);
    if (count > 2)
        return 0;
    for (int number = 0; number < ENDS; number++) {
        CHECK(fi_close(&ends[number].ep->fid));
        CHECK(fi_close(&ends[number].cq->fid));
        CHECK(fi_close(&ends[number].av->fid));
    }
    CHECK(fi_close(&domain->fid));
    CHECK(fi_close(&fabric->fid));
    return 0;
}
