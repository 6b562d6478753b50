/* Non-blocking collective operations, with results that each rank can compute by itself.
 *
 * usage: nonblocking MODE NUMBER [DIRECTORY]
 *
 *   random  NUMBER random operations in several communicators, up to 12 under way, in place or not, with other datatypes at
 *           some ranks; between them blocking operations and messages; requests end in any order by any kind of wait
 *   order   NUMBER times: an operation ends although one before it cannot yet
 *   beside  NUMBER times: a rank starts an operation before a barrier, the others after it, which MPI does not allow, but
 *           each MPI does, and mpi4py's suite
 *   types   NUMBER reductions, blocking and not, of random types and operations, in place or not, some without elements; compared
 *           with plain loops over the vectors of all ranks
 *   freed   NUMBER communicators that are freed while their operations are under way
 *   away    NUMBER times: the last rank starts operations and calls MPI no more until rank 0, whose operations have ended, has made
 *           a file in DIRECTORY
 *   die     the last rank kills itself before its operation NUMBER; the others get an error
 *
 * Rank 0 prints `performed N`: the operations that groups have done there. N is -1 without libweir-mpi.so.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "collectives_rank.h"
#include "reductions.h"

enum { BARRIER, BROADCAST, REDUCE, ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, GATHER, SCATTER, MESSAGE, KINDS };
static const char *const NAMES[] = {"barrier", "broadcast", "reduce", "all-reduce", "all-gather", "all-to-all", "gather", "scatter", "message"};
enum { MOST_UNDER_WAY = 12, COMMUNICATORS = 3, TAG = 32767 };

struct operation {
    int kind, number, words, root, gap, in_place;
    int members, me;
    MPI_Comm comm;
    int *send, *receive;
    MPI_Datatype spread;
};

static struct operation under_way[MOST_UNDER_WAY];
static MPI_Request requests[MOST_UNDER_WAY];

/* What the member `from` gives for the block of the member `to`. */
static int value(int number, int from, int to, int at) { return number * 31 + from * 1009 + to * 17 + at; }

static int *allocate(size_t words) {
    int *memory = malloc(words * sizeof(int) + 1);
    if (!memory) fail("no memory", 0);
    memset(memory, 0x5a, words * sizeof(int) + 1);
    return memory;
}

/* Some ranks have gaps between the words of what they receive. */
static void describe(const struct operation *op, int *count, MPI_Datatype *type) {
    *count = op->gap == 1 ? op->words : 1;
    *type = op->gap == 1 ? MPI_INT : op->spread;
}

