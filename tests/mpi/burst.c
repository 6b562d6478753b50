/* Two bursts in which every rank sends to every rank, each followed by a pause without messages.
 *
 * Each rank prints its memory after MPI_Init, after each burst and after each pause:
 *   memory rank 3 after pause 1: anonymous 4096 KiB, shared 120 KiB
 * In a pause a rank polls for messages, as a waiting program does.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MESSAGES = 20, BYTES = 4000 };
static int rank, ranks;

static void print_memory(const char *when, int number) {
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    long anonymous = -1, shared = -1;
    while (status != NULL && fgets(line, sizeof line, status) != NULL) {
        sscanf(line, "RssAnon: %ld", &anonymous);
        sscanf(line, "RssShmem: %ld", &shared);
    }
    if (status != NULL)
        fclose(status);
    printf("memory rank %d after %s %d: anonymous %ld KiB, shared %ld KiB\n", rank, when, number, anonymous, shared);
    fflush(stdout);
}

static void burst(void) {
    static unsigned char out[BYTES], in[MESSAGES][BYTES];
    MPI_Request requests[2 * MESSAGES];
    for (int step = 0; step < ranks; step++) {
        int to = (rank + step) % ranks, from = (rank + ranks - step) % ranks;
        memset(out, rank, sizeof out);
        for (int i = 0; i < MESSAGES; i++) {
            MPI_Irecv(in[i], BYTES, MPI_BYTE, from, i, MPI_COMM_WORLD, &requests[2 * i]);
            MPI_Isend(out, BYTES, MPI_BYTE, to, i, MPI_COMM_WORLD, &requests[2 * i + 1]);
        }
        MPI_Waitall(2 * MESSAGES, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < MESSAGES; i++)
            for (int byte = 0; byte < BYTES; byte++)
                if (in[i][byte] != (unsigned char)from) {
                    fprintf(stderr, "rank %d: byte %d of message %d from %d is wrong\n", rank, byte, i, from);
                    MPI_Abort(MPI_COMM_WORLD, 1);
                }
    }
}

int main(int argc, char **argv) {
    double pause_s = argc > 1 ? atof(argv[1]) : 3;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    print_memory("start", 0);
    for (int round = 0; round < 2; round++) {
        burst();
        print_memory("burst", round);
        for (double end = MPI_Wtime() + pause_s; MPI_Wtime() < end;) {
            int found;
            MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
            usleep(1000);
        }
        print_memory("pause", round);
    }
    MPI_Finalize();
    return 0;
}
