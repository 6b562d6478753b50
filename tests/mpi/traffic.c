/* Endless traffic in which one rank dies. Every byte is checked, and counted in DIRECTORY (`checked.h`).
 *
 * usage: traffic DIRECTORY MODE VICTIM ROUND [FLIP]
 *
 * With FLIP, rank 0 changes a byte of what it sends in that round, so that a test sees whether that is noticed.
 * Every rank writes its process id to DIRECTORY/RANK. In round ROUND the rank VICTIM kills itself with SIGKILL between
 * its sends. With VICTIM -1 no rank does, and a test kills from outside. MODE is the action of the other ranks:
 *   exchange  all ranks send small and large messages to all ranks
 *   wait      all ranks receive from the victim
 *   any       all ranks receive from any source
 *   barrier   all ranks are in a barrier
 * A rank that gets an error prints it, also to DIRECTORY/error.RANK, and ends with status 3.
 */
#include "checked.h"
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, SMALL_BYTES = 700, LARGE_BYTES = 300000 };

static int rank, ranks;
static const char *directory;

static void check(int error) {
    if (error == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    counts->errors++;
    MPI_Error_string(error, text, &length);
    printf("rank %d: error: %.*s\n", rank, length, text);
    fflush(stdout);
    char path[4096];
    snprintf(path, sizeof path, "%s/error.%d", directory, rank);
    FILE *file = fopen(path, "w");
    if (file) fprintf(file, "%.*s", length, text), fclose(file);
    _exit(3);
}

static void note_process(void) {
    char path[4096], ready[4100];
    snprintf(path, sizeof path, "%s/%d", directory, rank);
    snprintf(ready, sizeof ready, "%s.new", path);
    FILE *file = fopen(ready, "w");
    if (!file) MPI_Abort(MPI_COMM_WORLD, 2);
    fprintf(file, "%d", (int)getpid());
    fclose(file);
    rename(ready, path);
}

static int length_of(int from, int to) { return (from + to) % 3 ? SMALL_BYTES : LARGE_BYTES; }

static uint64_t key_of(int from, int to, int now) { return mix((uint64_t)now * MOST * MOST + from * MOST + to); }

static void check_message(const unsigned char *data, int from, int now, const MPI_Status *status) {
    int bytes, wanted = length_of(from, rank), wrong = 0;
    uint64_t key = key_of(from, rank, now);
    MPI_Get_count(status, MPI_BYTE, &bytes);
    for (int at = 0; at < bytes && at < wanted; at += 8) {
        uint64_t word = mix(key + at / 8);
        for (int i = at; i < at + 8 && i < bytes; i++, word >>= 8) wrong += data[i] != (unsigned char)word;
    }
    counts->wrong_bytes += wrong;
    counts->failures += wrong || bytes != wanted;
    counts->checked++, counts->bytes += bytes;
}

static void exchange(int dies, int now, int flips) {
    static unsigned char out[MOST][LARGE_BYTES], in[MOST][LARGE_BYTES];
    MPI_Request requests[2 * MOST];
    MPI_Status statuses[2 * MOST];
    int count = 0;
    for (int peer = 0; peer < ranks; peer++)
        check(MPI_Irecv(in[peer], LARGE_BYTES, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &requests[count++]));
    for (int peer = 0; peer < ranks; peer++) {
        if (dies && peer == ranks / 2) raise(SIGKILL);
        int bytes = length_of(rank, peer);
        for (int i = 0; i < bytes; i++) out[peer][i] = content(key_of(rank, peer, now), i);
        if (flips && peer == ranks - 1) out[peer][bytes / 2] ^= 1;
        counts->sent++;
        check(MPI_Isend(out[peer], bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &requests[count++]));
    }
    check(MPI_Waitall(count, requests, statuses));
    for (int peer = 0; peer < ranks; peer++) check_message(in[peer], peer, now, &statuses[peer]);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (argc < 5 || argc > 6 || ranks > MOST || share_counts(argv[1], rank)) MPI_Abort(MPI_COMM_WORLD, 2);
    directory = argv[1];
    const char *mode = argv[2];
    int victim = atoi(argv[3]), round = atoi(argv[4]), flip = argc > 5 ? atoi(argv[5]) : -1, nothing;
    note_process();
    for (int now = 0;; now++) {
        int last = victim >= 0 && now == round;
        if (!last || !strcmp(mode, "exchange")) exchange(last && rank == victim, now, now == flip && rank == 0);
        if (last && rank == victim) {
            usleep(200000); /* until the others wait */
            raise(SIGKILL);
        }
        if (last && !strcmp(mode, "wait")) check(MPI_Recv(&nothing, 1, MPI_INT, victim, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        if (last && !strcmp(mode, "any")) check(MPI_Recv(&nothing, 1, MPI_INT, MPI_ANY_SOURCE, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        if (last && !strcmp(mode, "barrier")) check(MPI_Barrier(MPI_COMM_WORLD));
    }
}
