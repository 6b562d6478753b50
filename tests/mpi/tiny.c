/* Initialises and finalises MPI: a run that is shorter than the sampling interval of traces.
 *
 * usage: tiny
 */
#include <mpi.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Finalize();
    return 0;
}
