/* Four ranks, two on each of two hosts, whose messages share the tokens of admission. Rank 1 floods rank 3 and is killed
 * while its messages are under way, or gets another signal; ranks 0 and 2 exchange messages all the time. Used by test_admission.py.
 *
 * usage: tokens SECONDS_UNTIL_KILL SECONDS_BEHIND [SIGNAL]
 *
 * Ranks 0 and 2 print how many exchanges they have made, the longest time of one, and how they ended: all done, or with
 * an error, and how long after the kill. Every byte is checked. Rank 3 prints how many messages of rank 1 it has
 * received. Nobody calls MPI_Finalize, which would wait for rank 1.
 */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 65536, FLOOD = 32 };

static int rank;
static double kill_s, behind_s;
static int signal_number = SIGKILL;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static void end(int status) {
    fflush(stdout);
    _exit(status);
}

static void flood(double begun) {
    static unsigned char out[FLOOD][BYTES];
    MPI_Request requests[FLOOD];
    for (int i = 0; i < FLOOD; i++) MPI_Isend(out[i], BYTES, MPI_BYTE, 3, 1, MPI_COMM_WORLD, &requests[i]);
    while (now_s() - begun < kill_s) {
        int index;
        MPI_Waitany(FLOOD, requests, &index, MPI_STATUS_IGNORE);
        MPI_Isend(out[index], BYTES, MPI_BYTE, 3, 1, MPI_COMM_WORLD, &requests[index]);
    }
    raise(signal_number);
}

static void receive_flood(double begun) {
    static unsigned char in[BYTES];
    long received = 0;
    double until = begun + kill_s + 2 * behind_s; /* behind the end of the others, who would notice its own */
    while (now_s() < until) {
        MPI_Request request;
        MPI_Status status;
        int done = 0, result = MPI_Irecv(in, BYTES, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &request);
        while (result == MPI_SUCCESS && !done && now_s() < until)
            result = MPI_Test(&request, &done, &status);
        if (result != MPI_SUCCESS) break;
        received += done;
    }
    printf("rank 3: %ld messages before the end\n", received);
    end(0);
}

static void exchange(double begun) {
    static unsigned char out[BYTES], in[BYTES];
    int other = 2 - rank, last = 0;
    long exchanges = 0;
    double longest_s = 0;
    const char *how = "all done";
    for (unsigned char number = 0; !last; number++) {
        double before = now_s();
        memset(out, number + rank, BYTES);
        out[0] = rank == 0 && before - begun >= kill_s + behind_s;
        if (MPI_Sendrecv(out, BYTES, MPI_BYTE, other, 2, in, BYTES, MPI_BYTE, other, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE)) {
            how = "an error";
            break;
        }
        for (int i = 1; i < BYTES; i++)
            if (in[i] != (unsigned char)(number + other)) {
                printf("rank %d: byte %d is wrong\n", rank, i);
                end(3);
            }
        last = rank == 0 ? out[0] : in[0];
        double took_s = now_s() - before;
        exchanges++;
        if (took_s > longest_s) longest_s = took_s;
    }
    printf("rank %d: %ld exchanges, longest %.3f s; %s, %.1f s after the kill\n", rank, exchanges, longest_s, how, now_s() - begun - kill_s);
    end(0);
}

int main(int argc, char **argv) {
    int ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    kill_s = argc > 2 ? atof(argv[1]) : 0;
    behind_s = argc > 2 ? atof(argv[2]) : 0;
    if (argc > 3) signal_number = atoi(argv[3]);
    if (ranks != 4 || kill_s <= 0 || behind_s <= 0) {
        if (rank == 0) fprintf(stderr, "usage: tokens SECONDS_UNTIL_KILL SECONDS_BEHIND [SIGNAL], with 4 ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = now_s();
    printf("rank %d begins\n", rank);
    fflush(stdout);
    if (rank == 1) flood(begun);
    if (rank == 3) receive_flood(begun);
    exchange(begun);
}
