/* MPI_Reduce_scatter and MPI_Reduce_scatter_block, and their non-blocking forms, compared with plain loops over the vectors of all ranks, bit by bit.
 *
 * usage: reduce_scatter MODE NUMBER [DIRECTORY]
 *
 *   random   NUMBER calls in several communicators: even and uneven blocks, blocks and vectors without elements, in place or not,
 *            long ones too, blocking or not; elements around the results keep their values
 *   together NUMBER times some non-blocking calls under way together, in a communicator that is freed before they end
 *   even     NUMBER doubles for each rank, by each of both functions once
 *   errors   calls with wrong arguments, for an MPI that checks them
 *   die      the last rank kills itself before its call NUMBER; the others get an error, write it to DIRECTORY/RANK, and end with
 *            status 3
 *
 * Rank 0 prints `performed N`: the operations that groups have done there. N is -1 without libweir-mpi.so.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collectives_rank.h"
#include "reductions.h"

enum { MOST_RANKS = 64, MOST_WORDS = 3000, GUARD = 4 };

#if MPI_VERSION < 4
/* An MPI without these functions gets them from libweir-mpi.so. Programs such as mpi4py call them if they are there. */
#pragma weak MPI_Reduce_scatter_c
#pragma weak MPI_Reduce_scatter_block_c
#pragma weak MPI_Ireduce_scatter_c
#pragma weak MPI_Ireduce_scatter_block_c
int MPI_Reduce_scatter_c(const void *from, void *to, const MPI_Count counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm);
int MPI_Reduce_scatter_block_c(const void *from, void *to, MPI_Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);
int MPI_Ireduce_scatter_c(const void *from, void *to, const MPI_Count counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request *request);
int MPI_Ireduce_scatter_block_c(const void *from, void *to, MPI_Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request *request);
#define IS_THERE(function) ((function) != NULL)
#else
#define IS_THERE(function) 1
#endif

/* The call, which ends in a wait for its request if it has one. */
static int call(int is_block, int large, const void *from, void *to, const int *counts, int members, int type, int op, MPI_Comm comm,
                MPI_Request *request) {
    MPI_Count many[MOST_RANKS];
    MPI_Datatype handle = type_of(type);
    MPI_Op combined = operation_of(op);
    int error;
    for (int at = 0; at < members; at++) many[at] = counts[at];
    if (large && is_block && IS_THERE(MPI_Reduce_scatter_block_c)) {
        if (!request) return MPI_Reduce_scatter_block_c(from, to, many[0], handle, combined, comm);
        error = MPI_Ireduce_scatter_block_c(from, to, many[0], handle, combined, comm, request);
    } else if (large && !is_block && IS_THERE(MPI_Reduce_scatter_c)) {
        if (!request) return MPI_Reduce_scatter_c(from, to, many, handle, combined, comm);
        error = MPI_Ireduce_scatter_c(from, to, many, handle, combined, comm, request);
    } else if (is_block) {
        if (!request) return MPI_Reduce_scatter_block(from, to, counts[0], handle, combined, comm);
        error = MPI_Ireduce_scatter_block(from, to, counts[0], handle, combined, comm, request);
    } else {
        if (!request) return MPI_Reduce_scatter(from, to, counts, handle, combined, comm);
        error = MPI_Ireduce_scatter(from, to, counts, handle, combined, comm, request);
    }
    return error == MPI_SUCCESS ? MPI_Wait(request, MPI_STATUS_IGNORE) : error;
}

struct plan {
    int counts[MOST_RANKS], is_block, is_in_place, type, op, is_whole, is_started;
};

