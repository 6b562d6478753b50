/* Traffic between hosts that can congest them: the program of `weir bench net --admission` and `weir tune --network`.
 *
 * usage: congestion random|incast|alltoall SECONDS HOSTS OUTSTANDING BYTES...
 *
 * random     Every rank updates random ranks of other hosts. An update has BYTES and is answered with 8 B; a rank has up to
 *            OUTSTANDING updates without answer.
 * incast     The same, but ranks of all hosts except the first update rank 0.
 * alltoall   All-to-all of BYTES for each pair. OUTSTANDING has no meaning.
 *
 * Ranks are distributed over hosts in blocks of the same length. Each value is measured for about SECONDS, behind a tenth of
 * that which does not count. Every update is checked. Rank 0 prints a line of key=value for each value: operations (updates
 * or all-to-alls) a second, the 50th and 99th percentile of the time of one, and how many each rank has made.
 */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Classes of times: 16 for each power of two, so that a percentile is at most 6 % too large. */
enum { PARTS = 16, CLASSES = 64 * PARTS, MOST_OUTSTANDING = 1024, SERVED = 32, LEAST_BYTES = 16 };

static int rank, ranks, per_host, bytes, outstanding;
static long classes[CLASSES], operations;
static double counted_s;
static MPI_Comm updates, answers;

