/* A program for MPICH that uses what tools/imb_openmpi translates, and checks each result. It runs with 3 ranks. */

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int me, wrong;

#define IS(what, found, wanted) is(__LINE__, what, (long)(found), (long)(wanted))
static void is(int line, const char *what, long found, long wanted) {
    if (found != wanted) {
        printf("rank %d, line %d: %s is %ld, not %ld\n", me, line, what, found, wanted);
        wrong++;
    }
}

static void messages(int next, int before) {
    int sent[4] = {me, 1, 2, 3}, found[4] = {-1, -1, -1, -1}, count;
    MPI_Status status, statuses[2];
    MPI_Request requests[3];

    MPI_Sendrecv(sent, 3, MPI_INT, next, 5, found, 4, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_INT, &count);
    IS("the count", count, 3);
    IS("the source", status.MPI_SOURCE, before);
    IS("the tag", status.MPI_TAG, 5);
    IS("the data", found[0], before);
    MPI_Get_count(&status, MPI_DOUBLE_INT, &count);
    IS("the count of pairs", count, 1);
    MPI_Get_count(&status, MPI_DOUBLE, &count);
    IS("the count of doubles", count, MPI_UNDEFINED);

    status.MPI_ERROR = 99;
    MPI_Recv(found, 1, MPI_INT, MPI_PROC_NULL, 1, MPI_COMM_WORLD, &status);
    IS("the source", status.MPI_SOURCE, MPI_PROC_NULL);
    IS("the tag", status.MPI_TAG, MPI_ANY_TAG);
    IS("the error", status.MPI_ERROR, 99);
    MPI_Send(sent, 1, MPI_INT, MPI_PROC_NULL, 1, MPI_COMM_WORLD);

    MPI_Irecv(found, 2, MPI_CHAR, before, 7, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend("ab", 2, MPI_CHAR, next, 7, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, statuses);
    IS("the source", statuses[0].MPI_SOURCE, before);
    MPI_Get_count(&statuses[0], MPI_CHAR, &count);
    IS("the count", count, 2);
    IS("the data", memcmp(found, "ab", 2), 0);
    IS("the request", requests[0] == MPI_REQUEST_NULL && requests[1] == MPI_REQUEST_NULL, 1);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);

    found[0] = me + 10;
    MPI_Sendrecv_replace(found, 1, MPI_INT, next, 8, before, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    IS("the data", found[0], before + 10);
    MPI_Ibarrier(MPI_COMM_WORLD, &requests[2]);
    MPI_Wait(&requests[2], MPI_STATUS_IGNORE);
    IS("the request", requests[2], MPI_REQUEST_NULL);
    MPI_Wait(&requests[2], &status);
    IS("the source of no request", status.MPI_SOURCE, MPI_ANY_SOURCE);
}

static MPI_Datatype expected;
static int calls;

static void keep_the_larger(void *in, void *inout, int *length, MPI_Datatype *type) {
    int *from = in, *to = inout;
    IS("the type of the operation", *type, expected);
    for (int i = 0; i < *length; i++)
        to[i] = from[i] > to[i] ? from[i] : to[i];
    calls++;
}

static void add_halves(void *in, void *inout, int *length, MPI_Datatype *type) {
    int *from = in, *to = inout;
    MPI_Aint lower, extent;
    MPI_Type_get_extent(*type, &lower, &extent);
    IS("the extent", extent, 4 * sizeof(int));
    for (int i = 0; i < *length; i++)
        to[4 * i] += from[4 * i], to[4 * i + 2] += from[4 * i + 2];
    calls++;
}

static void operations(int ranks) {
    int sum = me + 1, all[3] = {-1, -1, -1}, counts[3] = {1, 1, 1}, places[3] = {0, 1, 2}, found;
    MPI_Op larger, halves;
    MPI_Datatype vector, four;

    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    IS("the sum", sum, ranks * (ranks + 1) / 2);
    struct { double value; int rank; } pair = {me == 1 ? 5.0 : 1.0, me};
    MPI_Allreduce(MPI_IN_PLACE, &pair, 1, MPI_DOUBLE_INT, MPI_MAXLOC, MPI_COMM_WORLD);
    IS("the place of the maximum", pair.rank, 1);
    long bits = 1L << (me + 40);
    MPI_Allreduce(MPI_IN_PLACE, &bits, 1, MPI_LONG, MPI_BOR, MPI_COMM_WORLD);
    IS("the bits", bits, 7L << 40);

    all[me] = me;
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, 1, MPI_INT, MPI_COMM_WORLD);
    IS("the gathered", all[0] == 0 && all[1] == 1 && all[2] == 2, 1);
    all[1] = me == 0 ? 21 : -1;
    MPI_Scatterv(all, counts, places, MPI_INT, me == 0 ? MPI_IN_PLACE : &found, 1, MPI_INT, 0, MPI_COMM_WORLD);
    IS("the part", me == 1 ? found : 21, 21);
    MPI_Gather(me == 0 ? MPI_IN_PLACE : &me, 1, MPI_INT, all, 1, MPI_INT, 0, MPI_COMM_WORLD);
    IS("the gathered", me == 0 ? all[1] : 1, 1);

    expected = MPI_INT;
    MPI_Op_create(keep_the_larger, 1, &larger);
    MPI_Allreduce(&me, &found, 1, MPI_INT, larger, MPI_COMM_WORLD);
    IS("the maximum", found, ranks - 1);

    MPI_Type_vector(2, 1, 2, MPI_INT, &vector);
    MPI_Type_create_resized(vector, 0, 4 * sizeof(int), &four);
    MPI_Type_commit(&four);
    MPI_Type_size(four, &found);
    IS("the size", found, 2 * sizeof(int));
    MPI_Op_create(add_halves, 1, &halves);
    int in[8] = {1, 100, 2, 100, 3, 100, 4, 100}, out[8] = {0};
    MPI_Allreduce(in, out, 2, four, halves, MPI_COMM_WORLD);
    IS("the sums", out[0] == ranks && out[2] == 2 * ranks && out[4] == 3 * ranks && out[6] == 4 * ranks, 1);
    expected = MPI_INT;
    found = 9;
    MPI_Reduce_local(&me, &found, 1, MPI_INT, larger);
    IS("the local maximum", found, 9);
    IS("called", calls >= 1, 1);
    MPI_Type_free(&four);
    IS("the freed type", four, MPI_DATATYPE_NULL);
    MPI_Type_free(&vector);
}

