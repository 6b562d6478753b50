/* Collective operations whose results are compared with those of the MPI's own functions (PMPI_...), bit by bit.
 *
 * usage: collectives MODE NUMBER [DIRECTORY]
 *
 *   random   NUMBER random operations in several communicators, in place or not, with other datatypes at some ranks
 *   loops    NUMBER communicators, one after the other: made, used and freed
 *   blocks   all-gather, all-to-all, gather and scatter of blocks of NUMBER integers, from and to each rank, in turn
 *   kept     NUMBER communicators at once; then messages between all ranks; prints the free memory of /dev/shm
 *   beside   the last rank accesses memory of rank 0, which is in collective operations of others and never waits there
 *   exposed  NUMBER exposure epochs, which are over when the others have left a barrier
 *   threads  two threads with a communicator each, NUMBER operations in each
 *   errors   calls with wrong arguments, for an MPI that checks them
 *   spawn    starts as many processes as there are ranks, of which that of rank NUMBER has no libweir-mpi.so; all of them do
 *            operations in their own world and together
 *   die      the last rank kills itself before its operation NUMBER; the others get an error, write it to DIRECTORY/RANK,
 *            and end with status 3
 *   killed   the last rank is killed (SIGKILL) NUMBER microseconds after all have begun operations of all kinds, which go on
 *            until the others get an error, as with die
 *
 * Rank 0 prints `performed N`: the operations that groups have done there. N is -1 without libweir-mpi.so.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <unistd.h>

#include "collectives_rank.h"

enum { MOST_WORDS = 600, MOST_BYTES = 20000, MOST_BLOCK_WORDS = 6000 };

static int is_spawned;

static const struct {
    MPI_Datatype type, alias;
    int bytes, is_float;
} TYPES[] = {
    {MPI_INT, MPI_INT32_T, 4, 0},          {MPI_UNSIGNED, MPI_UINT32_T, 4, 0},
    {MPI_LONG, MPI_INT64_T, 8, 0},         {MPI_UNSIGNED_LONG, MPI_UINT64_T, 8, 0},
    {MPI_LONG_LONG, MPI_LONG_LONG_INT, 8, 0}, {MPI_UNSIGNED_LONG_LONG, MPI_UINT64_T, 8, 0},
    {MPI_FLOAT, MPI_FLOAT, 4, 1},          {MPI_DOUBLE, MPI_DOUBLE, 8, 1},
    {MPI_AINT, MPI_AINT, 8, 0},            {MPI_SHORT, MPI_INT16_T, 2, 0},
};
enum { TYPE_COUNT = sizeof TYPES / sizeof *TYPES };

/* Small whole numbers: sums and products of floats are exact in any order. */
static void fill(void *data, int words, int type, unsigned long *state) {
    for (int at = 0; at < words; at++) {
        int value = (int)(next(state) % 5) + 1;
        if (TYPES[type].is_float && TYPES[type].bytes == 4) ((float *)data)[at] = (float)value;
        else if (TYPES[type].is_float) ((double *)data)[at] = value;
        else if (TYPES[type].bytes == 2) ((short *)data)[at] = (short)value;
        else if (TYPES[type].bytes == 4) ((int *)data)[at] = value * (int)next(state);
        else ((long *)data)[at] = value * (long)next(state) * (long)next(state);
    }
}

