/* MPI stress program that checks its data: random messages whose bytes, order and envelopes are known in advance.
 *
 * The seed gives every rank the same plan of each round: sender, receiver, communicator, tag, size, layout and kind of
 * send of each message. So a receiver can check everything that arrives, and the seed repeats a failure. The program
 * relies only on what MPI promises.
 *
 * It cannot deadlock, for these reasons. A lane is a communicator whose receives of a round are all of one kind:
 *   DIRECTED  source and tag named        ANY_SRC  any source, tag named
 *   ANY_TAG   source named, any tag       ANY      any source, any tag
 * A key is a lane with the source and tag that its receives name. Each key has as many receives as messages, so any
 * matching that MPI chooses is complete. A key is early or late, as the plan says. Receives of early keys are posted
 * before anything in the round that may block, and only messages of early keys use blocking sends. Messages of late keys
 * use non-blocking sends, and are received (or probed) after all sends of the round. Rounds with wildcards end with a
 * barrier, so that no receive matches a message of a later round.
 */
#include "checked.h"
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum lane { DIRECTED, ANY_SRC, ANY_TAG, ANY, LANES };
enum how { SEND, SSEND, ISEND, ISSEND, BSEND, PERSISTENT };
static const char *const how_names[] = {"Send", "Ssend", "Isend", "Issend", "Bsend", "Send_init"};
static const char *const way_names[] = {"Recv", "Probe", "Iprobe", "Mprobe", "Improbe", "Irecv"};
enum { TAGS = 5, UNUSED_TAG = 999, CANARY = 0xa5, ATTACHED_BYTES = 1 << 18 };

struct message {
    int lane, from, to, tag, early;
    enum how how;
    int send_blocks, recv_blocks; /* if more than 1: strided, with a gap of one block after each */
    size_t bytes;
    uint64_t key; /* its content */
    int taken;    /* a receive has got it; at the receiver only */
};

struct receive {
    int lane, from, tag, blocks; /* as posted, possibly wildcards */
    const char *way;             /* how it was received, for error messages */
    size_t bytes;                /* size of the buffer without gaps */
    unsigned char *data;
    MPI_Request request;
    MPI_Status status;
};

static struct { uint64_t seed; long rounds; size_t max_bytes; double seconds; } options = {0, 50, 8 << 20, 0};
static int rank, ranks;
static long round_now;
static MPI_Comm comm[LANES];
static uint64_t sent_messages, sent_bytes;
/* Of all ranks alike. `until`: the program ends when there is this file. `flips`: then it plays one round more, in which rank 0
 * changes a byte of so many messages, so that a test sees whether that is noticed. */
static const char *until;
static long flips;
static int flips_now;

struct dice { uint64_t state; };
static uint64_t roll(struct dice *d, uint64_t below) { return mix(d->state++) % below; }

static void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    counts->failures++;
    fprintf(stderr, "stress: WRONG at rank %d, round %ld: ", rank, round_now);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\nstress: repeat with -n %d and --seed %llu --rounds %ld --max-bytes %zu\n", ranks,
            (unsigned long long)options.seed, round_now + 1, options.max_bytes);
    va_end(args);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *room(size_t bytes) {
    void *data = malloc(bytes ? bytes : 1);
    if (!data) fail("out of memory for %zu bytes", bytes);
    return data;
}

/* --- content and layout --- */

static size_t extent(size_t bytes, int blocks) { return blocks > 1 ? 2 * bytes : bytes; }

/* Offset in memory of payload byte `at`. */
static size_t place(size_t at, size_t bytes, int blocks) {
    if (blocks <= 1) return at;
    size_t block = bytes / blocks;
    return at / block * 2 * block + at % block;
}

static unsigned char *filled(const struct message *m) {
    unsigned char *data = room(extent(m->bytes, m->send_blocks));
    for (size_t at = 0; at < m->bytes; at += 8) {
        uint64_t word = mix(m->key + at / 8);
        for (size_t i = at; i < at + 8 && i < m->bytes; i++, word >>= 8)
            data[place(i, m->bytes, m->send_blocks)] = word;
    }
    return data;
}