static void communicators(int ranks) {
    MPI_Comm part, all;
    MPI_Group mine, group;
    int found, size, asked[3] = {0, MPI_PROC_NULL, 1}, told[3];

    MPI_Comm_split(MPI_COMM_WORLD, me == 0 ? MPI_UNDEFINED : 0, -me, &part);
    IS("no communicator", part == MPI_COMM_NULL, me == 0);
    if (me != 0) {
        MPI_Comm_size(part, &size);
        IS("the size", size, ranks - 1);
        MPI_Comm_group(part, &mine);
        MPI_Comm_group(MPI_COMM_WORLD, &group);
        MPI_Group_translate_ranks(mine, 3, asked, group, told);
        IS("the last rank", told[0], ranks - 1);
        IS("no rank", told[1], MPI_PROC_NULL);
        IS("the rank before", told[2], ranks - 2);
        asked[0] = 0;
        MPI_Group_translate_ranks(group, 1, asked, mine, told);
        IS("a rank that is not there", told[0], MPI_UNDEFINED);
        MPI_Comm_free(&part);
        IS("the freed communicator", part, MPI_COMM_NULL);
    }
    MPI_Comm_split(MPI_COMM_WORLD, 0, me, &all);
    MPI_Comm_compare(all, MPI_COMM_WORLD, &found);
    IS("the comparison", found, MPI_CONGRUENT);
    MPI_Comm_compare(MPI_COMM_WORLD, MPI_COMM_WORLD, &found);
    IS("the comparison", found, MPI_IDENT);
    MPI_Comm_free(&all);
}

static void windows(int next, int ranks) {
    int *memory, one = 1, found = -1, expected_value = me * 100;
    MPI_Win window;
    MPI_Alloc_mem(2 * sizeof(int), MPI_INFO_NULL, &memory);
    memory[0] = 0;
    memory[1] = 7;
    MPI_Win_create(memory, 2 * sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
    for (int to = 0; to < ranks; to++)
        MPI_Accumulate(&one, 1, MPI_INT, to, 0, 1, MPI_INT, MPI_SUM, window);
    MPI_Win_flush_all(window);
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, next, 0, window);
    MPI_Fetch_and_op(NULL, &found, MPI_INT, next, 0, MPI_NO_OP, window);
    MPI_Win_unlock(next, window);
    IS("the sum at the next", found, ranks);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, next, 0, window);
    MPI_Fetch_and_op(&expected_value, &found, MPI_INT, next, 1, MPI_REPLACE, window);
    MPI_Win_flush(next, window);
    IS("the value before", found, 7);
    int desired = 8;
    MPI_Compare_and_swap(&desired, &expected_value, &found, MPI_INT, next, 1, window);
    MPI_Win_flush(next, window);
    IS("the compared value", found, me * 100);
    MPI_Get(&found, 1, MPI_INT, next, 1, 1, MPI_INT, window);
    MPI_Win_unlock(next, window);
    IS("the swapped value", found, 8);
    MPI_Win_free(&window);
    IS("the freed window", window, MPI_WIN_NULL);
    MPI_Free_mem(memory);
}

int main(int argc, char **argv) {
    int ranks, provided, length;
    char text[MPI_MAX_ERROR_STRING];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    IS("the thread level", provided >= MPI_THREAD_FUNNELED, 1);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    IS("the number of ranks", ranks, 3);
    messages((me + 1) % ranks, (me + ranks - 1) % ranks);
    operations(ranks);
    communicators(ranks);
    windows((me + 1) % ranks, ranks);
    MPI_Error_string(MPI_ERR_TRUNCATE, text, &length);
    IS("the text of an error", strstr(text, "trunc") != NULL || strstr(text, "TRUNC") != NULL, 1);
    IS("its length", length, strlen(text));
    printf("rank %d: %d wrong\n", me, wrong);
    MPI_Finalize();
    return wrong != 0;
}
