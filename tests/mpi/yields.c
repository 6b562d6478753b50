/* Counts calls of sched_yield in receives of arrived messages, in a receive of a late message, and in round trips.
 *
 * usage: yields MESSAGES
 *
 * Rank 1 sends MESSAGES, and a last one. Rank 0 receives the last one first, so that all have arrived, then the others.
 * Then it receives a message before which rank 1 sleeps for 0.1 s. Then MESSAGES travel to rank 1 and back, one at a time.
 * The program replaces sched_yield of the C library to count calls. It prints a line of key=value.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long yields;

int sched_yield(void) {
    yields++;
    return (int)syscall(SYS_sched_yield);
}

int main(int argc, char **argv) {
    int rank, value = 0, messages = argc == 2 ? atoi(argv[1]) : 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (messages < 1) {
        fprintf(stderr, "usage: yields MESSAGES\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (rank == 1) {
        for (int i = 0; i <= messages; i++) MPI_Send(&i, 1, MPI_INT, 0, i == messages, MPI_COMM_WORLD);
        MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        nanosleep(&(struct timespec){0, 100000000}, NULL);
        MPI_Send(&value, 1, MPI_INT, 0, 2, MPI_COMM_WORLD);
    } else if (rank == 0) {
        MPI_Recv(&value, 1, MPI_INT, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        long before = yields;
        for (int i = 0; i < messages; i++) {
            MPI_Recv(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (value != i) {
                printf("message %d is %d\n", i, value);
                MPI_Abort(MPI_COMM_WORLD, 3);
            }
        }
        long found = yields;
        MPI_Send(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(&value, 1, MPI_INT, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        printf("receives=%d yields=%ld waiting=%ld", messages, found - before, yields - found);
    }
    if (rank < 2) {
        long before = yields;
        for (int i = 0; i < messages; i++) {
            if (rank == 0) MPI_Send(&i, 1, MPI_INT, 1, 3, MPI_COMM_WORLD);
            MPI_Recv(&value, 1, MPI_INT, 1 - rank, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (rank == 1) MPI_Send(&value, 1, MPI_INT, 0, 3, MPI_COMM_WORLD);
        }
        if (rank == 0) printf(" round_trips=%ld\n", yields - before);
    }
    MPI_Finalize();
    return 0;
}
