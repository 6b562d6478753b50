/* A library that counts calls, as tools that measure MPI programs do: it defines some MPI functions and calls PMPI_...
 * At the end, rank 0 prints `counted N`.
 */
#include <mpi.h>
#include <stdio.h>

static long calls;

int MPI_Allreduce(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    calls++;
    return PMPI_Allreduce(in, out, count, type, op, comm);
}

int MPI_Finalize(void) {
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) printf("counted %ld\n", calls);
    return PMPI_Finalize();
}
