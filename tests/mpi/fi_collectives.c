/* Collective operations of libfabric, over weir: each call, compared bit by bit with a computation of its own.
 *
 * usage: fi_collectives processes|endpoints|death|late-death MEMBERS [AUTO]
 *
 * `processes`: each member is a process. `endpoints`: all are endpoints of this one. `death`: the last member is killed
 * before it calls, `late-death`: before it joins; all others must get errors. AUTO asks for automatic progress. */

#include "fi_collectives_data.h"
#include "fi_collectives_members.h"

enum { ROUNDS = 40, GROUPS = 80 };

/* Numbers of the members of the group by rank, and back. -1: no member. */
static int group_size, number_of[MOST], rank_of[MOST];
static long compared;

/* ---- calls ---- */

struct call {
    int kind; /* enum fi_collective_op */
    int type, op, root;
    size_t count;
    uint64_t number;
};

static int combines(int kind) {
    return kind == FI_ALLREDUCE || kind == FI_REDUCE || kind == FI_REDUCE_SCATTER;
}

static struct call random_call(uint64_t number, int kind) {
    struct call call = {.kind = kind, .number = number, .type = rand() % TYPES, .op = rand() % (FI_BXOR + 1)};
    call.root = rand() % group_size;
    /* Short ones, and some that take several packets and parts. */
    call.count = rand() % 4 ? 1 + rand() % 40 : 1 + rand() % 6000;
    int bitwise = call.op == FI_BOR || call.op == FI_BAND || call.op == FI_BXOR;
    if (combines(kind) && bitwise && call.type >= 4)
        call.type -= 2;
    return call;
}

static size_t blocks_given(const struct call *call, int rank) {
    int all = call->kind == FI_ALLTOALL || call->kind == FI_REDUCE_SCATTER;
    return all || (call->kind == FI_SCATTER && rank == call->root) ? group_size : 1;
}

static void start(struct member *member, const struct call *call) {
    int rank = rank_of[member->rank], type = types[call->type];
    size_t bytes = call->count * sizes[call->type];
    fi_addr_t root = number_of[call->root], group = fi_mc_addr(member->group);
    struct fid_ep *ep = member->endpoint;
    char *data = member->data = malloc(bytes * group_size + 1), *result = member->result = malloc(bytes * group_size + 1);
    memset(data, 0x55, bytes * group_size + 1);
    memset(result, 0xAA, bytes * group_size + 1);
    if (call->kind != FI_BROADCAST || rank == call->root)
        give(data, call->type, call->number, rank, 0, call->count * blocks_given(call, rank));
    long posted;
    do {
        switch (call->kind) {
        case FI_BARRIER: posted = fi_barrier(ep, group, member); break;
        case FI_BROADCAST: posted = fi_broadcast(ep, data, call->count, NULL, group, root, type, 0, member); break;
        case FI_ALLTOALL:
            posted = fi_alltoall(ep, data, call->count, NULL, result, NULL, group, type, 0, member); break;
        case FI_ALLREDUCE:
            posted = fi_allreduce(ep, data, call->count, NULL, result, NULL, group, type, call->op, 0, member); break;
        case FI_ALLGATHER:
            posted = fi_allgather(ep, data, call->count, NULL, result, NULL, group, type, 0, member); break;
        case FI_REDUCE_SCATTER:
            posted = fi_reduce_scatter(ep, data, call->count, NULL, result, NULL, group, type, call->op, 0, member);
            break;
        case FI_REDUCE:
            posted = fi_reduce(ep, data, call->count, NULL, rank == call->root ? result : NULL, NULL, group, root, type,
                               call->op, 0, member);
            break;
        case FI_SCATTER:
            posted = fi_scatter(ep, rank == call->root ? data : NULL, call->count, NULL, result, NULL, group, root, type,
                                0, member);
            break;
        default:
            posted = fi_gather(ep, data, call->count, NULL, rank == call->root ? result : NULL, NULL, group, root, type,
                               0, member);
        }
        if (posted == -FI_EAGAIN)
            poll_all();
    } while (posted == -FI_EAGAIN);
    CHECK(posted);
}