static void reduction(MPI_Comm comm, unsigned long *shared, unsigned long *own, int round) {
    const MPI_Op ops[] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_BAND, MPI_BOR, MPI_BXOR, MPI_LAND, MPI_LOR, MPI_LXOR};
    long in[MOST_WORDS], out[MOST_WORDS], expected[MOST_WORDS];
    int members, me;
    MPI_Comm_size(comm, &members);
    MPI_Comm_rank(comm, &me);
    int type = (int)(next(shared) % TYPE_COUNT), words = (int)(next(shared) % (next(shared) % 4 ? 20 : MOST_WORDS)), to_all = (int)(next(shared) % 2);
    MPI_Op op = ops[next(shared) % (TYPES[type].is_float ? 4 : 10)];
    int root = (int)(next(shared) % (unsigned)members), has_result = to_all || me == root;
    fill(in, words, type, own);
    memset(out, 0x5a, sizeof out);
    memset(expected, 0x5a, sizeof expected);
    if (to_all) check(PMPI_Allreduce(in, expected, words, TYPES[type].type, op, comm));
    else check(PMPI_Reduce(in, expected, words, TYPES[type].type, op, root, comm));
    int in_place = has_result && next(own) % 2;
    if (in_place) memcpy(out, in, (size_t)(words * TYPES[type].bytes));
    /* The same type under two names. */
    MPI_Datatype named = next(own) % 2 ? TYPES[type].type : TYPES[type].alias;
    const void *from = in_place ? MPI_IN_PLACE : in;
    if (to_all) check(MPI_Allreduce(from, out, words, named, op, comm));
    else check(MPI_Reduce(from, me == root ? out : NULL, words, named, op, root, comm));
    if (memcmp(out, expected, sizeof out)) fail(to_all ? "all-reduce" : "reduce", round);
}

/* Sums of any floats, which must be those of rank order. */
static void rank_order(MPI_Comm comm, unsigned long *own, int round) {
    double mine[4], sums[4], expected[4], all[64 * 4];
    int members;
    MPI_Comm_size(comm, &members);
    for (int at = 0; at < 4; at++) mine[at] = (double)next(own) / (double)(next(own) + 1) * (at & 1 ? -1e9 : 1e-9);
    check(PMPI_Allgather(mine, 4, MPI_DOUBLE, all, 4, MPI_DOUBLE, comm));
    memcpy(expected, all, sizeof expected);
    for (int member = 1; member < members; member++)
        for (int at = 0; at < 4; at++) expected[at] += all[4 * member + at];
    long before = performed();
    check(MPI_Allreduce(mine, sums, 4, MPI_DOUBLE, MPI_SUM, comm));
    if (performed() > before && memcmp(sums, expected, sizeof sums)) fail("sum in rank order", round);
}

/* Some MPIs by themselves deliver wrong data, or crash, if ranks describe data of one signature by different datatypes: Intel
 * MPI 2021.18 in all-gathers, Open MPI 5.0 in gathers, all-gathers, and long or empty broadcasts. There, ranks do so only if a
 * group does the operation. Groups across hosts do no all-to-alls with more than 16 KiB between two hosts. */
enum { LONGEST_OF_GROUPS = 2048 };
static int mpi_mixes_types, is_across_hosts;

static void look_at_version(void) {
    is_across_hosts = getenv("COLLECTIVES_ACROSS_HOSTS") != NULL;
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(text, &length);
    mpi_mixes_types = strstr(text, "MPICH") != NULL;
}

static int may_mix_types(int members, int words) {
    return mpi_mixes_types || (performed() >= 0 && members > 1 && words > 0 && words * (int)sizeof(int) <= LONGEST_OF_GROUPS);
}

static void broadcast(MPI_Comm comm, unsigned long *shared, unsigned long *own, int round) {
    static int expected[MOST_BYTES], buffer[2 * MOST_BYTES];
    int members, me;
    MPI_Comm_size(comm, &members);
    MPI_Comm_rank(comm, &me);
    int root = (int)(next(shared) % (unsigned)members);
    int words = (int)(next(shared) % (next(shared) % 3 ? 200 : MOST_BYTES / 4));
    for (int at = 0; at < words; at++) expected[at] = (int)next(shared);
    /* Some ranks have gaps between the words, others have the words as bytes: signatures must be equal, so no bytes. */
    int gap = 1 + (int)(next(own) % 2) * may_mix_types(members, words);
    memset(buffer, 0, sizeof buffer);
    if (me == root)
        for (int at = 0; at < words; at++) buffer[at * gap] = expected[at];
    if (gap == 1) {
        check(MPI_Bcast(buffer, words, next(own) % 2 ? MPI_INT : MPI_INT32_T, root, comm));
    } else {
        MPI_Datatype spread;
        check(MPI_Type_vector(words, 1, gap, MPI_INT, &spread));
        check(MPI_Type_commit(&spread));
        check(MPI_Bcast(buffer, 1, spread, root, comm));
        check(MPI_Type_free(&spread));
    }
    for (int at = 0; at < words; at++)
        if (buffer[at * gap] != expected[at]) fail("broadcast", round);
    for (int at = 0; gap > 1 && at < words; at++)
        if (buffer[at * gap + 1]) fail("broadcast wrote into a gap", round);
}