/* One call. What is no result keeps its bytes. */
static void perform(MPI_Comm comm, const struct plan *plan, unsigned long *own, int round) {
    int members, me, words = 0, begin = 0, type = plan->type, width = TYPES[plan->type].bytes;
    MPI_Comm_size(comm, &members);
    MPI_Comm_rank(comm, &me);
    for (int at = 0; at < members; at++) {
        if (at == me) begin = words;
        words += plan->counts[at];
    }
    size_t vector = (size_t)words * (size_t)width, room = vector + 2 * GUARD, block = (size_t)(plan->counts[me] * width);
    char *mine = malloc(room), *all = malloc(vector * (size_t)members + 1), *from = malloc(room), *to = malloc(room), *expected = malloc(room);
    if (!mine || !all || !from || !to || !expected) fail("no memory", round);
    fill(mine, words, type, plan->is_whole, own);
    check(PMPI_Allgather(mine, (int)vector, MPI_BYTE, all, (int)vector, MPI_BYTE, comm));
    memset(expected, 0x5a, room), memset(to, 0x5a, room), memcpy(from, mine, vector);
    if (plan->is_in_place) memcpy(to + GUARD, mine, vector);
    for (int at = 0; at < plan->counts[me]; at++) {
        char word[8];
        size_t place = (size_t)(begin + at) * (size_t)width;
        memcpy(word, all + place, (size_t)width);
        for (int member = 1; member < members; member++) combine(type, plan->op, word, all + (size_t)member * vector + place);
        memcpy(expected + GUARD + (size_t)(at * width), word, (size_t)width);
    }
    long before = performed();
    MPI_Request request;
    check(call(plan->is_block, next(own) % 4 == 0, plan->is_in_place ? MPI_IN_PLACE : from, to + GUARD, plan->counts, members, type,
               plan->op, comm, plan->is_started ? &request : NULL));
    int is_exact = is_float(type) ? plan->is_whole || plan->op > PRODUCT : is_known(type, plan->op);
    int is_compared = is_exact || performed() > before;
    if (is_compared && memcmp(to + GUARD, expected + GUARD, block)) fail("another result", round);
    if (memcmp(to, expected, GUARD) || memcmp(to + room - GUARD, expected + room - GUARD, GUARD)) fail("bytes around the buffer", round);
    if (!plan->is_in_place && memcmp(to + GUARD + block, expected + GUARD + block, vector - block)) fail("bytes behind the block", round);
    if (memcmp(from, mine, vector)) fail("the given vector", round);
    free(mine), free(all), free(from), free(to), free(expected);
}

static void draw_counts(struct plan *plan, int members, unsigned long *shared) {
    int kind = (int)(next(shared) % 6), most = next(shared) % 4 ? 20 : MOST_WORDS / members, chosen = (int)(next(shared) % (unsigned)members);
    int even = (int)(next(shared) % (unsigned)most);
    plan->is_block = kind < 2;
    for (int at = 0; at < members; at++) {
        int count = (int)(next(shared) % (unsigned)most);
        /* 0 to 2: even; 3: any; 4: many without elements; 5: one block alone. */
        if (kind <= 2) count = even;
        if (kind == 4 && next(shared) % 2) count = 0;
        if (kind == 5) count = at == chosen ? even : 0;
        plan->counts[at] = count;
    }
}

static void random_calls(int rounds) {
    MPI_Comm comms[4] = {MPI_COMM_WORLD, MPI_COMM_NULL, MPI_COMM_NULL, MPI_COMM_SELF};
    unsigned long shared = 11, own = 1000 + (unsigned long)rank;
    check(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &comms[1]));
    check(MPI_Comm_split(MPI_COMM_WORLD, 0, rank % 2 * ranks + rank, &comms[2])); /* neighbours are on two hosts, if there are two */
    for (int round = 0; round < rounds; round++) {
        MPI_Comm comm = comms[next(&shared) % 4];
        /* Sub-communicators need not draw as often. */
        unsigned long numbers = shared * 31 + 7;
        struct plan plan = {.type = (int)(next(&numbers) % TYPE_COUNT), .is_in_place = (int)(next(&numbers) % 2), .is_whole = (int)(next(&numbers) % 2)};
        int members;
        MPI_Comm_size(comm, &members);
        plan.op = draw_operation(plan.type, &numbers);
        draw_counts(&plan, members, &numbers);
        plan.is_started = (int)(next(&numbers) % 2);
        perform(comm, &plan, &own, round);
    }
    for (int at = 1; at < 3; at++) check(MPI_Comm_free(&comms[at]));
}

