/* A late receiver: all messages are sent, and the senders are in MPI_Finalize, long before it receives.
 *
 * usage: late SECONDS MESSAGES BYTES anybody|directed
 *
 * Rank 0 sleeps, then receives MESSAGES of BYTES from each other rank and checks every byte. It receives from any rank
 * (anybody), or from one sender after the other (directed). The program is legal: MPI must deliver a message after
 * MPI_Send has returned. MPI_Send of a long message may wait for rank 0.
 */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 5) {
        fprintf(stderr, "usage: late SECONDS MESSAGES BYTES anybody|directed\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    double seconds = atof(argv[1]);
    int messages = atoi(argv[2]), bytes = atoi(argv[3]), directed = !strcmp(argv[4], "directed");
    unsigned char *buffer = malloc(bytes + 1);
    for (int i = 0; rank > 0 && i < messages; i++) {
        memset(buffer, rank + i, bytes);
        MPI_Send(buffer, bytes, MPI_BYTE, 0, i, MPI_COMM_WORLD);
    }
    if (rank == 0) {
        int next[ranks];
        memset(next, 0, sizeof next);
        struct timespec pause = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
        nanosleep(&pause, NULL);
        for (int i = 0; i < messages * (ranks - 1); i++) {
            MPI_Status status;
            int from = directed ? 1 + i / messages : MPI_ANY_SOURCE;
            MPI_Recv(buffer, bytes, MPI_BYTE, from, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            int number = next[status.MPI_SOURCE]++;
            for (int at = 0; at < bytes; at++)
                if (status.MPI_TAG != number || buffer[at] != (unsigned char)(status.MPI_SOURCE + number)) {
                    printf("message %d of rank %d, tag %d: byte %d is %d\n", number, status.MPI_SOURCE, status.MPI_TAG, at, buffer[at]);
                    MPI_Abort(MPI_COMM_WORLD, 3);
                }
        }
        printf("all %d arrived\n", messages * (ranks - 1));
    }
    free(buffer);
    MPI_Finalize();
    return 0;
}