enum { ALL_GATHER, ALL_TO_ALL, GATHER, SCATTER, EXCHANGES };

/* A description of blocks of integers: some ranks have gaps between them, others one element for a whole block. */
struct layout {
    MPI_Datatype type;
    int count, step;
};

static struct layout draw_layout(int kind_of_exchange, int members, int words, unsigned long *own) {
    struct layout layout = {MPI_INT, words, 1};
    unsigned kind = next(own) % 4;
    /* At most this: hosts times the square of the ranks of the largest one. */
    int all_to_all_blocks = 2 * members * members;
    int is_for_mpi = is_across_hosts && kind_of_exchange == ALL_TO_ALL && !mpi_mixes_types
        && words * (int)sizeof(int) * all_to_all_blocks > 16384;
    if (kind < 2 || words == 0 || is_for_mpi || !may_mix_types(members, words)) {
        if (kind) layout.type = MPI_INT32_T;
        return layout;
    }
    layout.count = 1;
    layout.step = kind == 2 ? 1 : 2;
    if (kind == 2) {
        check(MPI_Type_contiguous(words, MPI_INT, &layout.type));
        check(MPI_Type_commit(&layout.type));
        return layout;
    }
    MPI_Datatype tight;
    check(MPI_Type_vector(words, 1, layout.step, MPI_INT, &tight));
    check(MPI_Type_create_resized(tight, 0, words * layout.step * (MPI_Aint)sizeof(int), &layout.type));
    check(MPI_Type_commit(&layout.type));
    check(MPI_Type_free(&tight));
    return layout;
}

static void end_layout(struct layout *layout, int words) {
    if (words && layout->count == 1 && layout->type != MPI_INT && layout->type != MPI_INT32_T) check(MPI_Type_free(&layout->type));
}

static int call(int kind, int large, const void *from, const struct layout *send, void *to, const struct layout *receive,
                int root, MPI_Comm comm) {
    MPI_Datatype out = send->type, in = receive->type;
    int outs = send->count, ins = receive->count;
#if MPI_VERSION >= 4
    if (large) switch (kind) {
        case ALL_GATHER: return MPI_Allgather_c(from, outs, out, to, ins, in, comm);
        case ALL_TO_ALL: return MPI_Alltoall_c(from, outs, out, to, ins, in, comm);
        case GATHER: return MPI_Gather_c(from, outs, out, to, ins, in, root, comm);
        default: return MPI_Scatter_c(from, outs, out, to, ins, in, root, comm);
        }
#endif
    (void)large;
    switch (kind) {
    case ALL_GATHER: return MPI_Allgather(from, outs, out, to, ins, in, comm);
    case ALL_TO_ALL: return MPI_Alltoall(from, outs, out, to, ins, in, comm);
    case GATHER: return MPI_Gather(from, outs, out, to, ins, in, root, comm);
    default: return MPI_Scatter(from, outs, out, to, ins, in, root, comm);
    }
}

static int call_of_mpi(int kind, const int *from, int *to, int words, int root, MPI_Comm comm) {
    switch (kind) {
    case ALL_GATHER: return PMPI_Allgather(from, words, MPI_INT, to, words, MPI_INT, comm);
    case ALL_TO_ALL: return PMPI_Alltoall(from, words, MPI_INT, to, words, MPI_INT, comm);
    case GATHER: return PMPI_Gather(from, words, MPI_INT, to, words, MPI_INT, root, comm);
    default: return PMPI_Scatter(from, words, MPI_INT, to, words, MPI_INT, root, comm);
    }
}

