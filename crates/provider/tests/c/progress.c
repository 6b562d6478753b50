/* Two endpoints of weir in one process, each in a domain of its own: counters, remote writes with completion data, descriptors
 * (FI_WAIT_FD), and automatic progress. Arguments: the core's file. Exit status: 0; 1 after a difference, which is printed. */
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

enum { MOST_BYTES = 200000, KEY = 70, PATIENCE_MS = 10000 };

#define CHECK(call)                                                             \
    do {                                                                        \
        long status_ = (call);                                                  \
        if (status_ < 0)                                                        \
            fail(__LINE__, #call, status_);                                     \
    } while (0)
#define EXPECT(found, expected)                                                 \
    do {                                                                        \
        long found_ = (long)(found);                                            \
        if (found_ != (long)(expected))                                         \
            fail(__LINE__, #found " is not " #expected, found_);                \
    } while (0)

struct end {
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_mr *mr;
    struct fid_cntr *sends, *receives, *writes;
    struct fi_context contexts[4];
    unsigned char memory[MOST_BYTES];
    fi_addr_t peer;
    uint64_t offset;
    int descriptor;
};

static struct end ends[2];
static unsigned char from[MOST_BYTES];

static void fail(int line, const char *what, long value) {
    printf("line %d: %s: %ld\n", line, what, value);
    exit(1);
}

static long milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Reads an entry, if there is one. */
static int read_entry(struct end *end, struct fi_cq_tagged_entry *entry) {
    ssize_t count = fi_cq_read(end->cq, entry, 1);
    if (count == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        fi_cq_readerr(end->cq, &error, 0);
        fail(__LINE__, "error in a completion queue", error.err);
    }
    if (count != -FI_EAGAIN)
        EXPECT(count, 1);
    return count == 1;
}

/* Blocks at the descriptor until there is an entry, as fi_poll(3) says. The peer makes no progress here. */
static struct fi_cq_tagged_entry block(struct end *end) {
    struct fi_cq_tagged_entry entry;
    struct fid *objects[] = {&end->cq->fid};
    long until = milliseconds() + PATIENCE_MS;
    while (!read_entry(end, &entry)) {
        int may_block = fi_trywait(end->fabric, objects, 1);
        if (may_block == -FI_EAGAIN)
            continue;
        CHECK(may_block);
        struct pollfd poller = {.fd = end->descriptor, .events = POLLIN};
        poll(&poller, 1, PATIENCE_MS);
        if (milliseconds() > until)
            fail(__LINE__, "no entry, seconds", PATIENCE_MS / 1000);
    }
    return entry;
}

static void open_end(struct end *end, enum fi_progress progress,
                     int (*get)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **),
                     struct fi_info *(*duplicate)(const struct fi_info *),
                     int (*open)(struct fi_fabric_attr *, struct fid_fabric **, void *)) {
    struct fi_info *hints = duplicate(NULL), *info = NULL;
    struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD};
    struct fi_av_attr vector = {.type = FI_AV_TABLE};
    struct fi_cntr_attr counter = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC};
    hints->fabric_attr->prov_name = strdup("weir");
    hints->caps = FI_TAGGED | FI_RMA;
    hints->mode = FI_CONTEXT;
    hints->domain_attr->mr_mode = FI_MR_ENDPOINT | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->data_progress = progress;
    CHECK(get(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    EXPECT(info->domain_attr->data_progress, progress);
    CHECK(open(info->fabric_attr, &end->fabric, NULL));
    CHECK(fi_domain(end->fabric, info, &end->domain, NULL));
    CHECK(fi_endpoint(end->domain, info, &end->ep, NULL));
    CHECK(fi_cq_open(end->domain, &queue, &end->cq, NULL));
    CHECK(fi_av_open(end->domain, &vector, &end->av, NULL));
    CHECK(fi_cntr_open(end->domain, &counter, &end->sends, NULL));
    CHECK(fi_cntr_open(end->domain, &counter, &end->receives, NULL));
    CHECK(fi_cntr_open(end->domain, &counter, &end->writes, NULL));
    CHECK(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV));
    CHECK(fi_ep_bind(end->ep, &end->av->fid, 0));
    CHECK(fi_ep_bind(end->ep, &end->sends->fid, FI_SEND));
    CHECK(fi_ep_bind(end->ep, &end->receives->fid, FI_RECV));
    CHECK(fi_ep_bind(end->ep, &end->writes->fid, FI_WRITE));
    CHECK(fi_enable(end->ep));
    CHECK(fi_mr_reg(end->domain, end->memory, MOST_BYTES, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &end->mr, NULL));
    end->offset = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)end->memory : 0;
    if (info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
        CHECK(fi_mr_bind(end->mr, &end->ep->fid, 0));
        CHECK(fi_mr_enable(end->mr));
    }
    CHECK(fi_control(&end->cq->fid, FI_GETWAIT, &end->descriptor));
}

