/* Lets Intel's MPI benchmarks run under Open MPI. The programs exist only in binary form, with the binary interface of MPICH:
 * handles are integers, and many constants and the status differ from those of Open MPI. tools/imb_openmpi.py makes copies of
 * the programs that call imb_MPI_Send instead of MPI_Send, and so on. This library has these functions. Each translates its
 * arguments, calls the function of Open MPI, and translates the results. So a preloaded library sees Open MPI's own calls.
 *
 * The integer of an object that the program makes is the one that Open MPI gives to programs in Fortran (MPI_Comm_c2f), a
 * small number. MPICH's integers for predefined objects are at least 0x04000000 or negative. The library has only the
 * functions that the programs call. */

#ifndef TRANSLATE_H
#define TRANSLATE_H

#include "mpich.h"
#include <mpi.h>

typedef int Comm, Group, Info, Op, Request, Type, Win;
typedef struct mpich_status Status;

#define DEFINE(name, value) MPICH_##name = (int)(value),
enum { MPICH_VALUES(DEFINE) MPICH_ERRORS(DEFINE) };

/* Open MPI's object for a handle of the program. */
MPI_Comm comm(Comm handle);
MPI_Datatype type(Type handle);
MPI_Group group(Group handle);
MPI_Info info(Info handle);
MPI_Op op(Op handle);
MPI_Request request_of(Request handle);
MPI_Win win(Win handle);

/* The program's handle for an object of Open MPI. */
Type handle_of_type(MPI_Datatype type);
Request handle_of_request(MPI_Request request);

/* Open MPI's rank for one of the program, and the reverse: both have special ranks, such as MPI_PROC_NULL. */
int rank(int rank);
int rank_for_program(int rank);

/* The buffer of a collective call, which may be MPI_IN_PLACE. */
void *place(const void *buffer);

/* The program's error code for one of Open MPI, and the reverse. */
int result(int code);
int error_of(int code);

/* Whether the program has not passed MPI_STATUS_IGNORE. */
int is_wanted(const Status *status);
/* Copies everything but the error. */
void copy_status(Status *status, const MPI_Status *ours);
/* The error code of a call with a status. Like MPICH, it leaves the error in the status as it is. */
int result_and_status(int code, Status *status, const MPI_Status *ours);

/* The error code of a call that begins a request. */
int result_and_request(int code, Request *request, MPI_Request ours);
/* The body of a function that calls `expression`, which sets the request `ours`. */
#define START(expression) \
    MPI_Request ours = MPI_REQUEST_NULL; \
    int code = (expression); \
    return result_and_request(code, request, ours)

#endif