static void check_content(const struct message *m, const struct receive *r) {
    size_t wrong = 0, i = 0;
    for (size_t at = 0; at < m->bytes; at += 8) {
        uint64_t word = mix(m->key + at / 8);
        for (size_t of = at; of < at + 8 && of < m->bytes; of++, word >>= 8)
            if (r->data[place(of, r->bytes, r->blocks)] != (unsigned char)word && !wrong++) i = of;
    }
    counts->wrong_bytes += wrong;
    if (wrong)
        fail("byte %zu of %zu from %d tag %d lane %d is %02x, not %02x (%s into %d blocks, sent as %s from %d blocks)",
             i, m->bytes, m->from, m->tag, m->lane, r->data[place(i, r->bytes, r->blocks)], content(m->key, i), r->way,
             r->blocks, how_names[m->how], m->send_blocks);
    size_t block = r->blocks > 1 ? r->bytes / r->blocks : 0;
    for (int b = 0; b < (r->blocks > 1 ? r->blocks : 0); b++)
        for (size_t i = 0; i < block; i++)
            if (r->data[b * 2 * block + block + i] != CANARY)
                fail("a byte between the blocks of a strided receive from %d was written", m->from);
    if (r->blocks <= 1)
        for (size_t i = m->bytes; i < r->bytes && i < m->bytes + 64; i++)
            if (r->data[i] != CANARY) fail("a byte beyond a message of %zu bytes from %d was written", m->bytes, m->from);
}

/* The datatype of a layout; sets `count`. `done_with` frees it. */
static MPI_Datatype layout(size_t bytes, int blocks, int *count) {
    *count = bytes;
    if (blocks <= 1) return MPI_BYTE;
    MPI_Datatype type;
    MPI_Type_vector(blocks, bytes / blocks, 2 * (bytes / blocks), MPI_BYTE, &type);
    MPI_Type_commit(&type);
    *count = 1;
    return type;
}

static void done_with(MPI_Datatype *type) {
    if (*type != MPI_BYTE) MPI_Type_free(type);
}

/* --- the plan --- */

static size_t some_bytes(struct dice *d) {
    static const struct { int per_cent; size_t up_to; } skew[] = {
        {8, 0}, {42, 64}, {22, 2100}, {16, 17000}, {8, 140000}, {3, 1100000}, {1, SIZE_MAX}};
    int lot = roll(d, 100), i = 0;
    while (lot >= skew[i].per_cent) lot -= skew[i++].per_cent;
    size_t up_to = skew[i].up_to < options.max_bytes ? skew[i].up_to : options.max_bytes;
    return roll(d, up_to + 1);
}

static int some_blocks(struct dice *d, size_t bytes) {
    int blocks = 2 << roll(d, 4);
    return roll(d, 5) == 0 && bytes >= 64 && bytes % blocks == 0 ? blocks : 1;
}

/* Whether a key is early or late. All receives of a key are posted together. */
static int is_early(uint64_t salt, const struct message *m) {
    int from = m->lane == ANY_SRC || m->lane == ANY ? -1 : m->from;
    int tag = m->lane == ANY_TAG || m->lane == ANY ? -1 : m->tag;
    return mix(salt ^ mix(((m->lane * 64 + from + 1) * 64 + tag + 1) * 64 + m->to)) % 3 != 0;
}

