/* Collective operations, blocking and non-blocking. */

#include "translate.h"

int imb_MPI_Barrier(Comm c) { return result(MPI_Barrier(comm(c))); }

int imb_MPI_Bcast(void *data, int count, Type t, int root, Comm c) {
    return result(MPI_Bcast(data, count, type(t), rank(root), comm(c)));
}

int imb_MPI_Reduce(const void *in, void *out, int count, Type t, Op o, int root, Comm c) {
    return result(MPI_Reduce(place(in), out, count, type(t), op(o), rank(root), comm(c)));
}

int imb_MPI_Reduce_local(const void *in, void *inout, int count, Type t, Op o) {
    return result(MPI_Reduce_local(in, inout, count, type(t), op(o)));
}

int imb_MPI_Allreduce(const void *in, void *out, int count, Type t, Op o, Comm c) {
    return result(MPI_Allreduce(place(in), out, count, type(t), op(o), comm(c)));
}

int imb_MPI_Reduce_scatter(const void *in, void *out, const int counts[], Type t, Op o, Comm c) {
    return result(MPI_Reduce_scatter(place(in), out, counts, type(t), op(o), comm(c)));
}

int imb_MPI_Reduce_scatter_block(const void *in, void *out, int count, Type t, Op o, Comm c) {
    return result(MPI_Reduce_scatter_block(place(in), out, count, type(t), op(o), comm(c)));
}

int imb_MPI_Gather(const void *out, int out_count, Type out_type, void *in, int in_count, Type in_type, int root, Comm c) {
    return result(MPI_Gather(place(out), out_count, type(out_type), in, in_count, type(in_type), rank(root), comm(c)));
}

int imb_MPI_Gatherv(const void *out, int out_count, Type out_type, void *in, const int counts[], const int places[],
                    Type in_type, int root, Comm c) {
    return result(MPI_Gatherv(place(out), out_count, type(out_type), in, counts, places, type(in_type), rank(root), comm(c)));
}

int imb_MPI_Scatter(const void *out, int out_count, Type out_type, void *in, int in_count, Type in_type, int root, Comm c) {
    return result(MPI_Scatter(out, out_count, type(out_type), place(in), in_count, type(in_type), rank(root), comm(c)));
}

int imb_MPI_Scatterv(const void *out, const int counts[], const int places[], Type out_type, void *in, int in_count,
                     Type in_type, int root, Comm c) {
    return result(MPI_Scatterv(out, counts, places, type(out_type), place(in), in_count, type(in_type), rank(root), comm(c)));
}

int imb_MPI_Allgather(const void *out, int out_count, Type out_type, void *in, int in_count, Type in_type, Comm c) {
    return result(MPI_Allgather(place(out), out_count, type(out_type), in, in_count, type(in_type), comm(c)));
}

int imb_MPI_Allgatherv(const void *out, int out_count, Type out_type, void *in, const int counts[], const int places[],
                       Type in_type, Comm c) {
    return result(MPI_Allgatherv(place(out), out_count, type(out_type), in, counts, places, type(in_type), comm(c)));
}

int imb_MPI_Alltoall(const void *out, int out_count, Type out_type, void *in, int in_count, Type in_type, Comm c) {
    return result(MPI_Alltoall(place(out), out_count, type(out_type), in, in_count, type(in_type), comm(c)));
}

int imb_MPI_Alltoallv(const void *out, const int out_counts[], const int out_places[], Type out_type, void *in,
                      const int in_counts[], const int in_places[], Type in_type, Comm c) {
    return result(MPI_Alltoallv(place(out), out_counts, out_places, type(out_type), in, in_counts, in_places, type(in_type),
                                comm(c)));
}

int imb_MPI_Ibarrier(Comm c, Request *request) { START(MPI_Ibarrier(comm(c), &ours)); }

int imb_MPI_Ibcast(void *data, int count, Type t, int root, Comm c, Request *request) {
    START(MPI_Ibcast(data, count, type(t), rank(root), comm(c), &ours));
}

int imb_MPI_Ireduce(const void *in, void *out, int count, Type t, Op o, int root, Comm c, Request *request) {
    START(MPI_Ireduce(place(in), out, count, type(t), op(o), rank(root), comm(c), &ours));
}

int imb_MPI_Iallreduce(const void *in, void *out, int count, Type t, Op o, Comm c, Request *request) {
    START(MPI_Iallreduce(place(in), out, count, type(t), op(o), comm(c), &ours));
}

int imb_MPI_Ireduce_scatter(const void *in, void *out, const int counts[], Type t, Op o, Comm c, Request *request) {
    START(MPI_Ireduce_scatter(place(in), out, counts, type(t), op(o), comm(c), &ours));
}

int imb_MPI_Igather(const void *out, int out_count, Type out_type, void *in, int in_count, Type in_type, int root, Comm c,
                    Request *request) {
    START(MPI_Igather(place(out), out_count, type(out_type), in, in_count, type(in_type), rank(root), comm(c), &ours));
}

int imb_MPI_Igatherv(const void *out, int out_count, Type out_type, void *in, const int counts[], const int places[],
                     Type in_type, int root, Comm c, Request *request) {
    START(MPI_Igatherv(place(out), out_count, type(out_type), in, counts, places, type(in_type), rank(root), comm(c), &ours));
}

int imb_MPI_Iscatter(const void *out, int out_count, Type out_type, void *in, int in_count, Type in_type, int root, Comm c,
                     Request *request) {
    START(MPI_Iscatter(out, out_count, type(out_type), place(in), in_count, type(in_type), rank(root), comm(c), &ours));
}

int imb_MPI_Iscatterv(const void *out, const int counts[], const int places[], Type out_type, void *in, int in_count,
                      Type in_type, int root, Comm c, Request *request) {
    START(MPI_Iscatterv(out, counts, places, type(out_type), place(in), in_count, type(in_type), rank(root), comm(c), &ours));
}

int imb_MPI_Iallgather(const void *out, int out_count, Type out_type, void *in, int in_count, Type in_type, Comm c,
                       Request *request) {
    START(MPI_Iallgather(place(out), out_count, type(out_type), in, in_count, type(in_type), comm(c), &ours));
}

int imb_MPI_Iallgatherv(const void *out, int out_count, Type out_type, void *in, const int counts[], const int places[],
                        Type in_type, Comm c, Request *request) {
    START(MPI_Iallgatherv(place(out), out_count, type(out_type), in, counts, places, type(in_type), comm(c), &ours));
}

int imb_MPI_Ialltoall(const void *out, int out_count, Type out_type, void *in, int in_count, Type in_type, Comm c,
                      Request *request) {
    START(MPI_Ialltoall(place(out), out_count, type(out_type), in, in_count, type(in_type), comm(c), &ours));
}

int imb_MPI_Ialltoallv(const void *out, const int out_counts[], const int out_places[], Type out_type, void *in,
                       const int in_counts[], const int in_places[], Type in_type, Comm c, Request *request) {
    START(MPI_Ialltoallv(place(out), out_counts, out_places, type(out_type), in, in_counts, in_places, type(in_type), comm(c),
                         &ours));
}