static void compare(struct member *member, const struct call *call) {
    int rank = rank_of[member->rank], is_root = rank == call->root;
    size_t bytes = call->count * sizes[call->type], blocks = 1;
    char *expected = malloc(bytes * group_size + 1), *found = member->result;
    memset(expected, 0xAA, bytes * group_size + 1);
    switch (call->kind) {
    case FI_BARRIER: blocks = 0; break;
    case FI_BROADCAST:
        found = member->data;
        give(expected, call->type, call->number, call->root, 0, call->count);
        break;
    case FI_ALLREDUCE: reduced(expected, call->type, call->op, call->number, group_size, 0, call->count); break;
    case FI_REDUCE_SCATTER:
        reduced(expected, call->type, call->op, call->number, group_size, rank * call->count, call->count);
        break;
    case FI_REDUCE:
        if (is_root)
            reduced(expected, call->type, call->op, call->number, group_size, 0, call->count);
        break;
    case FI_SCATTER: give(expected, call->type, call->number, call->root, rank * call->count, call->count); break;
    case FI_ALLTOALL:
        blocks = group_size;
        for (int from = 0; from < group_size; from++)
            give(expected + from * bytes, call->type, call->number, from, rank * call->count, call->count);
        break;
    default: /* FI_ALLGATHER, FI_GATHER */
        blocks = group_size;
        for (int from = 0; from < group_size && (call->kind == FI_ALLGATHER || is_root); from++)
            give(expected + from * bytes, call->type, call->number, from, 0, call->count);
    }
    /* The byte behind the result too. */
    if (memcmp(found, expected, blocks * bytes) != 0 || (unsigned char)member->result[bytes * group_size] != 0xAA) {
        fprintf(stderr, "kind %d, type %d, operation %d, root %d, %zu elements, %d members\n", call->kind,
                types[call->type], call->op, call->root, call->count, group_size);
        die(__LINE__, "result", "differs");
    }
    free(expected);
    free(member->data);
    free(member->result);
    compared++;
}

static int is_member(const struct member *member) {
    return rank_of[member->rank] >= 0;
}

/* Several operations, started at once. */
static void perform(struct call *calls, int count) {
    static char *buffers[8][MOST][2];
    for (int i = 0; i < locals; i++)
        local[i].completions = 0;
    for (int number = 0; number < count; number++)
        for (int i = 0; i < locals; i++)
            if (is_member(&local[i])) {
                start(&local[i], &calls[number]);
                buffers[number][i][0] = local[i].data, buffers[number][i][1] = local[i].result;
            }
    for (int i = 0; i < locals; i++)
        while (is_member(&local[i]) && local[i].completions < count)
            poll_all();
    for (int number = 0; number < count; number++)
        for (int i = 0; i < locals; i++)
            if (is_member(&local[i])) {
                local[i].data = buffers[number][i][0], local[i].result = buffers[number][i][1];
                compare(&local[i], &calls[number]);
            }
}

/* ---- groups ---- */

static void start_join(struct member *member) {
    fi_addr_t parent;
    CHECK(fi_av_set_addr(member->set, &parent));
    CHECK(fi_join_collective(member->endpoint, parent, member->set, 0, &member->group, member));
    if (locals > 1 && group_size > 1) /* the others make no progress here */
        EXPECT(fi_barrier(member->endpoint, fi_mc_addr(member->group), member), -FI_EOPBADSTATE);
}

static void await_join(struct member *member) {
    struct fi_eq_entry entry;
    uint32_t event;
    long bytes;
    while ((bytes = fi_eq_read(member->events, &event, &entry, sizeof entry, 0)) == -FI_EAGAIN)
        poll_all();
    EXPECT(bytes, sizeof entry);
    EXPECT(event, FI_JOIN_COMPLETE);
    if (entry.fid != &member->group->fid || entry.context != member)
        die(__LINE__, "event", "of another group");
}

/* The group of the local sets. `numbers`: the members by rank. */
static void join(const int *numbers, int size) {
    group_size = size;
    memset(rank_of, -1, sizeof rank_of);
    for (int rank = 0; rank < size; rank++)
        rank_of[number_of[rank] = numbers[rank]] = rank;
    for (int i = 0; i < locals; i++)
        if (is_member(&local[i]))
            start_join(&local[i]);
    for (int i = 0; i < locals; i++)
        if (is_member(&local[i]))
            await_join(&local[i]);
}

static void leave(void) {
    for (int i = 0; i < locals; i++)
        if (is_member(&local[i])) {
            CHECK(fi_close(&local[i].group->fid));
            CHECK(fi_close(&local[i].set->fid));
        }
}

static struct fid_av_set *set_of(struct member *member, fi_addr_t start, fi_addr_t end, uint64_t stride, uint64_t flags) {
    struct fi_av_set_attr attr = {.count = members, .start_addr = start, .end_addr = end, .stride = stride, .flags = flags};
    struct fid_av_set *set;
    CHECK(fi_av_set(member->vector, &attr, &set, NULL));
    return set;
}