static void start(struct operation *op, MPI_Request *request, unsigned long *own) {
    int blocks = op->kind == ALL_GATHER || op->kind == ALL_TO_ALL || op->kind == GATHER || op->kind == SCATTER ? op->members : 1;
    int words = op->words, me = op->me, is_root = me == op->root, count;
    MPI_Datatype type;
    op->send = allocate((size_t)(words * blocks));
    op->receive = allocate((size_t)(words * blocks * 2));
    op->gap = 1;
    op->in_place = 0;
    /* Only where a group does the operation: some MPIs by themselves hang or deliver wrong data if types of one signature differ. */
    int may_have_gaps = op->kind == BROADCAST || op->kind == ALL_GATHER || op->kind == SCATTER;
    if (may_have_gaps && performed() >= 0 && words > 0 && words * (int)sizeof(int) <= 2048 && op->members > 1 && next(own) % 2) {
        op->gap = 2;
        MPI_Datatype vector;
        check(MPI_Type_vector(words, 1, 2, MPI_INT, &vector));
        check(MPI_Type_create_resized(vector, 0, (MPI_Aint)(words * 2 * (int)sizeof(int)), &op->spread));
        check(MPI_Type_commit(&op->spread));
        check(MPI_Type_free(&vector));
    }
    describe(op, &count, &type);
    for (int block = 0; block < blocks; block++)
        for (int at = 0; at < words; at++) op->send[block * words + at] = value(op->number, me, block, at);
    switch (op->kind) {
    case BARRIER: check(MPI_Ibarrier(op->comm, request)); break;
    case BROADCAST:
        for (int at = 0; is_root && at < words; at++) op->receive[at * op->gap] = value(op->number, me, 0, at);
        check(MPI_Ibcast(op->receive, count, type, op->root, op->comm, request));
        break;
    case REDUCE:
        op->in_place = is_root && next(own) % 2;
        if (op->in_place) memcpy(op->receive, op->send, (size_t)words * sizeof(int));
        check(MPI_Ireduce(op->in_place ? MPI_IN_PLACE : op->send, is_root ? op->receive : NULL, words, MPI_INT, MPI_SUM, op->root, op->comm, request));
        break;
    case ALL_REDUCE:
        op->in_place = next(own) % 2;
        if (op->in_place) memcpy(op->receive, op->send, (size_t)words * sizeof(int));
        check(MPI_Iallreduce(op->in_place ? MPI_IN_PLACE : op->send, op->receive, words, MPI_INT, MPI_SUM, op->comm, request));
        break;
    case ALL_GATHER: check(MPI_Iallgather(op->send, words, MPI_INT, op->receive, count, type, op->comm, request)); break;
    case ALL_TO_ALL:
        op->in_place = op->number % 2; /* at all ranks or none */
        if (op->in_place) memcpy(op->receive, op->send, (size_t)(words * blocks) * sizeof(int));
        check(MPI_Ialltoall(op->in_place ? MPI_IN_PLACE : op->send, words, MPI_INT, op->receive, words, MPI_INT, op->comm, request));
        break;
    case GATHER: check(MPI_Igather(op->send, words, MPI_INT, is_root ? op->receive : NULL, words, MPI_INT, op->root, op->comm, request)); break;
    case SCATTER: check(MPI_Iscatter(is_root ? op->send : NULL, words, MPI_INT, op->receive, count, type, op->root, op->comm, request)); break;
    default: /* from the member before us; its send may end later than we are free, so it is buffered there */
        check(MPI_Irecv(op->receive, words, MPI_INT, (me + op->members - 1) % op->members, TAG, op->comm, request));
        check(MPI_Bsend(op->send, words, MPI_INT, (me + 1) % op->members, TAG, op->comm));
    }
    if (op->gap == 2) check(MPI_Type_free(&op->spread)); /* which may be done before the operation ends */
}

static void expect(const struct operation *op, int place, int expected) {
    int got = op->receive[place * op->gap];
    if (got == expected) return;
    printf("rank %d: word %d of a %s of %d words is %d, not %d\n", rank, place, NAMES[op->kind], op->words, got, expected);
    fail("wrong result", op->number);
}

static void end(struct operation *op) {
    int words = op->words, me = op->me, is_root = me == op->root, members = op->members;
    for (int at = 0; at < words; at++) {
        int sum = 0;
        for (int from = 0; from < members; from++) sum += value(op->number, from, 0, at);
        if (op->kind == BROADCAST) expect(op, at, value(op->number, op->root, 0, at));
        if (op->kind == ALL_REDUCE || (op->kind == REDUCE && is_root)) expect(op, at, sum);
        if (op->kind == SCATTER) expect(op, at, value(op->number, op->root, me, at));
        if (op->kind == MESSAGE) expect(op, at, value(op->number, (me + members - 1) % members, 0, at));
        for (int from = 0; from < members; from++) {
            int place = from * words + at;
            if (op->kind == ALL_GATHER || (op->kind == GATHER && is_root)) expect(op, place, value(op->number, from, 0, at));
            if (op->kind == ALL_TO_ALL) expect(op, place, value(op->number, from, me, at));
        }
        if (op->gap == 2 && !(op->kind == BROADCAST && is_root) && op->receive[2 * at + 1] != 0x5a5a5a5a) fail("wrote into a gap", op->number);
    }
    free(op->send);
    free(op->receive);
    op->send = NULL;
}