static struct message *make_plan(int *count, int *wild) {
    struct dice d = {mix(options.seed ^ mix(round_now))};
    uint64_t salt = mix(d.state);
    *wild = roll(&d, 2);
    *count = 1 + roll(&d, roll(&d, 4) ? 12 * ranks : 100 * ranks);
    int flooded = roll(&d, 4) ? -1 : (int)roll(&d, ranks); /* sometimes all ranks send to one */
    size_t budget = 4 * options.max_bytes + (16 << 20);
    struct message *plan = room(*count * sizeof *plan);
    for (int i = 0; i < *count; i++) {
        struct message *m = &plan[i];
        m->lane = *wild ? roll(&d, LANES) : DIRECTED;
        m->from = roll(&d, ranks);
        m->to = flooded >= 0 ? flooded : (int)roll(&d, ranks);
        m->tag = roll(&d, TAGS);
        m->bytes = some_bytes(&d);
        if (roll(&d, 3) == 0) m->bytes -= m->bytes % 16; /* such sizes can be strided */
        if (m->bytes > budget) m->bytes = roll(&d, 64);
        budget -= m->bytes;
        m->early = is_early(salt, m);
        m->how = m->early ? roll(&d, 4) : ISEND + roll(&d, 4);
        if (m->how == BSEND && m->bytes > 4096) m->how = ISEND;
        m->send_blocks = m->how == BSEND ? 1 : some_blocks(&d, m->bytes);
        m->recv_blocks = m->lane == DIRECTED ? some_blocks(&d, m->bytes) : 1;
        m->key = mix(options.seed + mix(round_now * 1000003 + i));
        m->taken = 0;
    }
    return plan;
}

/* --- receiving --- */

/* Compares a completed receive with the next message of its sender in MPI's order. */
static void check(struct message *plan, int count, struct receive *r) {
    int from = r->status.MPI_SOURCE, tag = r->status.MPI_TAG, got = -1;
    if (r->from != MPI_ANY_SOURCE && from != r->from) fail("asked for source %d, got %d", r->from, from);
    if (r->tag != MPI_ANY_TAG && tag != r->tag) fail("asked for tag %d, got %d", r->tag, tag);
    MPI_Get_count(&r->status, MPI_BYTE, &got);
    for (int i = 0; i < count; i++) {
        struct message *m = &plan[i];
        if (m->taken || m->to != rank || m->lane != r->lane || m->from != from) continue;
        if (r->tag != MPI_ANY_TAG && m->tag != tag) continue;
        if (m->tag != tag) fail("from %d lane %d: tag %d overtook tag %d", from, r->lane, tag, m->tag);
        if ((size_t)got != m->bytes)
            fail("from %d tag %d lane %d: %d bytes where %zu are next in order", from, tag, r->lane, got, m->bytes);
        check_content(m, r);
        m->taken = 1;
        counts->checked++, counts->bytes += m->bytes;
        return;
    }
    fail("from %d tag %d lane %d: a message of %d bytes that no rank sent", from, tag, r->lane, got);
}

/* The receive of the planned message `m`, or of another message of its key. */
static struct receive for_message(const struct message *m, const struct message *plan, int count) {
    struct receive r = {.lane = m->lane, .from = m->from, .tag = m->tag, .blocks = m->recv_blocks, .bytes = m->bytes};
    if (m->lane == ANY_SRC || m->lane == ANY) r.from = MPI_ANY_SOURCE;
    if (m->lane == ANY_TAG || m->lane == ANY) r.tag = MPI_ANY_TAG;
    for (int i = 0; m->lane != DIRECTED && i < count; i++) /* room for the largest message of the key */
        if (plan[i].to == rank && plan[i].lane == m->lane && plan[i].bytes > r.bytes &&
            (r.from == MPI_ANY_SOURCE || r.from == plan[i].from) && (r.tag == MPI_ANY_TAG || r.tag == plan[i].tag))
            r.bytes = plan[i].bytes;
    if (m->lane == DIRECTED && r.blocks == 1 && m->key % 4 == 0) r.bytes += 40; /* sometimes more room than needed */
    return r;
}

static void open_room(struct receive *r) {
    r->data = room(extent(r->bytes, r->blocks));
    memset(r->data, CANARY, extent(r->bytes, r->blocks));
}

static void post(struct receive *r, int persistent) {
    int count;
    r->way = persistent ? "Recv_init" : "Irecv";
    open_room(r);
    MPI_Datatype type = layout(r->bytes, r->blocks, &count);
    if (persistent) {
        MPI_Recv_init(r->data, count, type, r->from, r->tag, comm[r->lane], &r->request);
        MPI_Start(&r->request);
    } else {
        MPI_Irecv(r->data, count, type, r->from, r->tag, comm[r->lane], &r->request);
    }
    done_with(&type);
}