static void together(int rounds) {
    enum { CALLS = 6, WORDS = 3 };
    static int from[CALLS][MOST_RANKS * WORDS], to[CALLS][WORDS], counts[MOST_RANKS];
    for (int at = 0; at < ranks; at++) counts[at] = WORDS;
    for (int round = 0; round < rounds; round++) {
        MPI_Comm comm;
        MPI_Request requests[CALLS];
        check(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
        check(MPI_Barrier(comm)); /* where the members agree */
        for (int call = 0; call < CALLS; call++) {
            for (int at = 0; at < ranks * WORDS; at++) from[call][at] = round + call * 100 + at + rank;
            if (call % 2) check(MPI_Ireduce_scatter(from[call], to[call], counts, MPI_INT, MPI_SUM, comm, &requests[call]));
            else check(MPI_Ireduce_scatter_block(from[call], to[call], WORDS, MPI_INT, MPI_SUM, comm, &requests[call]));
        }
        check(MPI_Comm_free(&comm));
        check(MPI_Waitall(CALLS, requests, MPI_STATUSES_IGNORE));
        for (int call = 0; call < CALLS; call++)
            for (int at = 0; at < WORDS; at++)
                if (to[call][at] != ranks * (round + call * 100 + rank * WORDS + at) + ranks * (ranks - 1) / 2) fail("another sum", round);
    }
}

static void even(int count) {
    unsigned long own = (unsigned long)rank;
    for (int is_block = 0; is_block < 2; is_block++) {
        struct plan plan = {.is_block = is_block, .type = DOUBLE, .op = SUM};
        for (int at = 0; at < ranks; at++) plan.counts[at] = count;
        perform(MPI_COMM_WORLD, &plan, &own, is_block);
    }
}

static void expect(const char *what, int error, int class) {
    int found = MPI_SUCCESS;
    if (error != MPI_SUCCESS) PMPI_Error_class(error, &found);
    if (found != class) {
        printf("%s: class %d, not %d\n", what, found, class);
        fail(what, 0);
    }
}

static void errors(void) {
    int counts[MOST_RANKS] = {1, 1}, none[MOST_RANKS] = {0}, wrong[MOST_RANKS] = {1, -1}, vector[MOST_RANKS] = {1, 1}, sum = 0;
    MPI_Comm comm = MPI_COMM_WORLD;
    expect("count", MPI_Reduce_scatter(vector, &sum, wrong, MPI_INT, MPI_SUM, comm), MPI_ERR_COUNT);
    expect("count", MPI_Reduce_scatter_block(vector, &sum, -1, MPI_INT, MPI_SUM, comm), MPI_ERR_COUNT);
    expect("operation", MPI_Reduce_scatter(vector, &sum, counts, MPI_FLOAT, MPI_BAND, comm), MPI_ERR_OP);
    expect("datatype", MPI_Reduce_scatter_block(vector, &sum, 1, MPI_DATATYPE_NULL, MPI_SUM, comm), MPI_ERR_TYPE);
    expect("communicator", MPI_Reduce_scatter_block(vector, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_NULL), MPI_ERR_COMM);
    expect("zero", MPI_Reduce_scatter(vector, &sum, none, MPI_INT, MPI_SUM, comm), MPI_SUCCESS);
    if (sum) fail("a result without elements", 0);
    expect("logical", MPI_Reduce_scatter(vector, &sum, counts, MPI_INT, MPI_LAND, comm), MPI_SUCCESS);
    if (sum != 1) fail("logical and", sum);
    /* Nothing of this has disturbed the group. */
    expect("sum", MPI_Reduce_scatter(vector, &sum, counts, MPI_INT, MPI_SUM, comm), MPI_SUCCESS);
    if (sum != ranks) fail("sum after errors", sum);
}

static void die(int last) {
    int counts[MOST_RANKS], vector[MOST_RANKS], sum;
    for (int at = 0; at < ranks; at++) counts[at] = vector[at] = 1;
    for (int now = 0; now < last + 10; now++) {
        if (now == last && rank == ranks - 1) {
            usleep(200000); /* until the others wait */
            raise(SIGKILL);
        }
        if (now % 2) check(MPI_Reduce_scatter_block(vector, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
        else check(MPI_Reduce_scatter(vector, &sum, counts, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    }
}

int main(int argc, char **argv) {
    const char *mode = argc >= 3 ? argv[1] : "";
    int number = argc >= 3 ? atoi(argv[2]) : 0;
    directory = argc == 4 ? argv[3] : NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (ranks > MOST_RANKS) MPI_Abort(MPI_COMM_WORLD, 2);
    if (!strcmp(mode, "random")) random_calls(number);
    else if (!strcmp(mode, "together")) together(number);
    else if (!strcmp(mode, "even")) even(number);
    else if (!strcmp(mode, "errors")) errors();
    else if (!strcmp(mode, "die")) die(number);
    else MPI_Abort(MPI_COMM_WORLD, 2);
    if (rank == 0) printf("performed %ld\n", performed());
    MPI_Finalize();
    return 0;
}
