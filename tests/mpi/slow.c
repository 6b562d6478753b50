/* All ranks send to rank 0, which is outside MPI at first.
 *
 * usage: slow SECONDS MESSAGES BYTES
 *
 * Barriers of half a second connect all ranks. Then rank 0 stays outside MPI for SECONDS. Then it receives MESSAGES
 * messages of BYTES bytes from each other rank and checks every byte. It prints "all correct" at the end.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void stay_away(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left)) {
    }
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 4) MPI_Abort(MPI_COMM_WORLD, 2);
    double seconds = atof(argv[1]);
    int messages = atoi(argv[2]), bytes = atoi(argv[3]);
    unsigned char *buffer = malloc(bytes);
    double start = MPI_Wtime();
    int again;
    do {
        again = MPI_Wtime() - start < 0.5;
        MPI_Bcast(&again, 1, MPI_INT, 0, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
    } while (again);
    if (rank == 0) {
        stay_away(seconds);
        for (int number = 0; number < messages; number++) {
            for (int from = 1; from < ranks; from++) {
                MPI_Recv(buffer, bytes, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                for (int i = 0; i < bytes; i++) {
                    if (buffer[i] != (unsigned char)(number * 7 + from)) {
                        printf("message %d of rank %d is wrong at %d\n", number, from, i);
                        MPI_Abort(MPI_COMM_WORLD, 1);
                    }
                }
            }
        }
    } else {
        for (int number = 0; number < messages; number++) {
            memset(buffer, (unsigned char)(number * 7 + rank), bytes);
            MPI_Send(buffer, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("all correct\n");
    free(buffer);
    MPI_Finalize();
    return 0;
}
