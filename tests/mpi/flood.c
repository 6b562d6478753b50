/* Floods a receiver: measures its memory and the time, and checks every byte.
 *
 * usage: flood SENDERS MESSAGES BYTES blocking|nonblocking late|reversed|anybody|head [SAMPLE_MS]
 *
 * late      Rank 0 first waits for the last message of each sender, which has its own tag, then receives the MESSAGES others.
 * reversed  The same, but each message of a sender has another tag, and rank 0 receives the last tag first.
 * anybody   As late, but rank 0 receives from MPI_ANY_SOURCE.
 * head      Each rank sends MESSAGES to its neighbour before it receives from its other neighbour. Such programs rely on
 *           buffering, as many programs do with small messages.
 *
 * Rank 0 prints one line of key=value. Memory is RssAnon + RssShmem in KiB, of rank 0 and summed over the ranks. The line
 * has it after MPI_Init, and its growth at the end of the wait, at its peak and at the end.
 *
 * SAMPLE_MS: a thread of rank 0 prints `memory s=... growth_kib=...` every SAMPLE_MS milliseconds while the flood lasts.
 * Without it, or with 0, there is no such thread.
 */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DATA = 1, LAST = 2, NEVER = 3, FIRST_OF_MANY = 4, SAMPLES = 64, WINDOW = 1 << 14 };

static int rank, ranks;
/* Each message of a sender has a tag of its own. */
static int many_tags;

static int tag_of(int message) { return many_tags ? FIRST_OF_MANY + message : DATA; }

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

/* Processor time, which other work on the machine does not change. */
static double processor_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static void fill(unsigned char *buffer, int bytes, int from, int message) {
    unsigned start = from * 131u + message * 2654435761u;
    for (int i = 0; i < bytes; i++) buffer[i] = (unsigned char)((start >> 7) + i);
}

