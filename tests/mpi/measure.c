/* Measures messages, collectives and memory: the program of `weir bench`.
 *
 * usage: measure latency|stream|ends|collectives|operations|barrier|allreduce|alltoall|incast|memory SECONDS BYTES...
 *
 * latency      Half a round trip between two ranks.
 * stream       Windows of messages from rank 0 to rank 1, which answers each window.
 * ends         Time of a message of such a window at each end, if neither has to wait. The sender sends while the receiver
 *              is outside MPI. The receiver receives when all messages have arrived. Medians over the windows. For
 *              messages whose sends do not wait.
 * collectives  Barrier, all-reduce of one double, all-to-all of BYTES for each pair; means over the ranks. Also the cost of
 *              one operation at a rank: how often it lost the core and slept, and processor time in the program and in
 *              the kernel. `barrier`, `allreduce` and `alltoall` are one of them alone.
 * operations   The same for more operations: barrier, all-reduce and reduce of one double, broadcast of 8 B and of 16 KiB,
 *              all-gather, all-to-all, gather, scatter and reduce-scatter of BYTES for each pair (8 or more). The root changes
 *              each time. Then barrier and all-reduce without blocking: started, and waited for. And what of their time is
 *              hidden if ranks compute meanwhile; and if only rank 0 does, and the others come late. Last the time that a rank spends in broadcast and reduce of one double if ranks
 *              come late by 0 to 2 ms (measure_operations.h).
 * incast       All other ranks send to rank 0, until the first sender has finished. Also the cost of one message at a
 *              sender and at the receiver.
 * memory       RssAnon + RssShmem of a rank after all-to-alls of BYTES for each pair; mean over the ranks.
 *
 * Each value is measured for about SECONDS. Rank 0 first decides the number of repetitions, so that all ranks do the same.
 * Before that, every operation runs once with all bytes checked. Rank 0 prints a line of key=value for each value.
 */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { DATA = 1, ANSWER = 2, WINDOW = 64, LEAST_WINDOW = 4, WINDOW_BYTES = 4 << 20, TRIES = 3, CALLS = 4, MEASURES = 10 };

static int rank, ranks, bytes, window;
static int checking;
static unsigned char *out, *in;
static MPI_Request requests[WINDOW];