/* Operations that copy blocks. What the MPI delivers must be there, and nothing else be written. */
static void exchange(MPI_Comm comm, unsigned long *shared, unsigned long *own, int round) {
    static const char *const names[] = {"all-gather", "all-to-all", "gather", "scatter"};
    int members, me;
    MPI_Comm_size(comm, &members);
    MPI_Comm_rank(comm, &me);
    int kind = (int)(next(shared) % EXCHANGES), root = (int)(next(shared) % (unsigned)members), is_root = me == root;
    int words = (int)(next(shared) % (next(shared) % 4 ? 60 : MOST_BLOCK_WORDS));
    int all_in_place = next(shared) % 3 == 0, one_in_place = next(own) % 2;
    int sent = kind == ALL_TO_ALL || kind == SCATTER ? members : 1, received = kind == SCATTER ? 1 : members;
    int in_place = kind < GATHER ? all_in_place : is_root && one_in_place;
    size_t room = (size_t)members * (size_t)words * 2 + 2;
    int *plain_out = malloc(room * sizeof(int)), *plain_in = malloc(room * sizeof(int));
    int *out = malloc(room * sizeof(int)), *in = malloc(room * sizeof(int));
    if (!plain_out || !plain_in || !out || !in) fail("no memory", round);
    for (size_t at = 0; at < room; at++) plain_out[at] = (int)next(own), plain_in[at] = out[at] = in[at] = -7;
    check(call_of_mpi(kind, plain_out, plain_in, words, root, comm));

    struct layout send = draw_layout(kind, members, words, own), receive = draw_layout(kind, members, words, own);
    for (int at = 0; at < sent * words; at++) out[at * send.step] = plain_out[at];
    int skip = kind == ALL_TO_ALL ? 0 : me * words; /* in place, the contribution lies here */
    if (in_place && kind != SCATTER)
        for (int at = 0; at < sent * words; at++) in[(skip + at) * receive.step] = plain_out[at];
    const void *from = in_place && kind != SCATTER ? MPI_IN_PLACE : out;
    void *to = in_place && kind == SCATTER ? MPI_IN_PLACE : in;
    check(call(kind, next(own) % 4 == 0, from, &send, to, &receive, root, comm));

    int has_result = kind == GATHER ? is_root : kind != SCATTER || !in_place;
    for (size_t at = 0; at < room; at++) {
        size_t word = at / (size_t)receive.step;
        int is_word = has_result && at % (size_t)receive.step == 0 && word < (size_t)(received * words);
        if (in[at] != (is_word ? plain_in[word] : -7)) fail(names[kind], round);
    }
    end_layout(&send, words);
    end_layout(&receive, words);
    free(plain_out), free(plain_in), free(out), free(in);
}

/* Each rank is the root once. Blocks go where they belong, also in place. */
static void blocks(int words) {
    size_t room = (size_t)ranks * (size_t)words;
    int *out = malloc(room * sizeof(int)), *in = malloc(room * sizeof(int));
    if (!out || !in) fail("no memory", 0);
    for (int root = 0; root < ranks; root++)
        for (int kind = ALL_GATHER; kind < EXCHANGES; kind++) {
            int is_root = rank == root, in_place = root % 2 && (kind == GATHER ? is_root : kind == ALL_GATHER);
            int sent = kind == ALL_TO_ALL || kind == SCATTER ? ranks : 1, has_result = kind != GATHER || is_root;
            for (size_t at = 0; at < room; at++) out[at] = in[at] = -7;
            /* From whom, to whom, which word. */
            for (int to = 0; to < sent; to++)
                for (int at = 0; at < words; at++) {
                    int word = (rank * 100 + (sent > 1 ? to : 0)) * 1000 + at;
                    if (in_place) in[rank * words + at] = word;
                    else out[to * words + at] = word;
                }
            const void *from = in_place ? MPI_IN_PLACE : out;
            struct layout plain = {MPI_INT, words, 1};
            check(call(kind, 0, from, &plain, in, &plain, root, MPI_COMM_WORLD));
            int froms = kind == SCATTER ? 1 : ranks;
            for (int of = 0; has_result && of < froms; of++)
                for (int at = 0; at < words; at++) {
                    int giver = kind == SCATTER ? root : of, to = sent > 1 ? rank : 0;
                    if (in[of * words + at] != (giver * 100 + to) * 1000 + at) fail("a block", kind);
                }
            for (size_t at = (size_t)(has_result ? froms * words : 0); at < room; at++)
                if (in[at] != -7) fail("a block for others", kind);
        }
    free(out), free(in);
}

