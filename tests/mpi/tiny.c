/* Opens MPI and closes it again: a run that is shorter than the sampling interval of traces, or nearly.
 *
 * usage: tiny
 */
#include <mpi.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Finalize();
    return 0;
}