static void wrong(const char *what, int from, long message) {
    printf("rank %d: error: %s of rank %d, number %ld, is wrong\n", rank, what, from, message);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static void usage(void) {
    if (rank == 0) fprintf(stderr, "usage: measure latency|stream|ends|collectives|operations|barrier|allreduce|alltoall|incast|memory SECONDS BYTES...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
}

static void fill(unsigned char *buffer, int from, long message) {
    unsigned start = from * 131u + (unsigned)message * 2654435761u;
    for (int i = 0; i < bytes; i++) buffer[i] = (unsigned char)((start >> 7) + i);
}

static void check(const unsigned char *buffer, int from, long message) {
    unsigned start = from * 131u + (unsigned)message * 2654435761u;
    for (int i = 0; i < bytes; i++)
        if (buffer[i] != (unsigned char)((start >> 7) + i)) wrong("a message", from, message);
}

static long resident_kib(void) {
    static const char *const wanted[] = {"RssAnon:", "RssShmem:"};
    char line[256];
    long total = 0, value;
    FILE *file = fopen("/proc/self/status", "r");
    if (!file) MPI_Abort(MPI_COMM_WORLD, 2);
    while (fgets(line, sizeof line, file))
        for (int i = 0; i < 2; i++)
            if (!strncmp(line, wanted[i], strlen(wanted[i])) && sscanf(line + strlen(wanted[i]), "%ld", &value) == 1) total += value;
    fclose(file);
    return total;
}

/* A clock that all processes of a node share. */
static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

/* Allocates `count` messages in each direction and touches them, so that no measured pass has page faults. */
static void make_room(long count) {
    size_t room = (size_t)count * (bytes > 0 ? bytes : 1);
    free(out);
    free(in);
    out = malloc(room);
    in = malloc(room);
    if (!out || !in) MPI_Abort(MPI_COMM_WORLD, 2);
    memset(out, 1, room);
    memset(in, 0, room);
}

/* Cost of one of the last operations: lost cores, sleeps, and processor time in the program and in the kernel in us. */
static double used[4];

static void note_use(double values[4]) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    values[0] = usage.ru_nivcsw;
    values[1] = usage.ru_nvcsw;
    values[2] = usage.ru_utime.tv_sec * 1e6 + usage.ru_utime.tv_usec;
    values[3] = usage.ru_stime.tv_sec * 1e6 + usage.ru_stime.tv_usec;
}

/* Time of one operation. `work` does `count` of them, on all ranks. Unit of the result: s. */
static double measured(void (*work)(long count), double seconds) {
    long count = 1;
    for (int tries = 0;;) {
        MPI_Barrier(MPI_COMM_WORLD);
        double before[4], began = now_s();
        note_use(before);
        work(count);
        double took = now_s() - began, sum = 0;
        note_use(used);
        for (int k = 0; k < 4; k++) used[k] = (used[k] - before[k]) / count;
        MPI_Reduce(&took, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        long next = 0;
        if (rank == 0) {
            /* A short pass decides the number of repetitions. It is repeated, because a disturbed pass gives too few. */
            double mean = sum / ranks;
            if (mean < seconds / 10)
                next = count * 4;
            else if (tries++ == 0 || (mean < seconds / 4 && tries <= TRIES))
                next = (long)(seconds / mean * count) + 1;
        }
        MPI_Bcast(&next, 1, MPI_LONG, 0, MPI_COMM_WORLD);
        if (next == 0) return took / count;
        count = next;
    }
}

static void checked(void (*work)(long count), long count) {
    checking = 1;
    work(count);
    checking = 0;
}

static void round_trips(long count) {
    for (long i = 0; i < count; i++) {
        if (checking) fill(out, rank, i);
        if (rank == 0) MPI_Send(out, bytes, MPI_BYTE, 1, DATA, MPI_COMM_WORLD);
        MPI_Recv(in, bytes, MPI_BYTE, 1 - rank, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1) MPI_Send(out, bytes, MPI_BYTE, 0, DATA, MPI_COMM_WORLD);
        if (checking) check(in, 1 - rank, i);
    }
}

/* Sends `count` windows. Every message of a window has its own buffer. */
static void stream(long count) {
    int answer = 0;
    for (long i = 0; i < count; i++) {
        for (int w = 0; w < window; w++) {
            size_t place = (size_t)w * bytes;
            if (rank == 0) {
                if (checking) fill(out + place, 0, i * window + w);
                MPI_Isend(out + place, bytes, MPI_BYTE, 1, DATA, MPI_COMM_WORLD, &requests[w]);
            } else
                MPI_Irecv(in + place, bytes, MPI_BYTE, 0, DATA, MPI_COMM_WORLD, &requests[w]);
        }
        MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
        if (rank == 0)
            MPI_Recv(&answer, 1, MPI_INT, 1, ANSWER, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else {
            for (int w = 0; checking && w < window; w++) check(in + (size_t)w * bytes, 0, i * window + w);
            MPI_Send(&answer, 1, MPI_INT, 0, ANSWER, MPI_COMM_WORLD);
        }
    }
}

/* Stays outside MPI longer than the other rank needs to send a window. Yields the core, in case both share it. */
static void stay_away(void) {
    double until = now_s() + window * (1.5e-6 + bytes * 1e-9);
    while (now_s() < until) sched_yield();
}

enum { SENDING, POSTING, TAKING, STEPS };
static double *taken_s[STEPS]; /* of each window */

/* As `stream`, but the whole window has arrived before the receiver polls. */
static void ends(long count) {
    int answer = 0;
    for (long i = 0; i < count; i++) {
        double times[3];
        if (rank == 0) {
            MPI_Recv(&answer, 1, MPI_INT, 1, ANSWER, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (int w = 0; checking && w < window; w++) fill(out + (size_t)w * bytes, 0, i * window + w);
        } else {
            MPI_Send(&answer, 1, MPI_INT, 0, ANSWER, MPI_COMM_WORLD);
            stay_away();
        }
        times[0] = now_s();
        for (int w = 0; w < window; w++) {
            size_t place = (size_t)w * bytes;
            if (rank == 0)
                MPI_Isend(out + place, bytes, MPI_BYTE, 1, DATA, MPI_COMM_WORLD, &requests[w]);
            else
                MPI_Irecv(in + place, bytes, MPI_BYTE, 0, DATA, MPI_COMM_WORLD, &requests[w]);
        }
        times[1] = now_s();
        MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
        times[2] = now_s();
        for (int w = 0; checking && rank == 1 && w < window; w++) check(in + (size_t)w * bytes, 0, i * window + w);
        taken_s[SENDING][i] = times[2] - times[0];
        taken_s[POSTING][i] = times[1] - times[0];
        taken_s[TAKING][i] = times[2] - times[1];
    }
}

static int by_value(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(double *values, long count) {
    qsort(values, count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

#include "measure_operations.h"

/* The last incast: messages by sender that had arrived with the first sender's last message, and that time. */
static long *counts;
static double all_sent_s;

/* Each sender has a window of pending messages. Each message begins with its number. */
static void incast_send(long count) {
    for (long i = 0; i < count + window; i++) {
        unsigned char *buffer = out + (size_t)(i % window) * bytes;
        if (i >= window) MPI_Wait(&requests[i % window], MPI_STATUS_IGNORE);
        if (i >= count) continue;
        if (checking) fill(buffer, rank, i);
        if (!checking) memcpy(buffer, &i, sizeof i);
        MPI_Isend(buffer, bytes, MPI_BYTE, 0, DATA, MPI_COMM_WORLD, &requests[i % window]);
    }
}

static void incast(long count) {
    for (int w = 0; w < window; w++) requests[w] = MPI_REQUEST_NULL;
    if (rank != 0) {
        incast_send(count);
        return;
    }
    long all = count * (ranks - 1), *received = calloc(ranks, sizeof *received), number;
    double began = now_s();
    MPI_Status status;
    all_sent_s = 0;
    for (long i = 0; i < all + window; i++) {
        /* Receives are filled in the order in which they are posted. */
        unsigned char *buffer = in + (size_t)(i % window) * bytes;
        if (i >= window && i - window < all) {
            MPI_Wait(&requests[i % window], &status);
            int from = status.MPI_SOURCE;
            if (checking) check(buffer, from, received[from]);
            if (!checking && (memcpy(&number, buffer, sizeof number), number != received[from])) wrong("a message", from, received[from]);
            if (++received[from] == count && all_sent_s == 0) {
                all_sent_s = now_s() - began;
                memcpy(counts, received, ranks * sizeof *counts);
            }
        }
        if (i < all) MPI_Irecv(buffer, bytes, MPI_BYTE, MPI_ANY_SOURCE, DATA, MPI_COMM_WORLD, &requests[i % window]);
    }
    free(received);
}

static void measure_latency(double seconds) {
    if (ranks != 2) usage();
    make_room(1);
    checked(round_trips, 4);
    double took = measured(round_trips, seconds);
    if (rank == 0) printf("latency bytes=%d us=%.4f\n", bytes, took / 2 * 1e6);
}

static void choose_window(void) {
    window = bytes > 0 && WINDOW_BYTES / bytes < WINDOW ? WINDOW_BYTES / bytes : WINDOW;
    if (window < LEAST_WINDOW) window = LEAST_WINDOW;
    make_room(window);
}

static void measure_stream(double seconds) {
    if (ranks != 2) usage();
    choose_window();
    checked(stream, 4);
    double took = measured(stream, seconds) / window;
    if (rank == 0) printf("stream bytes=%d window=%d per_s=%.1f bytes_per_s=%.1f\n", bytes, window, 1 / took, bytes / took);
}

static void measure_ends(double seconds) {
    if (ranks != 2) usage();
    choose_window();
    long count = 100 + (long)(seconds / (window * (2e-6 + bytes * 2e-9)));
    double ns[STEPS], sender[STEPS];
    for (int k = 0; k < STEPS; k++)
        if (!(taken_s[k] = malloc(count * sizeof *taken_s[k]))) MPI_Abort(MPI_COMM_WORLD, 2);
    checked(ends, 4);
    ends(count);
    for (int k = 0; k < STEPS; k++) {
        ns[k] = median(taken_s[k], count) / window * 1e9;
        free(taken_s[k]);
    }
    if (rank == 0) MPI_Send(ns, STEPS, MPI_DOUBLE, 1, DATA, MPI_COMM_WORLD);
    if (rank == 1) {
        MPI_Recv(sender, STEPS, MPI_DOUBLE, 0, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        printf("ends bytes=%d window=%d windows=%ld send_ns=%.1f post_ns=%.1f take_ns=%.1f\n", bytes, window, count, sender[SENDING], ns[POSTING], ns[TAKING]);
    }
}

static void measure_incast(double seconds) {
    if (ranks < 2 || bytes < (int)sizeof(long)) usage();
    window = WINDOW;
    make_room(window);
    counts = calloc(ranks, sizeof *counts);
    checked(incast, 2 * WINDOW);
    measured(incast, seconds);
    double mine[4] = {0}, senders[4] = {0};
    if (rank == 0)
        for (int k = 0; k < 4; k++) used[k] /= ranks - 1; /* of each received message */
    else
        memcpy(mine, used, sizeof used);
    MPI_Reduce(mine, senders, 4, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    long sum = 0;
    for (int from = 1; from < ranks; from++) sum += counts[from];
    if (rank == 0) {
        printf("incast senders=%d bytes=%d per_s=%.1f counts=", ranks - 1, bytes, sum / all_sent_s);
        for (int from = 1; from < ranks; from++) printf("%ld%s", counts[from], from + 1 < ranks ? "," : "\n");
        for (int k = 0; k < 4; k++) senders[k] /= ranks - 1;
        const double *const who[] = {senders, used};
        for (int i = 0; i < 2; i++)
            printf("incast-%s preempted=%.3f slept=%.3f user_us=%.3f system_us=%.3f\n", i ? "receiver" : "senders", who[i][0], who[i][1], who[i][2], who[i][3]);
    }
    free(counts);
}

static void measure_memory(double seconds) {
    (void)seconds;
    make_room(ranks);
    checked(exchanges, CALLS);
    MPI_Barrier(MPI_COMM_WORLD);
    long own = resident_kib(), sum = 0;
    MPI_Reduce(&own, &sum, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("memory ranks=%d mean_kib=%.1f\n", ranks, (double)sum / ranks);
}

int main(int argc, char **argv) {
    static const char *const names[MEASURES] = {"latency", "stream", "ends", "collectives", "operations", "barrier", "allreduce", "alltoall", "incast", "memory"};
    static void (*const measures[MEASURES])(double) = {measure_latency, measure_stream, measure_ends, measure_collectives, measure_operations, measure_barrier, measure_allreduce, measure_alltoall, measure_incast, measure_memory};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int which = 0;
    while (argc > 1 && which < MEASURES && strcmp(argv[1], names[which])) which++;
    if (argc < 4 || which == MEASURES || atof(argv[2]) <= 0) usage();
    for (int i = 3; i < argc; i++) {
        bytes = atoi(argv[i]);
        measures[which](atof(argv[2]));
    }
    free(out);
    free(in);
    MPI_Finalize();
    return 0;
}