static void introduce(void) {
    char names[2][64];
    for (int number = 0; number < 2; number++) {
        size_t bytes = sizeof names[number];
        CHECK(fi_getname(&ends[number].ep->fid, names[number], &bytes));
    }
    for (int number = 0; number < 2; number++)
        EXPECT(fi_av_insert(ends[number].av, names[1 - number], 1, &ends[number].peer, 0, NULL), 1);
}

/* Both make progress until the first one has an entry. */
static struct fi_cq_tagged_entry entry_of_first(void) {
    struct fi_cq_tagged_entry entry;
    long until = milliseconds() + PATIENCE_MS;
    while (!read_entry(&ends[0], &entry)) {
        struct fi_cq_tagged_entry none;
        if (read_entry(&ends[1], &none))
            fail(__LINE__, "an entry that nobody expects", (long)none.flags);
        if (milliseconds() > until)
            fail(__LINE__, "no entry, seconds", PATIENCE_MS / 1000);
    }
    return entry;
}

/* A thread of the first end: writes with data after a moment, when the other end sleeps. */
static void *write_later(void *bytes) {
    struct end *end = &ends[0];
    struct fi_cq_tagged_entry entry;
    usleep(30000);
    CHECK(fi_writedata(end->ep, from, (size_t)bytes, NULL, 0xfeed, end->peer, ends[1].offset, fi_mr_key(ends[1].mr),
                       &end->contexts[0]));
    while (!read_entry(end, &entry))
        ;
    EXPECT(entry.flags, FI_RMA | FI_WRITE);
    return NULL;
}

static void *send_later(void *bytes) {
    struct end *end = &ends[0];
    struct fi_cq_tagged_entry entry;
    usleep(30000);
    CHECK(fi_tsend(end->ep, from, (size_t)bytes, NULL, end->peer, 5, &end->contexts[0]));
    while (!read_entry(end, &entry))
        ;
    return NULL;
}

/* The second end sleeps at its descriptor until something comes. It has called nothing before. */
static void sleep_until(void *(*act)(void *), size_t bytes, uint64_t flags) {
    pthread_t thread;
    for (size_t at = 0; at < MOST_BYTES; at++)
        from[at] = (unsigned char)(at * 7 + bytes);
    memset(ends[1].memory, 0, MOST_BYTES);
    EXPECT(pthread_create(&thread, NULL, act, (void *)bytes), 0);
    struct fi_cq_tagged_entry entry = block(&ends[1]);
    EXPECT(entry.flags, flags);
    if (flags & FI_REMOTE_CQ_DATA)
        EXPECT(entry.data, 0xfeed);
    else
        EXPECT(entry.len, bytes);
    EXPECT(memcmp(ends[1].memory, from, bytes), 0);
    /* The last acknowledgement may need the second end, if nobody else makes progress for it. */
    struct fi_cq_tagged_entry none;
    while (pthread_tryjoin_np(thread, NULL) != 0)
        EXPECT(read_entry(&ends[1], &none), 0);
}