static void wrong(const char *what, int from) {
    printf("rank %d: error: %s of rank %d is wrong\n", rank, what, from);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static void usage(void) {
    if (rank == 0) fprintf(stderr, "usage: congestion random|incast|alltoall SECONDS HOSTS OUTSTANDING BYTES...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static int class_of(double took_s) {
    uint64_t ns = took_s > 0 ? (uint64_t)(took_s * 1e9) : 0;
    if (ns < PARTS) return (int)ns;
    int power = 63 - __builtin_clzll(ns);
    return (power - 3) * PARTS + (int)(ns >> (power - 4)) - PARTS;
}

/* The end of a class. Unit: us. */
static double end_of(int class) {
    if (class < PARTS) return (class + 1) * 1e-3;
    return (double)((uint64_t)(class % PARTS + PARTS + 1) << (class / PARTS - 1)) * 1e-3;
}

static void note(double took_s) { classes[class_of(took_s)]++; }

static uint64_t state;

static uint64_t any(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static int is_incast;

/* The rank that gets the next update. */
static int target(void) {
    if (is_incast) return 0;
    int other = (int)(any() % (uint64_t)(ranks - per_host));
    return other < rank / per_host * per_host ? other : other + per_host;
}

/* Each update begins with a number and the rank that sends it. The last byte is the first. */
static void write_update(unsigned char *update, uint64_t number) {
    uint64_t from = (uint64_t)rank;
    memcpy(update, &number, sizeof number);
    memcpy(update + 8, &from, sizeof from);
    if (bytes > LEAST_BYTES) update[bytes - 1] = update[0];
}

static void check_update(const unsigned char *update, int from) {
    uint64_t wrote;
    memcpy(&wrote, update + 8, sizeof wrote);
    if (wrote != (uint64_t)from || (bytes > LEAST_BYTES && update[bytes - 1] != update[0])) wrong("an update", from);
}

/* Updates for `seconds`. All ranks answer until nobody waits for an answer. */
static void update_for(double seconds, double warm_s) {
    enum { ALL = MOST_OUTSTANDING + SERVED + 1 };
    static MPI_Request requests[ALL], sends[MOST_OUTSTANDING], answering[SERVED];
    static MPI_Status statuses[ALL];
    static int indices[ALL], to[MOST_OUTSTANDING];
    static double began_s[MOST_OUTSTANDING];
    static uint64_t numbers[MOST_OUTSTANDING], answered[MOST_OUTSTANDING], replies[SERVED];
    int own = is_incast && rank < per_host ? 0 : outstanding, serves = is_incast ? rank == 0 : 1;
    int all = outstanding + SERVED + 1, open = 0, leaving = 0, done = 0;
    unsigned char *out = calloc(outstanding, bytes), *in = calloc(SERVED, bytes);
    if (!out || !in) MPI_Abort(MPI_COMM_WORLD, 2);
    for (int i = 0; i < all; i++) requests[i] = MPI_REQUEST_NULL;
    for (int i = 0; i < outstanding; i++) sends[i] = MPI_REQUEST_NULL;
    for (int i = 0; i < SERVED; i++) answering[i] = MPI_REQUEST_NULL;
    MPI_Request *incoming = requests + outstanding, *last = requests + outstanding + SERVED;
    for (int i = 0; serves && i < SERVED; i++)
        MPI_Irecv(in + (size_t)i * bytes, bytes, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, updates, &incoming[i]);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now_s(), now = start, counts_from = start + warm_s, until = counts_from + seconds;
    while (!done) {
        for (int i = 0; i < own && now < until; i++) {
            if (requests[i] != MPI_REQUEST_NULL) continue;
            MPI_Wait(&sends[i], MPI_STATUS_IGNORE);
            unsigned char *update = out + (size_t)i * bytes;
            write_update(update, numbers[i] = any());
            to[i] = target();
            began_s[i] = now_s();
            MPI_Irecv(&answered[i], 1, MPI_UINT64_T, to[i], i, answers, &requests[i]);
            MPI_Isend(update, bytes, MPI_BYTE, to[i], i, updates, &sends[i]);
            open++;
        }
        /* Whoever only answers does not wait for the time: nobody may be left who would wake it. */
        if (open == 0 && !leaving && (now >= until || (serves && own == 0))) {
            MPI_Ibarrier(MPI_COMM_WORLD, last);
            leaving = 1;
        }
        int count;
        if (open == 0 && !serves && !leaving) { /* nothing to wait for but the time */
            struct timespec short_time = {0, 1000000};
            nanosleep(&short_time, NULL);
            count = 0;
        } else
            MPI_Waitsome(all, requests, &count, indices, statuses);
        now = now_s();
        for (int k = 0; k < count; k++) {
            int i = indices[k];
            if (i == outstanding + SERVED)
                done = 1;
            else if (i < outstanding) {
                if (answered[i] != numbers[i]) wrong("an answer", to[i]);
                if (began_s[i] >= counts_from) note(now - began_s[i]);
                operations += now >= counts_from && now < until;
                open--;
            } else {
                int s = i - outstanding, from = statuses[k].MPI_SOURCE;
                unsigned char *update = in + (size_t)s * bytes;
                check_update(update, from);
                MPI_Wait(&answering[s], MPI_STATUS_IGNORE);
                memcpy(&replies[s], update, sizeof replies[s]);
                MPI_Isend(&replies[s], 1, MPI_UINT64_T, from, statuses[k].MPI_TAG, answers, &answering[s]);
                MPI_Irecv(update, bytes, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, updates, &incoming[s]);
            }
        }
    }
    counted_s = seconds;
    for (int i = 0; i < outstanding; i++) MPI_Wait(&sends[i], MPI_STATUS_IGNORE);
    for (int i = 0; i < SERVED; i++) {
        MPI_Wait(&answering[i], MPI_STATUS_IGNORE);
        if (incoming[i] == MPI_REQUEST_NULL) continue;
        MPI_Cancel(&incoming[i]);
        MPI_Wait(&incoming[i], MPI_STATUS_IGNORE);
    }
    free(out);
    free(in);
}

/* Rank 0 says after each group of all-to-alls whether one more follows. That time counts for the rate alone. */
static void exchange_for(double seconds, double warm_s) {
    enum { GROUP = 4 };
    unsigned char *out = calloc(ranks, bytes), *in = calloc(ranks, bytes);
    if (!out || !in) MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Barrier(MPI_COMM_WORLD);
    double counts_from = now_s() + warm_s, began = counts_from;
    int more = 1, counts = 0;
    for (unsigned char number = 0; more; number++) {
        for (int i = 0; i < GROUP; i++) {
            for (int to = 0; to < ranks; to++) out[(size_t)to * bytes] = out[(size_t)(to + 1) * bytes - 1] = (unsigned char)(number + to);
            double before = now_s();
            MPI_Alltoall(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, MPI_COMM_WORLD);
            if (counts) note(now_s() - before);
            operations += counts;
            for (int from = 0; from < ranks; from++)
                if (in[(size_t)(from + 1) * bytes - 1] != (unsigned char)(number + rank)) wrong("a block", from);
        }
        double now = now_s();
        more = !counts ? (now >= counts_from ? 2 : 1) : now - began < seconds;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (more == 2) {
            counts = 1;
            began = now_s();
        }
    }
    counted_s = now_s() - began;
    free(out);
    free(in);
}

static double percentile(const long *all, double share) {
    long sum = 0, below = 0;
    for (int i = 0; i < CLASSES; i++) sum += all[i];
    for (int i = 0; i < CLASSES; i++)
        if ((below += all[i]) >= share * sum) return end_of(i);
    return 0;
}

static void report(const char *name) {
    static long all[CLASSES];
    double per_s = counted_s > 0 ? operations / counted_s : 0, sum = 0;
    long *counts = calloc(ranks, sizeof *counts);
    if (!counts) MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Reduce(classes, all, CLASSES, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&per_s, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Gather(&operations, 1, MPI_LONG, counts, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        if (!strcmp(name, "alltoall")) sum /= ranks;
        printf("%s ranks=%d bytes=%d outstanding=%d per_s=%.2f p50_us=%.3f p99_us=%.3f counts=", name, ranks, bytes, outstanding, sum, percentile(all, 0.5), percentile(all, 0.99));
        for (int from = 0, printed = 0; from < ranks; from++) {
            if (is_incast && from < per_host) continue;
            printf("%s%ld", printed++ ? "," : "", counts[from]);
        }
        printf("\n");
        fflush(stdout);
    }
    free(counts);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double seconds = argc > 2 ? atof(argv[2]) : 0;
    int hosts = argc > 3 ? atoi(argv[3]) : 0;
    outstanding = argc > 4 ? atoi(argv[4]) : 0;
    const char *name = argc > 5 ? argv[1] : "";
    is_incast = !strcmp(name, "incast");
    int is_exchange = !strcmp(name, "alltoall");
    if (seconds <= 0 || hosts < 2 || ranks % hosts || outstanding < 1 || outstanding > MOST_OUTSTANDING) usage();
    if (!is_incast && !is_exchange && strcmp(name, "random")) usage();
    per_host = ranks / hosts;
    state = 88172645463325252ull + 1000003ull * (uint64_t)rank;
    MPI_Comm_dup(MPI_COMM_WORLD, &updates);
    MPI_Comm_dup(MPI_COMM_WORLD, &answers);
    for (int i = 5; i < argc; i++) {
        bytes = atoi(argv[i]);
        if (bytes < LEAST_BYTES) usage();
        memset(classes, 0, sizeof classes);
        operations = 0;
        counted_s = 0;
        (is_exchange ? exchange_for : update_for)(seconds, seconds / 10);
        report(name);
    }
    MPI_Comm_free(&updates);
    MPI_Comm_free(&answers);
    MPI_Finalize();
    return 0;
}