/* Waits for some of what is under way, by one of the calls that MPI has. */
static void end_some(unsigned long *own, int all) {
    int many = MOST_UNDER_WAY, place, flag, ended[MOST_UNDER_WAY];
    switch (all ? 4 : next(own) % 6) {
    case 0:
        check(MPI_Waitany(many, requests, &place, MPI_STATUS_IGNORE));
        if (place != MPI_UNDEFINED) end(&under_way[place]);
        break;
    case 1:
        check(MPI_Waitsome(many, requests, &flag, ended, MPI_STATUSES_IGNORE));
        for (int at = 0; flag != MPI_UNDEFINED && at < flag; at++) end(&under_way[ended[at]]);
        break;
    case 2:
        place = (int)(next(own) % MOST_UNDER_WAY);
        int was_under_way = requests[place] != MPI_REQUEST_NULL;
        check(MPI_Wait(&requests[place], MPI_STATUS_IGNORE));
        if (was_under_way) end(&under_way[place]);
        break;
    case 3:
        for (place = 0; place < many; place++) {
            if (requests[place] == MPI_REQUEST_NULL) continue;
            check(MPI_Test(&requests[place], &flag, MPI_STATUS_IGNORE));
            if (flag) end(&under_way[place]);
        }
        break;
    case 4:
        check(MPI_Waitall(many, requests, MPI_STATUSES_IGNORE));
        for (place = 0; place < many; place++)
            if (under_way[place].send) end(&under_way[place]);
        break;
    default:
        check(MPI_Testany(many, requests, &place, &flag, MPI_STATUS_IGNORE));
        if (flag && place != MPI_UNDEFINED) end(&under_way[place]);
    }
}

static int free_place(void) {
    for (int place = 0; place < MOST_UNDER_WAY; place++)
        if (requests[place] == MPI_REQUEST_NULL) return place;
    return -1;
}

static void random_operations(int number) {
    MPI_Comm comms[COMMUNICATORS] = {MPI_COMM_WORLD};
    check(MPI_Comm_dup(MPI_COMM_WORLD, &comms[1]));
    check(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &comms[2]));
    unsigned long shared = 7, own = (unsigned long)rank + 100;
    for (int at = 0; at < number; at++) {
        int place;
        while ((place = free_place()) < 0) end_some(&own, 0);
        struct operation *op = &under_way[place];
        op->kind = (int)(next(&shared) % KINDS);
        op->comm = comms[next(&shared) % COMMUNICATORS];
        op->number = at;
        op->words = (int)(next(&shared) % (next(&shared) % 4 ? 40 : 5000));
        unsigned root = next(&shared);
        check(MPI_Comm_size(op->comm, &op->members));
        check(MPI_Comm_rank(op->comm, &op->me));
        op->root = (int)(root % (unsigned)op->members);
        if (op->kind == BARRIER) op->words = 0;
        start(op, &requests[place], &own);
        if (next(&own) % 3 == 0) end_some(&own, 0);
        if (next(&shared) % 8 == 0) { /* a blocking operation behind those under way */
            int mine = op->me + 1, sum = 0;
            check(MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, op->comm));
            if (sum != op->members * (op->members + 1) / 2) fail("blocking all-reduce", at);
        }
    }
    end_some(&own, 1);
    check(MPI_Comm_free(&comms[1]));
    check(MPI_Comm_free(&comms[2]));
}

/* All but the last rank begin a barrier and a broadcast. The broadcast ends, and only then the last rank gets the message by
 * which it begins both. */