/* Nothing comes, so the descriptor stays unreadable. */
static void stay_quiet(struct end *end) {
    struct fid *objects[] = {&end->cq->fid};
    struct fi_cq_tagged_entry entry;
    struct pollfd poller = {.fd = end->descriptor, .events = POLLIN};
    long until = milliseconds() + PATIENCE_MS;
    do { /* late acknowledgements */
        while (fi_trywait(end->fabric, objects, 1) == -FI_EAGAIN)
            EXPECT(read_entry(end, &entry), 0);
    } while (poll(&poller, 1, 50) != 0 && milliseconds() < until);
    EXPECT(poll(&poller, 1, 0), 0);
}

/* Starts a write of the first end. Returns whether it completes within the time while the second end calls nothing. */
static int completes_alone(int patience_ms) {
    struct fi_cq_tagged_entry entry;
    long until = milliseconds() + patience_ms;
    memset(ends[1].memory, 0, MOST_BYTES);
    CHECK(fi_write(ends[0].ep, from, MOST_BYTES, NULL, ends[0].peer, ends[1].offset, fi_mr_key(ends[1].mr),
                   &ends[0].contexts[1]));
    while (!read_entry(&ends[0], &entry))
        if (milliseconds() > until)
            return 0;
    EXPECT(memcmp(ends[1].memory, from, MOST_BYTES), 0);
    return 1;
}

static void close_end(struct end *end) {
    CHECK(fi_close(&end->mr->fid));
    CHECK(fi_close(&end->ep->fid));
    CHECK(fi_close(&end->cq->fid));
    CHECK(fi_close(&end->sends->fid));
    CHECK(fi_close(&end->receives->fid));
    CHECK(fi_close(&end->writes->fid));
    CHECK(fi_close(&end->av->fid));
    CHECK(fi_close(&end->domain->fid));
    CHECK(fi_close(&end->fabric->fid));
}

int main(int count, char **arguments) {
    void *core = count >= 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!core)
        return 99;
    for (int is_automatic = 0; is_automatic < 2; is_automatic++) {
        for (int number = 0; number < 2; number++)
            open_end(&ends[number], number && is_automatic ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL,
                     dlsym(core, "fi_getinfo"), dlsym(core, "fi_dupinfo"), dlsym(core, "fi_fabric"));
        introduce();
        struct end *second = &ends[1];
        /* Before any contact, and after it; in packets of messages, and larger. */
        sleep_until(write_later, 8, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
        sleep_until(write_later, MOST_BYTES, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
        for (size_t bytes = 100; bytes <= MOST_BYTES; bytes += MOST_BYTES - 100) {
            CHECK(fi_trecv(second->ep, second->memory, MOST_BYTES, NULL, FI_ADDR_UNSPEC, 5, 0, &second->contexts[0]));
            sleep_until(send_later, bytes, FI_TAGGED | FI_RECV);
        }
        stay_quiet(second);
        EXPECT(completes_alone(is_automatic ? PATIENCE_MS : 100), is_automatic);
        if (!is_automatic)
            EXPECT(entry_of_first().flags, FI_RMA | FI_WRITE);
        CHECK(fi_cntr_wait(ends[0].writes, 3, PATIENCE_MS));
        CHECK(fi_cntr_wait(ends[0].sends, 2, PATIENCE_MS));
        CHECK(fi_cntr_wait(second->receives, 2, PATIENCE_MS));
        EXPECT(fi_cntr_wait(ends[0].sends, 3, 20), -FI_ETIMEDOUT);
        EXPECT(fi_cntr_read(ends[0].writes), 3);
        EXPECT(fi_cntr_read(second->writes), 0); /* writes of others are not counted */
        EXPECT(fi_cntr_readerr(ends[0].writes), 0);
        close_end(&ends[0]);
        close_end(&ends[1]);
    }
    return 0;
}
