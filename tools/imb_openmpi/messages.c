/* Messages between two ranks. */

#include "translate.h"
#include <stdlib.h>

int imb_MPI_Get_count(const Status *status, Type t, int *count) {
    MPI_Status ours = {0};
    MPI_Count bytes = (MPI_Count)(status->count_hi_and_cancelled / 2) << 32 | (unsigned)status->count_lo;
    int code = MPI_Status_set_elements_x(&ours, MPI_BYTE, bytes);
    return result(code == MPI_SUCCESS ? MPI_Get_count(&ours, type(t), count) : code);
}

int imb_MPI_Send(const void *data, int count, Type t, int to, int tag, Comm c) {
    return result(MPI_Send(data, count, type(t), rank(to), tag, comm(c)));
}

int imb_MPI_Recv(void *data, int count, Type t, int from, int tag, Comm c, Status *status) {
    MPI_Status ours;
    int code = MPI_Recv(data, count, type(t), rank(from), tag, comm(c), is_wanted(status) ? &ours : MPI_STATUS_IGNORE);
    return result_and_status(code, status, &ours);
}

int imb_MPI_Sendrecv(const void *out, int out_count, Type out_type, int to, int out_tag, void *in, int in_count,
                     Type in_type, int from, int in_tag, Comm c, Status *status) {
    MPI_Status ours;
    int code = MPI_Sendrecv(out, out_count, type(out_type), rank(to), out_tag, in, in_count, type(in_type), rank(from),
                            in_tag, comm(c), is_wanted(status) ? &ours : MPI_STATUS_IGNORE);
    return result_and_status(code, status, &ours);
}

int imb_MPI_Sendrecv_replace(void *data, int count, Type t, int to, int out_tag, int from, int in_tag, Comm c,
                             Status *status) {
    MPI_Status ours;
    int code = MPI_Sendrecv_replace(data, count, type(t), rank(to), out_tag, rank(from), in_tag, comm(c),
                                    is_wanted(status) ? &ours : MPI_STATUS_IGNORE);
    return result_and_status(code, status, &ours);
}

int imb_MPI_Isend(const void *data, int count, Type t, int to, int tag, Comm c, Request *request) {
    START(MPI_Isend(data, count, type(t), rank(to), tag, comm(c), &ours));
}

int imb_MPI_Irecv(void *data, int count, Type t, int from, int tag, Comm c, Request *request) {
    START(MPI_Irecv(data, count, type(t), rank(from), tag, comm(c), &ours));
}

int imb_MPI_Wait(Request *request, Status *status) {
    MPI_Request ours = request_of(*request);
    MPI_Status ours_status;
    int code = MPI_Wait(&ours, is_wanted(status) ? &ours_status : MPI_STATUS_IGNORE);
    *request = handle_of_request(ours);
    return result_and_status(code, status, &ours_status);
}

int imb_MPI_Waitall(int count, Request requests[], Status statuses[]) {
    MPI_Request *ours = malloc(count * sizeof *ours + 1);
    MPI_Status *ours_statuses = is_wanted(statuses) ? malloc(count * sizeof *ours_statuses + 1) : MPI_STATUSES_IGNORE;
    if (!ours || (is_wanted(statuses) && !ours_statuses))
        abort();
    for (int i = 0; i < count; i++)
        ours[i] = request_of(requests[i]);
    int code = MPI_Waitall(count, ours, ours_statuses);
    for (int i = 0; i < count; i++) {
        requests[i] = handle_of_request(ours[i]);
        if (is_wanted(statuses)) {
            copy_status(&statuses[i], &ours_statuses[i]);
            statuses[i].error = code == MPI_SUCCESS ? code : result(ours_statuses[i].MPI_ERROR);
        }
    }
    free(ours);
    if (is_wanted(statuses))
        free(ours_statuses);
    return result(code);
}