static void order(int number) {
    for (int round = 0; round < number; round++) {
        MPI_Request barrier, broadcast;
        int data = rank == 0 ? round : -1, signal = round;
        if (rank == ranks - 1)
            for (int from = 0; from < ranks - 1; from++) check(MPI_Recv(&signal, 1, MPI_INT, from, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        check(MPI_Ibarrier(MPI_COMM_WORLD, &barrier));
        check(MPI_Ibcast(&data, 1, MPI_INT, 0, MPI_COMM_WORLD, &broadcast));
        check(MPI_Wait(&broadcast, MPI_STATUS_IGNORE));
        if (data != round) fail("broadcast", round);
        if (rank != ranks - 1) check(MPI_Send(&signal, 1, MPI_INT, ranks - 1, 3, MPI_COMM_WORLD));
        check(MPI_Wait(&barrier, MPI_STATUS_IGNORE));
    }
}

static void beside(int number) {
    for (int round = 0; round < number; round++) {
        MPI_Request request;
        int sum, flag, is_first = rank == round % ranks;
        if (!is_first) check(MPI_Barrier(MPI_COMM_WORLD));
        check(MPI_Iallreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request));
        if (is_first) {
            check(MPI_Test(&request, &flag, MPI_STATUS_IGNORE));
            if (flag) fail("the others have not started", round);
            check(MPI_Barrier(MPI_COMM_WORLD));
        }
        check(MPI_Wait(&request, MPI_STATUS_IGNORE));
        if (sum != ranks * (ranks - 1) / 2) fail("all-reduce", round);
    }
}

enum { MOST_ELEMENTS = 1200, GUARD = 8 };

static void reduce(int round, MPI_Comm comm, unsigned long *shared, unsigned long *own) {
    static char mine[MOST_ELEMENTS * 8], result[MOST_ELEMENTS * 8 + 2 * GUARD], expected[sizeof result];
    int members, me, type = (int)(next(shared) % TYPE_COUNT), op = draw_operation(type, shared), to_all = (int)(next(shared) % 2);
    int elements = (int)(next(shared) % (next(shared) % 4 ? 20 : MOST_ELEMENTS)), is_started = (int)(next(shared) % 2);
    check(MPI_Comm_size(comm, &members));
    check(MPI_Comm_rank(comm, &me));
    int root = (int)(next(shared) % (unsigned)members), has_result = to_all || me == root, bytes = elements * TYPES[type].bytes;
    char *all = malloc((size_t)(bytes * members + 1));
    if (!all) fail("no memory", round);
    fill(mine, elements, type, 1, own);
    check(PMPI_Allgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, comm));
    memset(result, 0x5a, sizeof result), memset(expected, 0x5a, sizeof expected);
    if (has_result) memcpy(expected + GUARD, all, (size_t)bytes);
    for (int at = 0; has_result && at < bytes; at += TYPES[type].bytes)
        for (int member = 1; member < members; member++) combine(type, op, expected + GUARD + at, all + member * bytes + at);
    int in_place = has_result && next(own) % 2;
    if (in_place) memcpy(result + GUARD, mine, (size_t)bytes);
    const void *from = in_place ? MPI_IN_PLACE : mine;
    void *to = has_result ? result + GUARD : NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Datatype handle = type_of(type);
    long before = performed();
    if (to_all && is_started) check(MPI_Iallreduce(from, to, elements, handle, operation_of(op), comm, &request));
    else if (to_all) check(MPI_Allreduce(from, to, elements, handle, operation_of(op), comm));
    else if (is_started) check(MPI_Ireduce(from, to, elements, handle, operation_of(op), root, comm, &request));
    else check(MPI_Reduce(from, to, elements, handle, operation_of(op), root, comm));
    check(MPI_Wait(&request, MPI_STATUS_IGNORE));
    if ((is_known(type, op) || performed() > before) && memcmp(result, expected, sizeof result)) {
        printf("rank %d: type %d, operation %d, %d elements, to all %d, started %d\n", rank, type, op, elements, to_all, is_started);
        fail("another result", round);
    }
    if (memcmp(mine, all + me * bytes, (size_t)bytes)) fail("the given vector", round);
    free(all);
}

