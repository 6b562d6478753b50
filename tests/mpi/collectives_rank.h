/* What the tests of MPI's collective operations share: who this rank is, how it fails, and the same numbers at all ranks. */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

static int rank, ranks;
/* Where a rank writes its error, if that is wanted. */
static const char *directory;

static void fail(const char *what, int round) {
    printf("rank %d: round %d: %s\n", rank, round, what);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void check(int error) {
    if (error == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(error, text, &length);
#ifdef MPI_ABI_VERSION
    /* MPICH 5.0 gives the texts of its own numbers of classes, also to a program of the standard ABI. */
    int class = MPI_SUCCESS;
    MPI_Error_class(error, &class);
    if (class == MPI_ERR_PROC_ABORTED) length = snprintf(text, sizeof text, "Process failed");
#endif
    if (directory) { /* before printing: the launcher may have ended */
        char path[4096];
        snprintf(path, sizeof path, "%s/%d", directory, rank);
        FILE *file = fopen(path, "w");
        if (file) {
            fprintf(file, "%.*s", length, text);
            fclose(file);
        }
    }
    printf("rank %d: error: %.*s\n", rank, length, text);
    fflush(stdout);
    _exit(3);
}

static long performed(void) {
    unsigned long (*count)(void) = (unsigned long (*)(void))dlsym(RTLD_DEFAULT, "weir_mpi_performed");
    return count ? (long)count() : -1;
}

/* The same numbers at all ranks, if the state is the same. */
static unsigned next(unsigned long *state) {
    *state = *state * 6364136223846793005ul + 1442695040888963407ul;
    return (unsigned)(*state >> 33);
}
