#include "translate.h"
#include <stdint.h>

#define CHECK(name, value) _Static_assert((int)(intptr_t)(MPI_##name) == (value), "MPI_" #name " differs");
MPICH_SAME_VALUES(CHECK)

/* Handles. */

#define TYPE_SLOT(handle) (((unsigned)(handle) >> 31 << 7) | ((handle) & 0x7f))
#define TYPE(name, value) [TYPE_SLOT(value)] = {(int)(value), MPI_##name},
static const struct { Type handle; MPI_Datatype type; } types[256] = {MPICH_TYPES(TYPE)};
#define OPERATION(name, value) [(value) & 0xf] = {value, MPI_##name},
static const struct { Op handle; MPI_Op operation; } operations[16] = {MPICH_OPERATIONS(OPERATION)};

MPI_Datatype type(Type handle) {
    unsigned slot = TYPE_SLOT(handle);
    return types[slot].handle == handle ? types[slot].type : MPI_Type_f2c(handle);
}

Type handle_of_type(MPI_Datatype type) {
    for (int slot = 0; slot < 256; slot++)
        if (types[slot].type == type)
            return types[slot].handle;
    return MPI_Type_c2f(type);
}

MPI_Op op(Op handle) {
    return operations[handle & 0xf].handle == handle ? operations[handle & 0xf].operation : MPI_Op_f2c(handle);
}

MPI_Comm comm(Comm handle) {
    switch (handle) {
    case MPICH_COMM_WORLD: return MPI_COMM_WORLD;
    case MPICH_COMM_SELF: return MPI_COMM_SELF;
    case MPICH_COMM_NULL: return MPI_COMM_NULL;
    default: return MPI_Comm_f2c(handle);
    }
}

MPI_Group group(Group handle) {
    switch (handle) {
    case MPICH_GROUP_EMPTY: return MPI_GROUP_EMPTY;
    case MPICH_GROUP_NULL: return MPI_GROUP_NULL;
    default: return MPI_Group_f2c(handle);
    }
}

MPI_Info info(Info handle) {
    switch (handle) {
    case MPICH_INFO_ENV: return MPI_INFO_ENV;
    case MPICH_INFO_NULL: return MPI_INFO_NULL;
    default: return MPI_Info_f2c(handle);
    }
}

MPI_Win win(Win handle) {
    return handle == MPICH_WIN_NULL ? MPI_WIN_NULL : MPI_Win_f2c(handle);
}

MPI_Request request_of(Request handle) {
    return handle == MPICH_REQUEST_NULL ? MPI_REQUEST_NULL : MPI_Request_f2c(handle);
}

Request handle_of_request(MPI_Request request) {
    return request == MPI_REQUEST_NULL ? MPICH_REQUEST_NULL : MPI_Request_c2f(request);
}

/* Ranks, buffers, errors and statuses. */

int rank(int rank) {
    switch (rank) {
    case MPICH_PROC_NULL: return MPI_PROC_NULL;
    case MPICH_ANY_SOURCE: return MPI_ANY_SOURCE;
    case MPICH_ROOT: return MPI_ROOT;
    default: return rank;
    }
}

int rank_for_program(int rank) {
    switch (rank) {
    case MPI_PROC_NULL: return MPICH_PROC_NULL;
    case MPI_ANY_SOURCE: return MPICH_ANY_SOURCE;
    default: return rank;
    }
}

void *place(const void *buffer) {
    return (intptr_t)buffer == MPICH_IN_PLACE ? MPI_IN_PLACE : (void *)buffer;
}

#define ERROR(name, value) {value, MPI_##name},
static const struct { int theirs, ours; } errors[] = {MPICH_ERRORS(ERROR)};
static const int error_count = sizeof errors / sizeof *errors;

int result(int code) {
    int class = MPI_ERR_OTHER;
    if (code == MPI_SUCCESS)
        return code;
    MPI_Error_class(code, &class);
    for (int i = 0; i < error_count; i++)
        if (errors[i].ours == class)
            return errors[i].theirs;
    return MPICH_ERR_OTHER;
}

int error_of(int code) {
    if (code == MPI_SUCCESS)
        return code;
    for (int i = 0; i < error_count; i++)
        if (errors[i].theirs == code)
            return errors[i].ours;
    return MPI_ERR_OTHER;
}

int is_wanted(const Status *status) {
    return (intptr_t)status != MPICH_STATUS_IGNORE;
}

void copy_status(Status *status, const MPI_Status *ours) {
    MPI_Count bytes;
    int is_cancelled;
    MPI_Get_elements_x(ours, MPI_BYTE, &bytes);
    MPI_Test_cancelled(ours, &is_cancelled);
    status->count_lo = (int)bytes;
    status->count_hi_and_cancelled = (int)(bytes >> 32) * 2 + is_cancelled;
    status->source = rank_for_program(ours->MPI_SOURCE);
    status->tag = ours->MPI_TAG;
}

int result_and_status(int code, Status *status, const MPI_Status *ours) {
    if (code == MPI_SUCCESS && is_wanted(status))
        copy_status(status, ours);
    return result(code);
}

int result_and_request(int code, Request *request, MPI_Request ours) {
    *request = code == MPI_SUCCESS ? handle_of_request(ours) : MPICH_REQUEST_NULL;
    return result(code);
}