/* Receives one message of a late key with one of MPI's calls. All but `Imrecv` and `Irecv` complete here. */
static void receive_late(struct receive *r, unsigned way) {
    int flag = 0, count, got;
    MPI_Message message;
    MPI_Comm c = comm[r->lane];
    r->way = way_names[way];
    if (way == 5) return post(r, 0);
    if (way == 1 || way == 2) { /* a probed message is the next one of its source and tag */
        if (way == 1) MPI_Probe(r->from, r->tag, c, &r->status);
        while (way == 2 && !flag) MPI_Iprobe(r->from, r->tag, c, &flag, &r->status);
    }
    if (way == 3) MPI_Mprobe(r->from, r->tag, c, &message, &r->status);
    while (way == 4 && !flag) MPI_Improbe(r->from, r->tag, c, &flag, &message, &r->status);
    if (way) {
        MPI_Get_count(&r->status, MPI_BYTE, &got);
        if (got < 0 || (size_t)got > r->bytes) fail("probed %d bytes where at most %zu may come", got, r->bytes);
        if (r->blocks == 1) r->bytes = got;
    }
    open_room(r);
    MPI_Datatype type = layout(r->bytes, r->blocks, &count);
    int from = way ? r->status.MPI_SOURCE : r->from, tag = way ? r->status.MPI_TAG : r->tag;
    if (way <= 2) MPI_Recv(r->data, count, type, from, tag, c, &r->status);
    if (way == 3) MPI_Mrecv(r->data, count, type, &message, &r->status);
    if (way == 4) MPI_Imrecv(r->data, count, type, &message, &r->request);
    done_with(&type);
}

/* Cancels a receive that no message can match. */
static void cancel_one(struct dice *d) {
    int data, cancelled, lane = roll(d, LANES);
    MPI_Request request;
    MPI_Status status;
    MPI_Irecv(&data, sizeof data, MPI_BYTE, roll(d, 2) ? MPI_ANY_SOURCE : (int)roll(d, ranks), UNUSED_TAG, comm[lane], &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &cancelled);
    if (!cancelled) fail("a cancelled receive that nothing can match was not cancelled");
}

/* --- sending --- */

static void send(const struct message *m, unsigned char *data, MPI_Request *request) {
    int count;
    MPI_Datatype type = layout(m->bytes, m->send_blocks, &count);
    MPI_Comm c = comm[m->lane];
    if (rank == 0 && flips_now && flips && m->bytes) data[0] ^= 1, flips--;
    *request = MPI_REQUEST_NULL;
    switch (m->how) {
    case SEND: MPI_Send(data, count, type, m->to, m->tag, c); break;
    case SSEND: MPI_Ssend(data, count, type, m->to, m->tag, c); break;
    case ISEND: MPI_Isend(data, count, type, m->to, m->tag, c, request); break;
    case ISSEND: MPI_Issend(data, count, type, m->to, m->tag, c, request); break;
    case BSEND: MPI_Bsend(data, count, type, m->to, m->tag, c); break;
    case PERSISTENT:
        MPI_Send_init(data, count, type, m->to, m->tag, c, request);
        MPI_Start(request);
    }
    done_with(&type);
    sent_messages++, counts->sent++;
    sent_bytes += m->bytes;
}

/* Waits with one of MPI's calls. Each status is stored at the index of its request. */
static void wait_all(MPI_Request *requests, MPI_Status *statuses, int count, unsigned way) {
    int done = 0, index, flag = 0, *indices = room(count * sizeof *indices);
    MPI_Status status, *some = room(count * sizeof *some);
    switch (way) {
    case 0: MPI_Waitall(count, requests, statuses); break;
    case 1:
        while (MPI_Waitany(count, requests, &index, &status), index != MPI_UNDEFINED) statuses[index] = status;
        break;
    case 2:
        while (MPI_Waitsome(count, requests, &done, indices, some), done != MPI_UNDEFINED)
            for (int i = 0; i < done; i++) statuses[indices[i]] = some[i];
        break;
    case 3:
        while (!flag) MPI_Testall(count, requests, &flag, statuses);
        break;
    default:
        for (int i = count; i-- > 0;) MPI_Wait(&requests[i], &statuses[i]);
    }
    free(indices);
    free(some);
}

