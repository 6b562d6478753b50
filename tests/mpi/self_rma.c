/* One-sided operations of a rank to itself. The MPI library works on them between reads of the completion queue.
 *
 * usage: self_rma BYTES
 *
 * Rank 0 adds BYTES to its own window nine times, and checks the sums. The other ranks wait in a barrier. Prints the
 * median time in microseconds.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { REPEATS = 9 };

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
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
    double times[REPEATS];
    for (int i = 0; rank == 0 && i < REPEATS; i++) {
        double began = MPI_Wtime();
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
        MPI_Accumulate(ones, count, MPI_INT, 0, 0, count, MPI_INT, MPI_SUM, window);
        MPI_Win_unlock(0, window);
        times[i] = MPI_Wtime() - began;
    }
    for (int i = 0; rank == 0 && i < count; i++)
        if (window_memory[i] != REPEATS) {
            printf("element %d is %d\n", i, window_memory[i]);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
    if (rank == 0) {
        qsort(times, REPEATS, sizeof *times, compare);
        printf("median %.1f us\n", times[REPEATS / 2] * 1e6);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_free(&window);
    free(ones);
    MPI_Finalize();
    return 0;
}