/* A synchronous send that is answered while its receiver is in a barrier. */
static void progress(int round) {
    static char out[200000], in[200000];
    MPI_Request request;
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    memset(out, round, sizeof out);
    check(MPI_Irecv(in, sizeof in, MPI_BYTE, left, 7, MPI_COMM_WORLD, &request));
    if (rank % 2) check(MPI_Ssend(out, sizeof out, MPI_BYTE, right, 7, MPI_COMM_WORLD));
    check(MPI_Barrier(MPI_COMM_WORLD));
    if (rank % 2 == 0) check(MPI_Ssend(out, sizeof out, MPI_BYTE, right, 7, MPI_COMM_WORLD));
    check(MPI_Barrier(MPI_COMM_WORLD));
    check(MPI_Wait(&request, MPI_STATUS_IGNORE));
    if (memcmp(in, out, sizeof in)) fail("message beside a barrier", round);
}

static void random_operations(int rounds) {
    MPI_Comm comms[6];
    unsigned long shared = 1, own = 1000 + (unsigned long)rank;
    comms[0] = MPI_COMM_WORLD;
    check(MPI_Comm_dup(MPI_COMM_WORLD, &comms[1]));
    check(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &comms[2]));
    check(MPI_Comm_split(MPI_COMM_WORLD, rank / 3, rank, &comms[3]));
    check(MPI_Comm_split(MPI_COMM_WORLD, 0, rank % 2 * ranks + rank, &comms[4])); /* neighbours are on two hosts, if there are two */
    comms[5] = MPI_COMM_SELF;
    for (int round = 0; round < rounds; round++) {
        MPI_Comm comm = comms[next(&shared) % 6];
        /* Sub-communicators draw the same numbers, but need not do as many steps: each round has numbers of its own. */
        unsigned long numbers = shared * 31 + 7;
        if (next(&own) % 50 == 0) usleep(next(&own) % 300);
        switch (next(&numbers) % 9) {
        case 0: check(MPI_Barrier(comm)); break;
        case 1: case 2: reduction(comm, &numbers, &own, round); break;
        case 3: broadcast(comm, &numbers, &own, round); break;
        case 4: rank_order(comm, &own, round); break;
        case 5: case 6: case 7: exchange(comm, &numbers, &own, round); break;
        default: if (next(&numbers) % 8 == 0) progress(round);
        }
    }
    for (int at = 1; at < 5; at++) check(MPI_Comm_free(&comms[at]));
}

static void loops(int count) {
    MPI_Comm kept, comm;
    check(MPI_Barrier(MPI_COMM_WORLD));
    check(MPI_Comm_dup(MPI_COMM_WORLD, &kept));
    for (int round = 0; round < count; round++) {
        if (round % 3 == 2) check(MPI_Comm_split(kept, 0, ranks - rank, &comm));
        else check(MPI_Comm_dup(round % 3 ? kept : MPI_COMM_WORLD, &comm));
        int me, mine, sum = 0, expected = ranks * (ranks - 1) / 2 + ranks * round;
        check(MPI_Comm_rank(comm, &me));
        mine = me + round;
        check(MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, comm));
        if (sum != expected) fail("sum in a new communicator", round);
        check(MPI_Barrier(kept));
        check(MPI_Comm_free(&comm));
    }
    check(MPI_Comm_free(&kept));
}

/* Groups of many communicators take memory that mailboxes need too. */
static void kept(int count) {
    MPI_Comm *comms = malloc((size_t)count * sizeof *comms);
    int *all = malloc((size_t)ranks * 2 * 1000 * sizeof *all);
    if (!comms || !all) fail("no memory", 0);
    for (int round = 0; round < count; round++) {
        int sum = 0;
        check(MPI_Comm_dup(MPI_COMM_WORLD, &comms[round]));
        check(MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comms[round]));
        if (sum != ranks * (ranks - 1) / 2) fail("sum", round);
    }
    struct statvfs about;
    if (statvfs("/dev/shm", &about)) fail("statvfs", 0);
    if (rank == 0) printf("free %lld\n", (long long)about.f_bavail * (long long)about.f_bsize);
    for (int at = 0; at < ranks * 1000; at++) all[at] = rank;
    check(PMPI_Alltoall(all, 1000, MPI_INT, all + ranks * 1000, 1000, MPI_INT, MPI_COMM_WORLD));
    for (int at = 0; at < ranks * 1000; at++)
        if (all[ranks * 1000 + at] != at / 1000) fail("message", at);
    for (int round = 0; round < count; round++) check(MPI_Comm_free(&comms[round]));
    free(comms), free(all);
}