/* --- rounds --- */

static void point_to_point(struct dice *mine) {
    int count, wild, receives = 0, sends = 0;
    struct message *plan = make_plan(&count, &wild);
    struct receive *incoming = room(count * sizeof *incoming);
    MPI_Request *requests = room(2 * count * sizeof *requests);
    MPI_Status *statuses = room(2 * count * sizeof *statuses);
    unsigned char **data = room(count * sizeof *data);

    if (roll(mine, 8) == 0) usleep(roll(mine, 3000)); /* messages become unexpected */
    if (roll(mine, 4) == 0) cancel_one(mine);
    for (int i = 0; i < count; i++)
        if (plan[i].to == rank && plan[i].early) {
            incoming[receives] = for_message(&plan[i], plan, count);
            post(&incoming[receives++], roll(mine, 8) == 0);
        }
    for (int i = 0; i < count; i++)
        if (plan[i].from == rank) {
            data[sends] = filled(&plan[i]);
            send(&plan[i], data[sends], &requests[sends]);
            sends++;
        }
    for (int i = 0; i < count; i++)
        if (plan[i].to == rank && !plan[i].early) {
            incoming[receives] = for_message(&plan[i], plan, count);
            incoming[receives].request = MPI_REQUEST_NULL;
            unsigned way = roll(mine, 6);
#ifdef OPEN_MPI /* its mtl/ofi does not unpack messages of Mrecv and Imrecv (ompi_mtl_ofi_mrecv_callback) */
            if (incoming[receives].blocks > 1 && (way == 3 || way == 4)) way -= 2;
#endif
            receive_late(&incoming[receives++], way);
        }
    /* Completed receives keep their status. The others get it from the wait. */
    int *open = room((receives + 1) * sizeof *open), waiting = sends;
    for (int i = 0; i < receives; i++)
        if (incoming[i].request != MPI_REQUEST_NULL) {
            open[waiting - sends] = i;
            requests[waiting++] = incoming[i].request;
        }
    MPI_Request *kept = room((waiting + 1) * sizeof *kept); /* a completed persistent request must still be freed */
    memcpy(kept, requests, waiting * sizeof *kept);
    wait_all(requests, statuses, waiting, roll(mine, 5));
    for (int i = 0; i < waiting; i++) {
        if (i >= sends) incoming[open[i - sends]].status = statuses[i];
        if (requests[i] != MPI_REQUEST_NULL) MPI_Request_free(&requests[i]);
    }
    for (int i = 0; i < receives; i++) { /* in the order in which they were posted */
        check(plan, count, &incoming[i]);
        free(incoming[i].data);
    }
    for (int i = 0; i < sends; i++) free(data[i]);
    if (wild) MPI_Barrier(MPI_COMM_WORLD);
    free(kept), free(open), free(data), free(statuses), free(requests), free(incoming), free(plan);
}

/* Each rank sends to the rank `shift` after it and receives from the one `shift` before it. */
static void shift(struct dice *all) {
    int by = roll(all, ranks), count;
    struct message plan[64];
    for (int from = 0; from < ranks && from < 64; from++) {
        size_t bytes = some_bytes(all);
        plan[from] = (struct message){.lane = DIRECTED, .from = from, .to = (from + by) % ranks, .tag = TAGS, .bytes = bytes,
                                      .send_blocks = 1, .recv_blocks = 1, .key = mix(all->state + from)};
    }
    struct message *out = &plan[rank], *in = &plan[(rank + ranks - by) % ranks];
    struct receive r = {.lane = DIRECTED, .from = in->from, .tag = TAGS, .way = "Sendrecv", .blocks = 1, .bytes = in->bytes};
    unsigned char *data = filled(out);
    open_room(&r);
    count = r.bytes;
    MPI_Sendrecv(data, out->bytes, MPI_BYTE, out->to, TAGS, r.data, count, MPI_BYTE, in->from, TAGS, comm[DIRECTED], &r.status);
    check(plan, ranks, &r);
    free(data), free(r.data);
    sent_messages++, counts->sent++, sent_bytes += out->bytes;
}