static void check(const unsigned char *buffer, int bytes, int from, int message) {
    unsigned start = from * 131u + message * 2654435761u;
    for (int i = 0; i < bytes; i++)
        if (buffer[i] != (unsigned char)((start >> 7) + i)) {
            printf("rank %d: message %d of rank %d: byte %d of %d is %d\n", rank, message, from, i, bytes, buffer[i]);
            fflush(stdout);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
}

static void send_all(int to, int messages, int bytes, int blocking) {
    if (blocking) {
        unsigned char *buffer = malloc(bytes + 1);
        for (int i = 0; i < messages; i++) {
            fill(buffer, bytes, rank, i);
            MPI_Send(buffer, bytes, MPI_BYTE, to, tag_of(i), MPI_COMM_WORLD);
        }
        MPI_Send(&messages, 1, MPI_INT, to, LAST, MPI_COMM_WORLD);
        free(buffer);
        return;
    }
    /* A window of pending sends, each with its own buffer. */
    int window = messages < WINDOW ? messages : WINDOW;
    unsigned char *buffers = malloc((size_t)window * (bytes + 1) + 1);
    MPI_Request *requests = malloc((window + 1) * sizeof *requests), last;
    for (int i = 0; i < messages; i++) {
        unsigned char *buffer = buffers + (size_t)(i % window) * (bytes + 1);
        if (i >= window) MPI_Wait(&requests[i % window], MPI_STATUS_IGNORE);
        fill(buffer, bytes, rank, i);
        MPI_Isend(buffer, bytes, MPI_BYTE, to, tag_of(i), MPI_COMM_WORLD, &requests[i % window]);
    }
    MPI_Isend(&messages, 1, MPI_INT, to, LAST, MPI_COMM_WORLD, &last);
    MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
    MPI_Wait(&last, MPI_STATUS_IGNORE);
    free(buffers);
    free(requests);
}

static long most;

static void sample(void) {
    long now = resident_kib();
    if (now > most) most = now;
}

/* State of the thread that prints samples. It makes no MPI calls. */
static struct {
    pthread_t thread;
    long interval_ms, start_kib;
    struct timespec began;
    int stop; /* atomic */
} printer;

static void *print_samples(void *unused) {
    struct timespec interval = {printer.interval_ms / 1000, printer.interval_ms % 1000 * 1000000}, now;
    while (!__atomic_load_n(&printer.stop, __ATOMIC_RELAXED)) {
        long growth = resident_kib() - printer.start_kib;
        clock_gettime(CLOCK_MONOTONIC, &now);
        double since = now.tv_sec - printer.began.tv_sec + (now.tv_nsec - printer.began.tv_nsec) * 1e-9;
        printf("memory s=%.4f growth_kib=%ld\n", since, growth);
        fflush(stdout); /* A job that is killed leaves the samples taken so far. */
        nanosleep(&interval, NULL);
    }
    return unused;
}

static void start_printer(long interval_ms, long start_kib) {
    printer.interval_ms = interval_ms;
    printer.start_kib = start_kib;
    clock_gettime(CLOCK_MONOTONIC, &printer.began);
    if (interval_ms > 0 && pthread_create(&printer.thread, NULL, print_samples, NULL)) MPI_Abort(MPI_COMM_WORLD, 2);
}

static void stop_printer(void) {
    if (printer.interval_ms <= 0) return;
    __atomic_store_n(&printer.stop, 1, __ATOMIC_RELAXED);
    pthread_join(printer.thread, NULL);
}

static void wait_for_last(int from, int messages) {
    int count;
    MPI_Recv(&count, 1, MPI_INT, from, LAST, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (count != messages) MPI_Abort(MPI_COMM_WORLD, 3);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 6 || argc > 7 || atoi(argv[1]) != ranks - 1) {
        fprintf(stderr, "usage: flood SENDERS MESSAGES BYTES blocking|nonblocking late|reversed|anybody|head [SAMPLE_MS], with SENDERS + 1 ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int senders = ranks - 1, messages = atoi(argv[2]), bytes = atoi(argv[3]);
    int blocking = !strcmp(argv[4], "blocking"), late = strcmp(argv[5], "head") != 0, anybody = !strcmp(argv[5], "anybody");
    many_tags = !strcmp(argv[5], "reversed");
    int *most_tag, known;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most_tag, &known);
    if (!known || (many_tags && messages > *most_tag - FIRST_OF_MANY)) {
        fprintf(stderr, "flood: %d messages need as many tags, and this MPI has tags up to %d\n", messages, known ? *most_tag : 0);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int *received = calloc(ranks, sizeof *received); /* by sender */
    unsigned char *buffer = malloc(bytes + 1);
    memset(buffer, 0, bytes + 1);
    long start = resident_kib(), start_sum = 0, waited, waited_sum = 0, end, end_sum = 0;
    most = start;
    MPI_Reduce(&start, &start_sum, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) start_printer(argc > 6 ? atol(argv[6]) : 0, start);
    double began = MPI_Wtime(), wait_ended, began_cpu = processor_s(), wait_ended_cpu;
    int from_first = late ? 1 : (rank + senders) % ranks, from_last = late ? senders : from_first;
    if (!late || rank > 0) send_all(late ? 0 : (rank + 1) % ranks, messages, bytes, blocking);
    if (late && rank == 0)
        for (int from = 1; from <= senders; from++) wait_for_last(from, messages);
    wait_ended = MPI_Wtime();
    wait_ended_cpu = processor_s();
    waited = resident_kib();
    sample();
    if (!late || rank == 0)
        for (int i = 0; i < messages; i++)
            for (int from = from_first; from <= from_last; from++) {
                MPI_Status status;
                int tag = tag_of(many_tags ? messages - 1 - i : i);
                MPI_Recv(buffer, bytes, MPI_BYTE, anybody ? MPI_ANY_SOURCE : from, tag, MPI_COMM_WORLD, &status);
                int number = received[status.MPI_SOURCE]++;
                check(buffer, bytes, status.MPI_SOURCE, many_tags ? messages - 1 - number : number);
                if (messages >= SAMPLES && i % (messages / SAMPLES) == 0 && from == from_first) sample();
            }
    if (!late) wait_for_last(from_first, messages);
    double ended = MPI_Wtime(), cpu = processor_s() - began_cpu, drain_cpu = processor_s() - wait_ended_cpu, all_cpu = 0;
    MPI_Reduce(&cpu, &all_cpu, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&waited, &waited_sum, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    /* A short time of polling without messages, in which late packets arrive and memory is released. */
    for (double until = MPI_Wtime() + 0.3; MPI_Wtime() < until;) {
        int found;
        MPI_Iprobe(MPI_ANY_SOURCE, NEVER, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) stop_printer();
    end = resident_kib();
    MPI_Reduce(&end, &end_sum, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("flood senders=%d messages=%d bytes=%d sends=%s pattern=%s start_kib=%ld waited_growth_kib=%ld peak_growth_kib=%ld "
               "end_growth_kib=%ld all_start_kib=%ld all_waited_growth_kib=%ld all_end_growth_kib=%ld wait_s=%.3f drain_s=%.3f total_s=%.3f "
               "drain_cpu_s=%.3f all_cpu_s=%.3f\n",
               senders, messages, bytes, blocking ? "blocking" : "nonblocking", argv[5], start, waited - start,
               most - start, end - start, start_sum, waited_sum - start_sum, end_sum - start_sum, wait_ended - began, ended - wait_ended,
               ended - began, drain_cpu, all_cpu);
    free(buffer);
    free(received);
    MPI_Finalize();
    return 0;
}
