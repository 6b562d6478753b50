/* Remote atomics of libfabric between two processes: every operation on every type, against a local computation.
 *
 * usage: atomics [AUTO]
 *
 * The parent changes memory of its child, by calls for one word and for vectors, with and without fetching. The child makes
 * progress, and with AUTO it computes instead: its helper answers. Then both change one word at once, and the sum must be
 * complete. Prints the number of calls that were compared, and how long a fetch takes. Exits with 1 after a difference. */
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(call)                                                                       \
    do {                                                                                  \
        long result = (long)(call);                                                       \
        if (result < 0) {                                                                 \
            fprintf(stderr, "%s: %s\n", #call, fi_strerror((int)-result));                \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

enum { WORDS = 33, KEY = 7, FETCHES = 2000, REGION_BYTES = 8 * (WORDS + 1) };

static struct fid_ep *endpoint;
static struct fid_cq *queue;
static fi_addr_t self, peer;

/* The window of each process: vectors, and behind them the word that both change. */
static union {
    char bytes[REGION_BYTES];
    uint64_t words[WORDS + 1];
} window;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static void complete(void) {
    struct fi_cq_tagged_entry entry;
    for (;;) {
        long count = fi_cq_read(queue, &entry, 1);
        if (count == 1)
            return;
        if (count != -FI_EAGAIN) {
            struct fi_cq_err_entry error = {0};
            fi_cq_readerr(queue, &error, 0);
            fprintf(stderr, "an operation failed: %s\n", fi_strerror(error.err));
            exit(1);
        }
    }
}

#define POST(call)                                                                        \
    do {                                                                                  \
        long result;                                                                      \
        while ((result = (long)(call)) == -FI_EAGAIN)                                     \
            fi_cq_read(queue, NULL, 0);                                                   \
        CHECK(result);                                                                    \
        complete();                                                                       \
    } while (0)

/* Opens the endpoint, registers the window, and exchanges addresses over the pipes. */
static void open_endpoint(int progress, int from, int to) {
    struct fi_info *hints = fi_allocinfo(), *info;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_RMA | FI_ATOMIC;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->fabric_attr->prov_name = strdup("weir");
    hints->domain_attr->data_progress = progress;
    hints->tx_attr->msg_order = FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
    CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *vector;
    struct fid_mr *region;
    struct fi_av_attr vector_attr = {.type = FI_AV_TABLE, .count = 2};
    struct fi_cq_attr queue_attr = {.format = FI_CQ_FORMAT_TAGGED};
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
    CHECK(fi_domain(fabric, info, &domain, NULL));
    CHECK(fi_av_open(domain, &vector_attr, &vector, NULL));
    CHECK(fi_cq_open(domain, &queue_attr, &queue, NULL));
    CHECK(fi_endpoint(domain, info, &endpoint, NULL));
    CHECK(fi_ep_bind(endpoint, &vector->fid, 0));
    CHECK(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV));
    CHECK(fi_enable(endpoint));
    CHECK(fi_mr_reg(domain, &window, sizeof window, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &region, NULL));
    char addresses[2][64];
    size_t bytes = sizeof addresses[0];
    CHECK(fi_getname(&endpoint->fid, addresses[0], &bytes));
    if (write(to, addresses[0], sizeof addresses[0]) != sizeof addresses[0] ||
        read(from, addresses[1], sizeof addresses[1]) != sizeof addresses[1])
        exit(1);
    CHECK(fi_av_insert(vector, addresses[0], 1, &self, 0, NULL));
    CHECK(fi_av_insert(vector, addresses[1], 1, &peer, 0, NULL));
}

static long compared;

static void differs(const char *type, int op, const char *what, int place) {
    fprintf(stderr, "operation %d on %s: word %d of the %s differs\n", op, type, place, what);
    exit(1);
}

/* What the operation makes of a word (fi_atomic(3)). Bitwise ones are apart, since C has none on floats. */
#define ARITHMETIC(op, target, operand, compare, bits)                                    \
    ((op) == FI_MIN ? ((operand) < (target) ? (operand) : (target))                       \
     : (op) == FI_MAX ? ((operand) > (target) ? (operand) : (target))                     \
     : (op) == FI_SUM ? (target) + (operand)                                              \
     : (op) == FI_PROD ? (target) * (operand)                                             \
     : (op) == FI_LOR ? ((target) || (operand))                                           \
     : (op) == FI_LAND ? ((target) && (operand))                                          \
     : (op) == FI_LXOR ? (!(target) != !(operand))                                        \
     : (op) == FI_ATOMIC_READ ? (target)                                                  \
     : (op) == FI_ATOMIC_WRITE ? (operand)                                                \
     : (op) == FI_CSWAP ? ((compare) == (target) ? (operand) : (target))                  \
     : (op) == FI_CSWAP_NE ? ((compare) != (target) ? (operand) : (target))               \
     : (op) == FI_CSWAP_LE ? ((compare) <= (target) ? (operand) : (target))               \
     : (op) == FI_CSWAP_LT ? ((compare) < (target) ? (operand) : (target))                \
     : (op) == FI_CSWAP_GE ? ((compare) >= (target) ? (operand) : (target))               \
     : (op) == FI_CSWAP_GT ? ((compare) > (target) ? (operand) : (target))                \
                           : (bits))

#define BITWISE(op, target, operand, compare)                                             \
    ((op) == FI_BOR ? (target) | (operand)                                                \
     : (op) == FI_BAND ? (target) & (operand)                                             \
     : (op) == FI_BXOR ? (target) ^ (operand)                                             \
                       : (((operand) & (compare)) | ((target) & ~(compare))))

/* Small values often, so that comparisons and conditions go both ways. */
static uint64_t random_word(void) {
    uint64_t high = (uint64_t)rand() << 40;
    return rand() % 4 ? (uint64_t)(rand() % 4) : high ^ (uint64_t)rand();
}

#define TYPE(name, type, number, bits)                                                    \
    static void check_##name(void) {                                                      \
        type *target = calloc(WORDS, sizeof(type)), old[WORDS], operand[WORDS], compare[WORDS], found[WORDS]; \
        POST(fi_fetch_atomic(endpoint, NULL, WORDS, NULL, target, NULL, peer, 0, KEY, number, FI_ATOMIC_READ, NULL)); \
        for (int op = FI_MIN; op < FI_ATOMIC_OP_LAST; op++)                               \
            for (int repeat = 0; repeat < 12; repeat++) {                                 \
                int count = repeat % 3 == 0 ? 1 : 1 + rand() % WORDS;                     \
                size_t most = 0;                                                          \
                int is_compare = op >= FI_CSWAP;                                          \
                int valid = is_compare ? fi_compare_atomicvalid(endpoint, number, op, &most) \
                                       : fi_fetch_atomicvalid(endpoint, number, op, &most); \
                if (valid == -FI_EOPNOTSUPP) {                                            \
                    int bitwise = op == FI_BOR || op == FI_BAND || op == FI_BXOR || op == FI_MSWAP; \
                    if (!bitwise || number < FI_FLOAT)                                    \
                        differs(#type, op, "list of operations", 0);                      \
                    break;                                                                \
                }                                                                         \
                CHECK(valid);                                                             \
                if (most < WORDS)                                                         \
                    differs(#type, op, "count", (int)most);                               \
                for (int i = 0; i < WORDS; i++)                                           \
                    operand[i] = (type)random_word(), compare[i] = (type)random_word(), old[i] = (type)99; \
                if (is_compare)                                                           \
                    POST(fi_compare_atomic(endpoint, operand, count, NULL, compare, NULL, old, NULL, peer, 0, KEY, \
                                           number, op, NULL));                            \
                else if (repeat % 2 == 0 || op == FI_ATOMIC_READ)                         \
                    POST(fi_fetch_atomic(endpoint, operand, count, NULL, old, NULL, peer, 0, KEY, number, op, NULL)); \
                else                                                                      \
                    POST(fi_atomic(endpoint, operand, count, NULL, peer, 0, KEY, number, op, NULL)); \
                int fetched = is_compare || repeat % 2 == 0 || op == FI_ATOMIC_READ;      \
                for (int i = 0; i < count; i++) {                                         \
                    if (fetched && memcmp(&old[i], &target[i], sizeof old[i]) != 0)       \
                        differs(#type, op, "old words", i);                               \
                    target[i] = (type)ARITHMETIC(op, target[i], operand[i], compare[i],   \
                                                 bits(op, target[i], operand[i], compare[i])); \
                }                                                                         \
                POST(fi_fetch_atomic(endpoint, NULL, WORDS, NULL, found, NULL, peer, 0, KEY, number, FI_ATOMIC_READ, NULL)); \
                for (int i = 0; i < WORDS; i++)                                           \
                    if (memcmp(&found[i], &target[i], sizeof found[i]) != 0 && found[i] == found[i]) \
                        differs(#type, op, "target", i);                                  \
                memcpy(target, found, sizeof found);                                      \
                compared++;                                                               \
            }                                                                             \
        /* The next type begins with numbers of its own. */                               \
        memset(operand, 0, sizeof operand);                                               \
        POST(fi_atomic(endpoint, operand, WORDS, NULL, peer, 0, KEY, number, FI_ATOMIC_WRITE, NULL)); \
        free(target);                                                                     \
    }

#define NO_BITS(op, target, operand, compare) (target)

TYPE(int32, int32_t, FI_INT32, BITWISE)
TYPE(uint32, uint32_t, FI_UINT32, BITWISE)
TYPE(int64, int64_t, FI_INT64, BITWISE)
TYPE(uint64, uint64_t, FI_UINT64, BITWISE)
TYPE(float, float, FI_FLOAT, NO_BITS)
TYPE(double, double, FI_DOUBLE, NO_BITS)

/* Both processes add to the word of the child at once. */
static void add_to_word(fi_addr_t target) {
    uint64_t one = 1, last = 0;
    for (int i = 0; i < FETCHES; i++) {
        uint64_t old;
        POST(fi_fetch_atomic(endpoint, &one, 1, NULL, &old, NULL, target, 8 * WORDS, KEY, FI_UINT64, FI_SUM, NULL));
        if (i > 0 && old <= last)
            differs("uint64_t", FI_SUM, "shared word", i);
        last = old;
    }
}

static int waits(int pipe) {
    struct pollfd descriptor = {.fd = pipe, .events = POLLIN};
    return poll(&descriptor, 1, 0) == 0;
}

static void child(int progress, int from, int to) {
    char byte = 0;
    open_endpoint(progress, from, to);
    while (waits(from))
        if (progress != FI_PROGRESS_AUTO)
            fi_cq_read(queue, NULL, 0);
    if (read(from, &byte, 1) != 1)
        exit(1);
    add_to_word(self);
    if (write(to, &byte, 1) != 1)
        exit(1);
    while (waits(from))
        fi_cq_read(queue, NULL, 0);
    if (window.words[WORDS] != 2 * FETCHES)
        differs("uint64_t", FI_SUM, "window of the child", (int)window.words[WORDS]);
    CHECK(fi_close(&endpoint->fid));
    exit(0);
}

int main(int argc, char **argv) {
    int progress = argc > 1 && strcmp(argv[1], "AUTO") == 0 ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL;
    int down[2], up[2], status = 1;
    char byte = 1;
    if (pipe(down) != 0 || pipe(up) != 0)
        return 1;
    pid_t process = fork();
    if (process == 0) {
        close(down[1]);
        child(progress, down[0], up[1]);
    }
    open_endpoint(progress, up[0], down[1]);
    srand(1);
    check_int32();
    check_uint32();
    check_int64();
    check_uint64();
    check_float();
    check_double();
    uint64_t zero = 0, old;
    double start = seconds();
    for (int i = 0; i < FETCHES; i++)
        POST(fi_fetch_atomic(endpoint, &zero, 1, NULL, &old, NULL, peer, 0, KEY, FI_UINT64, FI_SUM, NULL));
    printf("%ld calls agree, a fetch takes %.2f us\n", compared, (seconds() - start) / FETCHES * 1e6);
    if (write(down[1], &byte, 1) != 1)
        return 1;
    add_to_word(peer);
    while (waits(up[0]))
        fi_cq_read(queue, NULL, 0);
    if (read(up[0], &byte, 1) != 1 || write(down[1], &byte, 1) != 1)
        return 1;
    waitpid(process, &status, 0);
    CHECK(fi_close(&endpoint->fid));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}