/* MPI may need rank 0 for the last rank's access. The others end when the last one says so, which only rank 1 hears. */
static void beside(void) {
    MPI_Comm comm;
    MPI_Win window;
    int word = 0, one = 1, ready = 0, is_done = 0;
    check(MPI_Comm_split(MPI_COMM_WORLD, rank == ranks - 1, rank, &comm));
    check(MPI_Win_create(&word, sizeof word, sizeof word, MPI_INFO_NULL, MPI_COMM_WORLD, &window));
    /* The first call of a communicator, in which the MPI makes progress, is over before the access begins. */
    check(MPI_Allreduce(&one, &ready, 1, MPI_INT, MPI_MAX, comm));
    if (rank == 1) check(MPI_Send(&one, 1, MPI_INT, ranks - 1, 8, MPI_COMM_WORLD));
    if (rank == ranks - 1) {
        check(MPI_Recv(&one, 1, MPI_INT, 1, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        check(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window));
        check(MPI_Accumulate(&one, 1, MPI_INT, 0, 0, 1, MPI_INT, MPI_SUM, window));
        check(MPI_Win_unlock(0, window));
        check(MPI_Send(&one, 1, MPI_INT, 1, 9, MPI_COMM_WORLD));
    } else {
        while (!is_done) {
            int is_there = 0;
            if (rank == 1) check(MPI_Iprobe(ranks - 1, 9, MPI_COMM_WORLD, &is_there, MPI_STATUS_IGNORE));
            if (rank == 0) usleep(500); /* the others are there first, so this rank does not wait */
            check(MPI_Allreduce(&is_there, &is_done, 1, MPI_INT, MPI_MAX, comm));
        }
        if (rank == 1) check(MPI_Recv(&word, 1, MPI_INT, ranks - 1, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    }
    check(MPI_Win_free(&window));
    if (rank == 0 && word != 1) fail("the word", word);
    check(MPI_Comm_free(&comm));
}

/* What an origin has completed before a barrier, the target sees after it, as with a barrier of messages. */
static void exposed(int rounds) {
    MPI_Group all, others;
    MPI_Win window;
    int word = 0, one = 1, is_over, first = 0;
    check(MPI_Win_create(&word, sizeof word, sizeof word, MPI_INFO_NULL, MPI_COMM_WORLD, &window));
    check(MPI_Win_get_group(window, &all));
    if (rank) check(MPI_Group_incl(all, 1, &first, &others));
    else check(MPI_Group_excl(all, 1, &first, &others));
    for (int round = 0; round < rounds; round++) {
        if (rank == 0) {
            check(MPI_Win_start(others, 0, window));
            for (int target = 1; target < ranks; target++)
                check(MPI_Accumulate(&one, 1, MPI_INT, target, 0, 1, MPI_INT, MPI_SUM, window));
            check(MPI_Barrier(MPI_COMM_WORLD));
            check(MPI_Win_complete(window));
        } else {
            check(MPI_Win_post(others, 0, window));
            check(MPI_Barrier(MPI_COMM_WORLD));
        }
        check(MPI_Barrier(MPI_COMM_WORLD));
        if (rank == 0) continue;
        check(MPI_Win_test(window, &is_over));
        if (!is_over) fail("the epoch is not over", round);
        if (word != round + 1) fail("the word", word);
    }
    check(MPI_Group_free(&all));
    check(MPI_Group_free(&others));
    check(MPI_Win_free(&window));
}

struct work {
    MPI_Comm comm;
    int rounds;
};

static void *work(void *argument) {
    struct work *work = argument;
    unsigned long shared = 5, own = (unsigned long)rank;
    for (int round = 0; round < work->rounds; round++) {
        reduction(work->comm, &shared, &own, round);
        exchange(work->comm, &shared, &own, round);
        check(MPI_Barrier(work->comm));
    }
    return NULL;
}

static void threads(int rounds) {
    struct work works[2];
    pthread_t thread;
    for (int at = 0; at < 2; at++) {
        check(MPI_Comm_dup(MPI_COMM_WORLD, &works[at].comm));
        works[at].rounds = rounds;
    }
    pthread_create(&thread, NULL, work, &works[1]);
    work(&works[0]);
    pthread_join(thread, NULL);
    for (int at = 0; at < 2; at++) check(MPI_Comm_free(&works[at].comm));
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
    int value = 1, sum = 0;
    MPI_Comm comm = MPI_COMM_WORLD;
    check(MPI_Barrier(comm));
    expect("root", MPI_Bcast(&value, 1, MPI_INT, ranks, comm), MPI_ERR_ROOT);
    expect("root of a reduction", MPI_Reduce(&value, &sum, 1, MPI_INT, MPI_SUM, -5, comm), MPI_ERR_ROOT);
    expect("count", MPI_Allreduce(&value, &sum, -1, MPI_INT, MPI_SUM, comm), MPI_ERR_COUNT);
    expect("datatype", MPI_Bcast(&value, 1, MPI_DATATYPE_NULL, 0, comm), MPI_ERR_TYPE);
    expect("operation", MPI_Allreduce(&value, &sum, 1, MPI_FLOAT, MPI_BAND, comm), MPI_ERR_OP);
    expect("no buffer", MPI_Bcast(NULL, 1, MPI_INT, 0, comm), MPI_ERR_BUFFER);
    expect("communicator", MPI_Barrier(MPI_COMM_NULL), MPI_ERR_COMM);
    int pair[64] = {0};
    expect("gather", MPI_Gather(&value, 1, MPI_INT, pair, 1, MPI_INT, ranks, comm), MPI_ERR_ROOT);
    expect("scatter", MPI_Scatter(pair, 1, MPI_INT, &value, -1, MPI_INT, 0, comm), MPI_ERR_COUNT);
    expect("all-gather", MPI_Allgather(&value, 1, MPI_INT, pair, 1, MPI_DATATYPE_NULL, comm), MPI_ERR_TYPE);
    expect("all-to-all", MPI_Alltoall(pair, 1, MPI_INT, NULL, 1, MPI_INT, comm), MPI_ERR_BUFFER);
    /* Nothing of this has disturbed the group. */
    expect("zero", MPI_Allreduce(NULL, NULL, 0, MPI_INT, MPI_SUM, comm), MPI_SUCCESS);
    expect("sum", MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, comm), MPI_SUCCESS);
    if (sum != ranks) fail("sum after errors", 0);
    /* One buffer for both sides, at one rank only: not allowed, but nobody waits. */
    for (int at = 0; at < ranks; at++) pair[at] = 10 + at;
    int *block = rank == 0 ? pair : &value;
    expect("one buffer", MPI_Scatter(pair, 1, MPI_INT, block, 1, MPI_INT, 0, comm), MPI_SUCCESS);
    if (*block != 10 + rank) fail("a scattered block", rank);
    expect("one buffer", MPI_Gather(block, 1, MPI_INT, pair, 1, MPI_INT, 0, comm), MPI_SUCCESS);
    for (int at = 0; at < ranks; at++)
        if (pair[at] != 10 + at) fail("gathered blocks", at);
    /* Lengths that contradict each other: an error at each rank that has them, and nobody waits. */
    expect("lengths", MPI_Allgather(&value, 1, MPI_INT, pair, 2, MPI_INT, comm), MPI_ERR_TRUNCATE);
}

static void die(int last) {
    int value = 1, sum;
    for (int now = 0; now < last + 10; now++) {
        if (now == last && rank == ranks - 1) {
            usleep(200000); /* until the others wait */
            raise(SIGKILL);
        }
        switch (now % 3) {
        case 0: check(MPI_Barrier(MPI_COMM_WORLD)); break;
        case 1: check(MPI_Bcast(&value, 1, MPI_INT, ranks - 1, MPI_COMM_WORLD)); break;
        default: check(MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
        }
    }
}

static void kill_this_rank(int signal) {
    (void)signal;
    kill(getpid(), SIGKILL);
}

/* Operations of all kinds, with each rank as root, until one fails. */
static void killed(int microseconds) {
    enum { MOST_RANKS = 64 };
    double share = rank, sum, mine[MOST_RANKS] = {0}, all[MOST_RANKS];
    struct itimerval soon = {{0, 0}, {microseconds / 1000000, microseconds % 1000000}};
    if (ranks > MOST_RANKS) MPI_Abort(MPI_COMM_WORLD, 2);
    check(MPI_Barrier(MPI_COMM_WORLD));
    if (rank == ranks - 1) {
        signal(SIGALRM, kill_this_rank);
        setitimer(ITIMER_REAL, &soon, NULL);
    }
    for (int now = 0;; now++) {
        int root = now % ranks;
        check(MPI_Barrier(MPI_COMM_WORLD));
        check(MPI_Bcast(all, ranks, MPI_DOUBLE, root, MPI_COMM_WORLD));
        check(MPI_Reduce(&share, &sum, 1, MPI_DOUBLE, MPI_SUM, root, MPI_COMM_WORLD));
        check(MPI_Allreduce(&share, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
        check(MPI_Allgather(&share, 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, MPI_COMM_WORLD));
        check(MPI_Alltoall(mine, 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, MPI_COMM_WORLD));
    }
}

static void add_and_wait(MPI_Comm comm) {
    int members, me, one = 1, sum = 0, from_last = -1;
    check(MPI_Comm_size(comm, &members));
    check(MPI_Comm_rank(comm, &me));
    check(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm));
    if (sum != members) fail("sum", 0);
    check(MPI_Barrier(comm));
    if (me == members - 1) from_last = 42;
    check(MPI_Bcast(&from_last, 1, MPI_INT, members - 1, comm));
    if (from_last != 42) fail("broadcast", 0);
}

static void spawn(char **words) {
    /* Both launchers' variables. */
    static char script[] = "test \"${PMI_RANK-$PMIX_RANK}\" != \"$1\" || unset LD_PRELOAD; shift; exec \"$@\"";
    static char shell[] = "sh", option[] = "-c";
    char *arguments[] = {option, script, shell, words[2], words[0], words[1], words[2], NULL};
    MPI_Comm parents, between, all;
    check(MPI_Comm_get_parent(&parents));
    is_spawned = parents != MPI_COMM_NULL;
    if (is_spawned) between = parents;
    else check(MPI_Comm_spawn(shell, arguments, ranks, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &between, MPI_ERRCODES_IGNORE));
    check(MPI_Intercomm_merge(between, is_spawned, &all));
    add_and_wait(all);
    add_and_wait(MPI_COMM_WORLD);
    add_and_wait(all);
    check(MPI_Comm_free(&all));
    check(MPI_Comm_disconnect(&between));
}

int main(int argc, char **argv) {
    const char *mode = argc >= 3 ? argv[1] : "";
    int number = argc >= 3 ? atoi(argv[2]) : 0, provided;
    directory = argc == 4 ? argv[3] : NULL;
    MPI_Init_thread(&argc, &argv, strcmp(mode, "threads") ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    look_at_version();
    if (!strcmp(mode, "random")) random_operations(number);
    else if (!strcmp(mode, "loops")) loops(number);
    else if (!strcmp(mode, "blocks")) blocks(number);
    else if (!strcmp(mode, "kept")) kept(number);
    else if (!strcmp(mode, "beside")) beside();
    else if (!strcmp(mode, "exposed")) exposed(number);
    else if (!strcmp(mode, "threads")) threads(number);
    else if (!strcmp(mode, "errors")) errors();
    else if (!strcmp(mode, "spawn")) spawn(argv);
    else if (!strcmp(mode, "die")) die(number);
    else if (!strcmp(mode, "killed")) killed(number);
    else MPI_Abort(MPI_COMM_WORLD, 2);
    if (rank == 0 && !is_spawned) printf("performed %ld\n", performed());
    MPI_Finalize();
    return 0;
}
