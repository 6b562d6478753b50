/* One-sided operations to a rank that waits in a barrier.
 *
 * usage: waiting_target OPERATIONS
 *
 * Rank 0 counts in the window of rank 1 by MPI_Fetch_and_op, each complete before the next. Rank 1 is in MPI_Barrier
 * meanwhile, where the library has to work on them. Prints how often rank 1 has given up its core to sleep (voluntary
 * context switches, getrusage(2)). A yield does not count.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static long sleeps(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long operations = argc == 2 ? atol(argv[1]) : 0;
    if (ranks != 2 || operations <= 0) {
        fprintf(stderr, "usage: 2 ranks, waiting_target OPERATIONS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    long *count;
    MPI_Win window;
    MPI_Win_allocate(sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &count, &window);
    *count = 0;
    MPI_Win_lock_all(0, window);
    for (int i = 0; i < 20; i++) /* the group of the communicator is made meanwhile */
        MPI_Barrier(MPI_COMM_WORLD);
    long before = sleeps();
    for (long i = 0; rank == 0 && i < operations; i++) {
        long one = 1, found = -1;
        MPI_Fetch_and_op(&one, &found, MPI_LONG, 1, 0, MPI_SUM, window);
        MPI_Win_flush(1, window);
        if (found != i) {
            printf("operation %ld found %ld\n", i, found);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(window);
    if (rank == 1)
        printf("%ld operations, %ld sleeps of the target\n", *count, sleeps() - before);
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
