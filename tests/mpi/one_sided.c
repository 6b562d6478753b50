/* One-sided operations of rank 0, to itself and to rank 1, which waits in a barrier.
 *
 * usage: one_sided SECONDS BYTES...
 *
 * Each operation is one call between MPI_Win_lock and MPI_Win_unlock, so it is complete at its target when the time is
 * taken. Prints a line for each operation, target and size, with the mean time of an operation. It takes SECONDS for each
 * line. At the end it checks the data of the last operations.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum operation { PUT, GET, ACCUMULATE, OPERATIONS };
static const char *const names[OPERATIONS] = {"put", "get", "accumulate"};

static void run(enum operation operation, int *local, int count, int target, MPI_Win window) {
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, window);
    switch (operation) {
    case PUT: MPI_Put(local, count, MPI_INT, target, 0, count, MPI_INT, window); break;
    case GET: MPI_Get(local, count, MPI_INT, target, 0, count, MPI_INT, window); break;
    default: MPI_Accumulate(local, count, MPI_INT, target, 0, count, MPI_INT, MPI_SUM, window);
    }
    MPI_Win_unlock(target, window);
}

/* Every element must have this value. */
static void check(const char *what, const int *elements, int count, int expected) {
    for (int i = 0; i < count; i++)
        if (elements[i] != expected) {
            fprintf(stderr, "%s: element %d is %d, not %d\n", what, i, elements[i], expected);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
}

static void fill(int *elements, int count, int value) {
    for (int i = 0; i < count; i++)
        elements[i] = value;
}

static void measure(enum operation operation, int target, int count, double seconds, int *local, MPI_Win window) {
    fill(local, count, 0);
    run(PUT, local, count, target, window);
    fill(local, count, 1);
    int times = 1;
    run(operation, local, count, target, window);
    double begin = MPI_Wtime(), end;
    do {
        run(operation, local, count, target, window);
        times++;
        end = MPI_Wtime();
    } while (end - begin < seconds);
    printf("one_sided operation=%s target=%s bytes=%zu us=%.3f times=%d\n", names[operation], target ? "other" : "self",
           count * sizeof(int), (end - begin) / (times - 1) * 1e6, times);
    fflush(stdout);
    run(GET, local, count, target, window);
    check(names[operation], local, count, operation == PUT ? 1 : operation == GET ? 0 : times);
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double seconds = argc > 2 ? atof(argv[1]) : 0;
    int most = 0;
    for (int i = 2; i < argc; i++) {
        int bytes = atoi(argv[i]);
        if (bytes < (int)sizeof(int) || bytes % sizeof(int) != 0)
            seconds = 0;
        if (bytes > most)
            most = bytes;
    }
    if (ranks != 2 || seconds <= 0) {
        if (rank == 0)
            fprintf(stderr, "usage: 2 ranks, one_sided SECONDS BYTES... (multiples of %zu)\n", sizeof(int));
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int *window_memory, *local = malloc(most);
    MPI_Win window;
    MPI_Win_allocate(most, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &window_memory, &window);
    memset(window_memory, 0, most);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int target = 0; rank == 0 && target < 2; target++)
        for (int operation = PUT; operation < OPERATIONS; operation++)
            for (int i = 2; i < argc; i++)
                measure(operation, target, atoi(argv[i]) / (int)sizeof(int), seconds, local, window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_free(&window);
    free(local);
    MPI_Finalize();
    return 0;
}
