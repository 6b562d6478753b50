/* Endless traffic in which one rank dies.
 *
 * usage: traffic DIRECTORY MODE VICTIM ROUND
 *
 * Every rank writes its process id to DIRECTORY/RANK. In round ROUND the rank VICTIM kills itself with SIGKILL between
 * its sends. With VICTIM -1 no rank does, and a test kills from outside. MODE is the action of the other ranks:
 *   exchange  all ranks send small and large messages to all ranks
 *   wait      all ranks receive from the victim
 *   any       all ranks receive from any source
 *   barrier   all ranks are in a barrier
 * A rank that gets an error prints it and ends with status 3.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 64, SMALL_BYTES = 700, LARGE_BYTES = 300000 };

static int rank, ranks;

static void check(int error) {
    if (error == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(error, text, &length);
    printf("rank %d: error: %.*s\n", rank, length, text);
    fflush(stdout);
    _exit(3);
}

static void note_process(const char *directory) {
    char path[4096], ready[4100];
    snprintf(path, sizeof path, "%s/%d", directory, rank);
    snprintf(ready, sizeof ready, "%s.new", path);
    FILE *file = fopen(ready, "w");
    if (!file) MPI_Abort(MPI_COMM_WORLD, 2);
    fprintf(file, "%d", (int)getpid());
    fclose(file);
    rename(ready, path);
}

static void exchange(int dies) {
    static char out[LARGE_BYTES], in[MOST][LARGE_BYTES];
    MPI_Request requests[2 * MOST];
    int count = 0;
    for (int peer = 0; peer < ranks; peer++)
        check(MPI_Irecv(in[peer], LARGE_BYTES, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &requests[count++]));
    for (int peer = 0; peer < ranks; peer++) {
        if (dies && peer == ranks / 2) raise(SIGKILL);
        int bytes = (rank + peer) % 3 ? SMALL_BYTES : LARGE_BYTES;
        check(MPI_Isend(out, bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &requests[count++]));
    }
    check(MPI_Waitall(count, requests, MPI_STATUSES_IGNORE));
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (argc != 5 || ranks > MOST) MPI_Abort(MPI_COMM_WORLD, 2);
    const char *mode = argv[2];
    int victim = atoi(argv[3]), round = atoi(argv[4]), nothing;
    note_process(argv[1]);
    for (int now = 0;; now++) {
        int last = victim >= 0 && now == round;
        if (!last || !strcmp(mode, "exchange")) exchange(last && rank == victim);
        if (last && rank == victim) {
            usleep(200000); /* until the others wait */
            raise(SIGKILL);
        }
        if (last && !strcmp(mode, "wait")) check(MPI_Recv(&nothing, 1, MPI_INT, victim, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        if (last && !strcmp(mode, "any")) check(MPI_Recv(&nothing, 1, MPI_INT, MPI_ANY_SOURCE, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        if (last && !strcmp(mode, "barrier")) check(MPI_Barrier(MPI_COMM_WORLD));
    }
}