/* Random operations of the group that is joined: one by one, and several at once. */
static void operate(uint64_t number) {
    for (int kind = FI_BARRIER; kind <= FI_GATHER; kind++)
        for (int round = 0; round < ROUNDS / 10; round++) {
            struct call call = random_call(number++, kind);
            perform(&call, 1);
        }
    for (int round = 0; round < ROUNDS; round++) {
        struct call calls[8];
        int count = 1 + rand() % 8;
        for (int i = 0; i < count; i++)
            calls[i] = random_call(number++, rand() % (FI_GATHER + 1));
        perform(calls, count);
    }
}

/* ---- what is refused ---- */

static void refuse(struct member *member) {
    struct fid_ep *ep = member->endpoint;
    fi_addr_t group = fi_mc_addr(member->group), set = 0;
    char data[64] = {0}, result[64];
    struct fi_collective_attr attr = {.op = FI_SUM, .datatype = FI_DOUBLE};
    struct fid_mc *mc;
    CHECK(fi_query_collective(member->domain, FI_ALLREDUCE, &attr, 0));
    EXPECT(attr.datatype_attr.size, 8);
    if (attr.datatype_attr.count < 6000 || attr.max_members < MOST)
        die(__LINE__, "fi_query_collective", "limits");
    attr = (struct fi_collective_attr){.op = FI_NOOP, .datatype = FI_VOID};
    CHECK(fi_query_collective(member->domain, FI_BARRIER, &attr, 0));
    EXPECT(fi_query_collective(member->domain, FI_BROADCAST, &attr, 0), -FI_EOPNOTSUPP);
    attr.datatype = FI_INT8;
    CHECK(fi_query_collective(member->domain, FI_ALLTOALL, &attr, 0));
    attr.op = FI_SUM;
    EXPECT(fi_query_collective(member->domain, FI_REDUCE, &attr, 0), -FI_EOPNOTSUPP);
    attr = (struct fi_collective_attr){.op = FI_BOR, .datatype = FI_DOUBLE};
    EXPECT(fi_query_collective(member->domain, FI_ALLREDUCE, &attr, 0), -FI_EOPNOTSUPP);
    attr = (struct fi_collective_attr){.op = FI_ATOMIC_WRITE, .datatype = FI_INT32};
    EXPECT(fi_query_collective(member->domain, FI_REDUCE_SCATTER, &attr, 0), -FI_EOPNOTSUPP);
    attr = (struct fi_collective_attr){.op = FI_SUM, .datatype = FI_INT32, .mode = 1};
    EXPECT(fi_query_collective(member->domain, FI_ALLREDUCE, &attr, 0), -FI_EINVAL);
    EXPECT(fi_query_collective(member->domain, FI_ALLREDUCE, &attr, 1), -FI_EBADFLAGS);

    CHECK(fi_av_set_addr(member->set, &set));
    EXPECT(fi_barrier(ep, set, NULL), -FI_EINVAL);
    EXPECT(fi_barrier(ep, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    EXPECT(fi_barrier(ep, group + 1, NULL), -FI_EOPBADSTATE);
    EXPECT(fi_barrier2(ep, group, FI_INJECT, NULL), -FI_EBADFLAGS);
    EXPECT(fi_allreduce(ep, data, 1, NULL, result, NULL, group, FI_INT8, FI_SUM, 0, NULL), -FI_EOPNOTSUPP);
    EXPECT(fi_allreduce(ep, data, 1, NULL, result, NULL, group, FI_FLOAT, FI_BXOR, 0, NULL), -FI_EOPNOTSUPP);
    EXPECT(fi_allreduce(ep, data, 1, NULL, NULL, NULL, group, FI_FLOAT, FI_SUM, 0, NULL), -FI_EINVAL);
    EXPECT(fi_allgather(ep, data, (size_t)1 << 60, NULL, result, NULL, group, FI_INT8, 0, NULL), -FI_EMSGSIZE);
    EXPECT(fi_allgather(ep, data, (size_t)1 << 61, NULL, result, NULL, group, FI_INT64, 0, NULL), -FI_EMSGSIZE);
    EXPECT(fi_allgather(ep, data, 1, NULL, result, NULL, group, FI_VOID, 0, NULL), -FI_EOPNOTSUPP);
    EXPECT(fi_broadcast(ep, data, 1, NULL, group, members, FI_INT8, 0, NULL), -FI_EINVAL);
    EXPECT(fi_broadcast(ep, data, 1, NULL, group, FI_ADDR_UNSPEC, FI_INT8, 0, NULL), -FI_EINVAL);

    EXPECT(fi_av_set_insert(member->set, number_of[0]), -FI_EINVAL);
    EXPECT(fi_av_set_insert(member->set, members), -FI_EINVAL);
    EXPECT(fi_av_set_remove(member->set, members), -FI_EINVAL);
    EXPECT(fi_close(&member->vector->fid), -FI_EBUSY);
    struct fid_av_set *none = set_of(member, FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL, 0, 0);
    EXPECT(fi_join_collective(ep, FI_ADDR_NOTAVAIL, none, 0, &mc, NULL), -FI_EINVAL);
    EXPECT(fi_join(ep, data, 0, &mc, NULL), -FI_ENOSYS);
    EXPECT(fi_join_collective(ep, FI_ADDR_NOTAVAIL, none, FI_PEEK, &mc, NULL), -FI_EBADFLAGS);
    struct fi_av_set_attr wrong = {.start_addr = 0, .end_addr = 1, .stride = 0};
    EXPECT(fi_av_set(member->vector, &wrong, &none, NULL), -FI_EINVAL);
    wrong = (struct fi_av_set_attr){.start_addr = 0, .end_addr = 1, .stride = 1, .comm_key_size = 1};
    EXPECT(fi_av_set(member->vector, &wrong, &none, NULL), -FI_EOPNOTSUPP);
    CHECK(fi_close(&none->fid));
}

static void test_groups(void) {
    int all[MOST], odd[MOST], odds = 0, reversed[MOST];
    for (int i = 0; i < members; i++)
        all[i] = i, reversed[i] = members - 1 - i;
    for (int i = 1; i < members; i += 2)
        odd[odds++] = i;

    for (int i = 0; i < locals; i++)
        local[i].set = set_of(&local[i], 0, members - 1, 1, 0);
    join(all, members);
    operate(1000000);
    for (int i = 0; i < locals; i++)
        refuse(&local[i]);
    /* An operation that has not ended keeps its group. */
    for (int i = 0; i < locals; i++)
        local[i].completions = 0;
    if (members > 1 && local[0].rank == 0) {
        CHECK(fi_barrier(local[0].endpoint, fi_mc_addr(local[0].group), &local[0]));
        EXPECT(fi_close(&local[0].group->fid), -FI_EBUSY);
    }
    meet();
    for (int i = 0; i < locals; i++)
        if (members > 1 && local[i].rank > 0)
            CHECK(fi_barrier(local[i].endpoint, fi_mc_addr(local[i].group), &local[i]));
    for (int i = 0; i < locals; i++)
        while (members > 1 && local[i].completions == 0)
            poll_all();
    leave();

    /* Ranks in another order: that of the set. */
    for (int i = 0; i < locals; i++) {
        local[i].set = set_of(&local[i], FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL, 0, FI_ALLREDUCE_SET);
        for (int rank = 0; rank < members; rank++)
            CHECK(fi_av_set_insert(local[i].set, reversed[rank]));
    }
    join(reversed, members);
    operate(2000000);
    leave();

    /* A part of them, made by the operations on sets. */
    if (odds > 0) {
        for (int i = 0; i < locals; i++) {
            if (local[i].rank % 2 == 0)
                continue;
            struct fid_av_set *even = set_of(&local[i], 0, members - 1, 2, 0);
            struct fid_av_set *whole = set_of(&local[i], FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL, 0, FI_UNIVERSE);
            local[i].set = set_of(&local[i], 1, 1, 1, 0);
            CHECK(fi_av_set_union(local[i].set, whole));
            CHECK(fi_av_set_diff(local[i].set, even));
            CHECK(fi_av_set_union(even, local[i].set));
            CHECK(fi_av_set_remove(whole, 0));
            CHECK(fi_av_set_intersect(local[i].set, whole));
            CHECK(fi_close(&even->fid));
            CHECK(fi_close(&whole->fid));
        }
        join(odd, odds);
        operate(3000000);
        leave();
    }
    meet();

    /* More groups one after the other than may exist at once. */
    for (int repeat = 0; repeat < GROUPS; repeat++) {
        for (int i = 0; i < locals; i++)
            local[i].set = set_of(&local[i], 0, members - 1, 1, 0);
        join(all, members);
        struct call call = random_call(4000000 + repeat, FI_ALLREDUCE);
        perform(&call, 1);
        leave();
    }
}

static void close_members(void) {
    for (int i = 0; i < locals; i++) {
        CHECK(fi_close(&local[i].endpoint->fid));
        CHECK(fi_close(&local[i].vector->fid));
        CHECK(fi_close(&local[i].queue->fid));
        CHECK(fi_close(&local[i].events->fid));
        CHECK(fi_close(&local[i].domain->fid));
    }
}

/* ---- deaths ---- */

static void test_death(int is_late) {
    struct member *member = &local[0];
    struct fi_cq_err_entry error = {0};
    char data[8000] = {0}, result[8000];
    long count;
    if (is_late && member->rank == members - 1) {
        atomic_store(&shared->killed, 1);
        kill(getpid(), SIGKILL);
    }
    member->set = set_of(member, 0, members - 1, 1, 0);
    group_size = members;
    CHECK(fi_join_collective(member->endpoint, FI_ADDR_NOTAVAIL, member->set, 0, &member->group, member));
    uint32_t event;
    struct fi_eq_entry entry;
    while ((count = fi_eq_read(member->events, &event, &entry, sizeof entry, 0)) == -FI_EAGAIN)
        fi_cq_read(member->queue, NULL, 0);
    if (is_late) {
        struct fi_eq_err_entry failure = {0};
        EXPECT(count, -FI_EAVAIL);
        EXPECT(fi_eq_readerr(member->events, &failure, 0), sizeof failure);
        if (failure.fid != &member->group->fid || failure.context != member || failure.err <= 0)
            die(__LINE__, "error entry", "of another group");
        EXPECT(fi_barrier(member->endpoint, fi_mc_addr(member->group), NULL), -FI_EOPBADSTATE);
        CHECK(fi_close(&member->group->fid));
        return;
    }
    EXPECT(count, sizeof entry);
    meet();
    if (member->rank == members - 1)
        kill(getpid(), SIGKILL);
    fi_addr_t group = fi_mc_addr(member->group);
    CHECK(fi_barrier(member->endpoint, group, member));
    CHECK(fi_allreduce(member->endpoint, data, 1000, NULL, result, NULL, group, FI_DOUBLE, FI_SUM, 0, member));
    CHECK(fi_alltoall(member->endpoint, data, 8, NULL, result, NULL, group, FI_INT8, 0, member));
    for (int failed = 0; failed < 4; failed++) {
        if (failed == 3) /* after the failure is known */
            CHECK(fi_barrier(member->endpoint, group, member));
        struct fi_cq_tagged_entry entry;
        while ((count = fi_cq_read(member->queue, &entry, 1)) == -FI_EAGAIN) {
        }
        EXPECT(count, -FI_EAVAIL);
        EXPECT(fi_cq_readerr(member->queue, &error, 0), 1);
        if (error.op_context != member || !(error.flags & FI_COLLECTIVE) || error.err <= 0)
            die(__LINE__, "error entry", "of something else");
    }
    CHECK(fi_close(&member->group->fid));
}

int main(int argc, char **argv) {
    if (argc < 3 || (members = atoi(argv[2])) < 1 || members > MOST)
        return 2;
    int in_one = strcmp(argv[1], "endpoints") == 0, is_late = strcmp(argv[1], "late-death") == 0;
    int death = is_late || strcmp(argv[1], "death") == 0;
    if (argc > 3 && strcmp(argv[3], "AUTO") == 0)
        progress_kind = FI_PROGRESS_AUTO;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    locals = in_one ? members : 1;
    processes = in_one ? 1 : members;
    int rank = 0;
    pid_t children[MOST];
    for (int child = 1; child < processes && rank == 0; child++)
        if ((children[child] = fork()) == 0)
            rank = child;
    for (int i = 0; i < locals; i++)
        open_member(&local[i], rank + i);
    meet();
    for (int i = 0; i < locals; i++)
        EXPECT(fi_av_insert(local[i].vector, shared->names, members, NULL, 0, NULL), members);
    meet();
    srand(7); /* the same calls at all */
    if (death)
        test_death(is_late);
    else
        test_groups();
    if (!death)
        close_members();
    if (rank > 0)
        exit(0);
    int failures = 0;
    for (int child = 1; child < processes; child++) {
        int status = 1;
        waitpid(children[child], &status, 0);
        int killed = death && child == members - 1;
        failures += killed ? !WIFSIGNALED(status) : status != 0;
    }
    printf("%ld results agree\n", compared);
    return failures != 0;
}
