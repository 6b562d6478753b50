/* Lower bound of collectives: the contender `floor` of `weir bench paired`.
 *
 * usage: floor RANKS SECONDS BYTES
 *
 * RANKS processes run without MPI and protocol. A message is a flag in shared memory. Its bytes, if any, are copied in and
 * out. A waiting process polls once and yields. The algorithms are those of MPICH at these sizes: dissemination (barrier),
 * recursive doubling (all-reduce of one double; RANKS is a power of two), all sends at once (all-to-all). Results are
 * checked. The output has the format of `measure`.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 64, MOST_ROUNDS = 6, MOST_BYTES = 1 << 16, LINE = 64, PROBES = 2000 };
/* Cost of an operation: time, lost cores, sleeps, processor time in the program and in the kernel. Unit of times: us. */
enum { USES = 5 };

/* Holds one message of each of two operations. No rank begins an operation before all have ended the one before the last. */
struct flag {
    _Alignas(LINE) atomic_long operation;
    double value;
};

struct shared {
    struct flag barrier[MOST_RANKS][MOST_ROUNDS], reduction[MOST_RANKS][MOST_ROUNDS][2], exchange[MOST_RANKS][MOST_RANKS][2];
    double used[MOST_RANKS][USES];
    _Alignas(LINE) atomic_int begun;
};

static struct shared *shared;
static unsigned char *slots, *out, *in; /* [to][from][parity][bytes], [ranks][bytes] */
static int rank, ranks, bytes;
static long operations; /* number of operations that this rank has begun */

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static void await(struct flag *flag, long operation) {
    while (atomic_load_explicit(&flag->operation, memory_order_acquire) < operation) sched_yield();
}

static void post(struct flag *flag, long operation) {
    atomic_store_explicit(&flag->operation, operation, memory_order_release);
}

static void wrong(const char *what) {
    fprintf(stderr, "rank %d: error: %s is wrong\n", rank, what);
    _exit(3);
}

static void barrier(void) {
    long operation = ++operations;
    for (int round = 0, far = 1; far < ranks; round++, far *= 2) {
        post(&shared->barrier[(rank + far) % ranks][round], operation);
        await(&shared->barrier[rank][round], operation);
    }
}

static void reduce(void) {
    long operation = ++operations;
    double sum = rank + operation;
    for (int round = 0, far = 1; far < ranks; round++, far *= 2) {
        struct flag *to = &shared->reduction[rank ^ far][round][operation % 2], *own = &shared->reduction[rank][round][operation % 2];
        to->value = sum;
        post(to, operation);
        await(own, operation);
        sum += own->value;
    }
    if (sum != ranks * (ranks - 1) / 2.0 + (double)operation * ranks) wrong("a sum");
}

static unsigned char *slot(int to, int from, long operation) {
    return slots + ((size_t)(to * ranks + from) * 2 + operation % 2) * bytes;
}

static void exchange(void) {
    long operation = ++operations;
    if (operation == 1) memset(out, rank + 1, (size_t)ranks * bytes);
    for (int step = 1; step < ranks; step++) {
        int to = (rank + step) % ranks;
        memcpy(slot(to, rank, operation), out + (size_t)to * bytes, bytes);
        post(&shared->exchange[to][rank][operation % 2], operation);
    }
    memcpy(in + (size_t)rank * bytes, out + (size_t)rank * bytes, bytes);
    for (int step = 1; step < ranks; step++) {
        int from = (rank + ranks - step) % ranks;
        await(&shared->exchange[rank][from][operation % 2], operation);
        memcpy(in + (size_t)from * bytes, slot(rank, from, operation), bytes);
        if (in[(size_t)from * bytes] != from + 1 || in[(size_t)from * bytes + bytes - 1] != from + 1) wrong("a message");
    }
}

static void note(double values[USES]) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    values[0] = now_s() * 1e6;
    values[1] = usage.ru_nivcsw;
    values[2] = usage.ru_nvcsw;
    values[3] = usage.ru_utime.tv_sec * 1e6 + usage.ru_utime.tv_usec;
    values[4] = usage.ru_stime.tv_sec * 1e6 + usage.ru_stime.tv_usec;
}

static void be_a_rank(void (*work)(void), long count) {
    double before[USES], after[USES];
    atomic_fetch_add(&shared->begun, 1);
    while (atomic_load(&shared->begun) < ranks) sched_yield();
    note(before);
    for (long i = 0; i < count; i++) work();
    note(after);
    for (int k = 0; k < USES; k++) shared->used[rank][k] = (after[k] - before[k]) / count;
    _exit(0);
}

/* Runs `count` operations of one kind in new processes. Returns the cost of one, as mean over the ranks. */
static void run(void (*work)(void), long count, double used[USES]) {
    memset(shared, 0, sizeof *shared);
    for (rank = 0; rank < ranks; rank++) {
        pid_t child = fork();
        if (child < 0) exit(2);
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            be_a_rank(work, count);
        }
    }
    for (int ended = 0, status; ended < ranks; ended++)
        if (wait(&status) < 0 || status) exit(3);
    for (int k = 0; k < USES; k++) {
        used[k] = 0;
        for (int r = 0; r < ranks; r++) used[k] += shared->used[r][k] / ranks;
    }
}

static void *room(size_t size) {
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) exit(2);
    return found;
}

int main(int argc, char **argv) {
    static void (*const works[])(void) = {barrier, reduce, exchange};
    static const char *const names[] = {"barrier", "allreduce", "alltoall"};
    double seconds = argc == 4 ? atof(argv[2]) : 0, used[USES];
    ranks = argc == 4 ? atoi(argv[1]) : 0;
    bytes = argc == 4 ? atoi(argv[3]) : 0;
    if (ranks < 2 || ranks > MOST_RANKS || (ranks & (ranks - 1)) || seconds <= 0 || bytes < 1 || bytes > MOST_BYTES) {
        fprintf(stderr, "usage: floor RANKS SECONDS BYTES: a power of two up to %d, up to %d B\n", MOST_RANKS, MOST_BYTES);
        return 2;
    }
    shared = room(sizeof *shared);
    slots = room((size_t)ranks * ranks * 2 * bytes);
    out = malloc((size_t)ranks * bytes);
    in = malloc((size_t)ranks * bytes);
    for (int i = 0; i < 3; i++) {
        run(works[i], PROBES, used);
        run(works[i], (long)(seconds * 1e6 / used[0]) + 1, used);
        printf("%s ranks=%d us=%.3f preempted=%.2f slept=%.2f user_us=%.2f system_us=%.2f\n", names[i], ranks, used[0], used[1], used[2], used[3], used[4]);
    }
    return 0;
}