static void collectives(void) {
    long mine = rank + round_now, sum;
    int *out = room(ranks * sizeof *out), *in = room(ranks * sizeof *in);
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (sum != ranks * round_now + (long)ranks * (ranks - 1) / 2) fail("allreduce gave %ld", sum);
    for (int i = 0; i < ranks; i++) out[i] = rank * 1000 + i;
    MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < ranks; i++)
        if (in[i] != i * 1000 + rank) fail("alltoall gave %d from %d", in[i], i);
    free(out), free(in);
}

static int time_is_over(double start) {
    int over = (options.seconds > 0 && MPI_Wtime() - start > options.seconds) || (until && !access(until, F_OK));
    if (options.seconds > 0 || until) MPI_Bcast(&over, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return over;
}

static void read_options(int argc, char **argv) {
    options.seed = mix(time(NULL) ^ (uint64_t)getpid() << 32) >> 16;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        char *end = NULL;
        if (value && !strcmp(argv[i], "--seed")) options.seed = strtoull(value, &end, 0);
        else if (value && !strcmp(argv[i], "--rounds")) options.rounds = strtol(value, &end, 0);
        else if (value && !strcmp(argv[i], "--max-bytes")) options.max_bytes = strtoull(value, &end, 0);
        else if (value && !strcmp(argv[i], "--seconds")) options.seconds = strtod(value, &end), options.rounds = 1L << 40;
        else if (value && !strcmp(argv[i], "--flips")) flips = strtol(value, &end, 0);
        else if (value && !strcmp(argv[i], "--until")) until = value, end = "", options.rounds = 1L << 40;
        else if (value && !strcmp(argv[i], "--counts") && !share_counts(value, rank)) end = "";
        if (!end || *end) {
            if (rank == 0)
                fprintf(stderr, "usage: stress [--seed N] [--rounds N] [--max-bytes N] [--seconds S] [--until FILE] "
                                "[--counts DIRECTORY] [--flips N]; not %s\n", argv[i]);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
    }
    MPI_Bcast(&options, sizeof options, MPI_BYTE, 0, MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    read_options(argc, argv);
    for (int lane = 0; lane < LANES; lane++) MPI_Comm_dup(MPI_COMM_WORLD, &comm[lane]);
    void *attached = room(ATTACHED_BYTES), *detached;
    int detached_bytes;
    struct dice mine = {mix(options.seed + 77 * rank)};
    double start = MPI_Wtime();
    if (rank == 0) printf("stress: %d ranks, seed %llu\n", ranks, (unsigned long long)options.seed), fflush(stdout);
    for (round_now = 0; round_now < options.rounds; round_now++) {
        struct dice all = {mix(options.seed ^ mix(~round_now))};
        MPI_Buffer_attach(attached, ATTACHED_BYTES);
        point_to_point(&mine);
        MPI_Buffer_detach(&detached, &detached_bytes);
        if (roll(&all, 3) == 0 && ranks <= 64) shift(&all);
        if (roll(&all, 6) == 0) collectives();
        if (time_is_over(start)) {
            if (flips && !flips_now) {
                flips_now = 1;
                continue;
            }
            round_now++;
            break;
        }
    }
    uint64_t mine_sent[2] = {sent_messages, sent_bytes}, sum[2];
    MPI_Reduce(mine_sent, sum, 2, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("stress: %ld rounds, %llu messages, %llu bytes, %.1f s, seed %llu: all correct\n", round_now,
               (unsigned long long)sum[0], (unsigned long long)sum[1], MPI_Wtime() - start, (unsigned long long)options.seed);
    counts->ended = 1;
    free(attached);
    for (int lane = 0; lane < LANES; lane++) MPI_Comm_free(&comm[lane]);
    MPI_Finalize();
    return 0;
}
