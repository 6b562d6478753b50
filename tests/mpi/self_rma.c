/* One-sided operations of a rank to itself. The MPI library works on them between reads of the completion queue.
 *
 * usage: self_rma BYTES
 *
 * Rank 0 adds BYTES to its own window nine times, and checks the sums. The other ranks wait in a barrier. Prints how
 * often rank 0 has given up its core to sleep meanwhile (voluntary context switches, getrusage(2)). A yield does not
 * count.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { REPEATS = 9 };

static long sleeps(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc != 2) {
        fprintf(stderr, "usage: self_rma BYTES\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int bytes = atoi(argv[1]), count = bytes / (int)sizeof(int);
    int *window_memory, *ones = malloc(bytes);
    MPI_Win window;
    MPI_Win_allocate(bytes, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &window_memory, &window);
    for (int i = 0; i < count; i++) {
        ones[i] = 1;
        window_memory[i] = 0;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    long before = sleeps();
    for (int i = 0; rank == 0 && i < REPEATS; i++) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
        MPI_Accumulate(ones, count, MPI_INT, 0, 0, count, MPI_INT, MPI_SUM, window);
        MPI_Win_unlock(0, window);
    }
    long slept = sleeps() - before;
    for (int i = 0; rank == 0 && i < count; i++)
        if (window_memory[i] != REPEATS) {
            printf("element %d is %d\n", i, window_memory[i]);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
    if (rank == 0)
        printf("%d operations, %ld sleeps\n", REPEATS, slept);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_free(&window);
    free(ones);
    MPI_Finalize();
    return 0;
}