static void types(int number) {
    MPI_Comm comms[2] = {MPI_COMM_WORLD};
    unsigned long shared = 5, own = (unsigned long)rank + 300;
    check(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &comms[1]));
    for (int round = 0; round < number; round++) {
        /* Sub-communicators need not draw as often. */
        MPI_Comm comm = comms[next(&shared) % 2];
        unsigned long numbers = shared * 31 + 7;
        reduce(round, comm, &numbers, &own);
    }
    check(MPI_Comm_free(&comms[1]));
}

static void freed(int number) {
    for (int round = 0; round < number; round++) {
        MPI_Comm comm;
        MPI_Request requests[6];
        int sums[6];
        check(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
        check(MPI_Barrier(comm)); /* where the members agree */
        for (int at = 0; at < 6; at++) check(MPI_Iallreduce(&rank, &sums[at], 1, MPI_INT, MPI_SUM, comm, &requests[at]));
        check(MPI_Comm_free(&comm));
        check(MPI_Waitall(6, requests, MPI_STATUSES_IGNORE));
        for (int at = 0; at < 6; at++)
            if (sums[at] != ranks * (ranks - 1) / 2) fail("all-reduce in a freed communicator", round);
    }
}

/* Operations for which the last rank has only to give something, as many as may be under way. */
static void away(int number) {
    enum { TOGETHER = 4 };
    for (int round = 0; round < number; round++) {
        MPI_Request requests[TOGETHER];
        int sums[TOGETHER];
        char path[4096];
        snprintf(path, sizeof path, "%s/%d", directory, round);
        check(MPI_Barrier(MPI_COMM_WORLD)); /* the room of the rounds before is free */
        for (int at = 0; at < TOGETHER; at++) check(MPI_Iallreduce(&rank, &sums[at], 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[at]));
        if (rank == ranks - 1)
            for (int looks = 0; access(path, F_OK) != 0; looks++) {
                if (looks == 20000) fail("the others wait for a rank that computes", round);
                usleep(1000);
            }
        check(MPI_Waitall(TOGETHER, requests, MPI_STATUSES_IGNORE));
        if (rank == 0) {
            FILE *file = fopen(path, "w");
            if (!file || fclose(file)) fail(path, round);
        }
        for (int at = 0; at < TOGETHER; at++)
            if (sums[at] != ranks * (ranks - 1) / 2) fail("all-reduce", round);
    }
}

static void die(int number) {
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    for (int at = 0;; at++) {
        MPI_Request request;
        if (rank == ranks - 1 && at == number) kill(getpid(), SIGKILL);
        check(MPI_Ibarrier(MPI_COMM_WORLD, &request));
        check(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
}

int main(int argc, char **argv) {
    check(MPI_Init(&argc, &argv));
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    check(MPI_Comm_size(MPI_COMM_WORLD, &ranks));
    const char *mode = argc > 2 ? argv[1] : "";
    int number = argc > 2 ? atoi(argv[2]) : 0;
    directory = argc > 3 ? argv[3] : NULL;
    for (int place = 0; place < MOST_UNDER_WAY; place++) requests[place] = MPI_REQUEST_NULL;
    static char buffered[1 << 22];
    check(MPI_Buffer_attach(buffered, sizeof buffered));
    check(MPI_Barrier(MPI_COMM_WORLD));
    long before = performed();
    if (!strcmp(mode, "random")) random_operations(number);
    else if (!strcmp(mode, "order")) order(number);
    else if (!strcmp(mode, "beside")) beside(number);
    else if (!strcmp(mode, "types")) types(number);
    else if (!strcmp(mode, "freed")) freed(number);
    else if (!strcmp(mode, "away")) away(number);
    else if (!strcmp(mode, "die")) die(number);
    else fail("no such mode", 0);
    if (rank == 0) printf("performed %ld\n", before < 0 ? before : performed() - before);
    void *detached;
    int bytes;
    check(MPI_Buffer_detach(&detached, &bytes));
    check(MPI_Finalize());
    return 0;
}
