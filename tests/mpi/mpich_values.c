/* Compares the values of MPICH that tools/imb_openmpi/mpich.h states with MPICH's own header. Its status is the number of wrong ones. */

#include "../../tools/imb_openmpi/mpich.h"
#include <mpi.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

static int wrong;

static void compare(const char *name, int stated, int real) {
    if (stated != real) {
        printf("%s is %#x, and the header of MPICH says %#x\n", name, stated, real);
        wrong++;
    }
}

#define COMPARE(name, value) compare("MPI_" #name, (int)(value), (int)(intptr_t)(MPI_##name));
#define COMPARE_FIELD(stated, real) \
    compare("the offset of " #real, offsetof(struct mpich_status, stated), offsetof(MPI_Status, real));

int main(void) {
    MPICH_VALUES(COMPARE)
    MPICH_SAME_VALUES(COMPARE)
    MPICH_TYPES(COMPARE)
    MPICH_OPERATIONS(COMPARE)
    MPICH_ERRORS(COMPARE)
    COMPARE_FIELD(count_lo, count_lo)
    COMPARE_FIELD(count_hi_and_cancelled, count_hi_and_cancelled)
    COMPARE_FIELD(source, MPI_SOURCE)
    COMPARE_FIELD(tag, MPI_TAG)
    COMPARE_FIELD(error, MPI_ERROR)
    compare("the size of a status", sizeof(struct mpich_status), sizeof(MPI_Status));
    return wrong;
}
