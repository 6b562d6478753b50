/* The collective operations of measure.c, and how they are measured. Data, clocks and checks are those of measure.c, which
 * includes this file. */

enum { LONG_BROADCAST = 16 << 10, FIRST_STEPS = 2000, MEAN_DELAY_US = 1000, FEWEST_LATE_CALLS = 10, COMPUTING_US = 3000 };

/* Whether operations are started, and then waited for. */
static int is_started;

/* Steps of computing between start and wait. */
static long compute_steps;

static void compute(void) {
    static volatile double result = 1;
    double value = result;
    for (long k = 0; k < compute_steps; k++) value = value * 0.999 + 1e-3;
    result = value;
}

static void barrier(void) {
    MPI_Request request;
    if (!is_started) {
        MPI_Barrier(MPI_COMM_WORLD);
        return;
    }
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    compute();
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static void reduction(double *share, double *sum) {
    MPI_Request request;
    if (!is_started) {
        MPI_Allreduce(share, sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        return;
    }
    MPI_Iallreduce(share, sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &request);
    compute();
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

/* No rank may leave before the last has entered. Each rank is the last one once. */
static void barriers(long count) {
    struct timespec late = {0, 2000000};
    for (long i = 0; i < count; i++) {
        if (checking && i == rank) nanosleep(&late, NULL);
        double entered = now_s(), left, last_entered, first_left;
        barrier();
        if (!checking) continue;
        left = now_s();
        MPI_Allreduce(&entered, &last_entered, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        MPI_Allreduce(&left, &first_left, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
        if (first_left < last_entered) wrong("a barrier", rank, i);
    }
}

static void reductions(long count) {
    for (long i = 0; i < count; i++) {
        double share = rank + 1.0 + i, sum = 0;
        reduction(&share, &sum);
        if (checking && sum != ranks * (ranks + 1) / 2.0 + (double)i * ranks) wrong("a sum", rank, i);
    }
}

static void exchanges(long count) {
    for (long i = 0; i < count; i++) {
        for (int to = 0; checking && to < ranks; to++) fill(out + (size_t)to * bytes, rank * ranks + to, i);
        MPI_Alltoall(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, MPI_COMM_WORLD);
        for (int from = 0; checking && from < ranks; from++) check(in + (size_t)from * bytes, from * ranks + rank, i);
    }
}

/* Reduces of one double, and broadcasts. The root changes each time, so that no rank runs ahead of all others. */
static void rooted_reductions(long count) {
    for (long i = 0; i < count; i++) {
        double share = rank + 1.0 + i, sum = 0;
        int root = (int)(i % ranks);
        MPI_Reduce(&share, &sum, 1, MPI_DOUBLE, MPI_SUM, root, MPI_COMM_WORLD);
        if (checking && rank == root && sum != ranks * (ranks + 1) / 2.0 + (double)i * ranks) wrong("a reduction", rank, i);
    }
}

static void broadcasts(long count) {
    for (long i = 0; i < count; i++) {
        int root = (int)(i % ranks);
        if (checking && rank == root) fill(in, root, i);
        MPI_Bcast(in, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
        if (checking) check(in, root, i);
    }
}

static void gatherings(long count) {
    for (long i = 0; i < count; i++) {
        if (checking) fill(out, rank, i);
        MPI_Allgather(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, MPI_COMM_WORLD);
        for (int from = 0; checking && from < ranks; from++) check(in + (size_t)from * bytes, from, i);
    }
}

/* Blocks of all to one rank, and of one to all. */
static void collections(long count) {
    for (long i = 0; i < count; i++) {
        int root = (int)(i % ranks);
        if (checking) fill(out, rank, i);
        MPI_Gather(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
        for (int from = 0; checking && rank == root && from < ranks; from++) check(in + (size_t)from * bytes, from, i);
    }
}

static void distributions(long count) {
    for (long i = 0; i < count; i++) {
        int root = (int)(i % ranks);
        for (int to = 0; checking && rank == root && to < ranks; to++) fill(out + (size_t)to * bytes, root * ranks + to, i);
        MPI_Scatter(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
        if (checking) check(in, root * ranks + rank, i);
    }
}

/* Each rank gets a block of the sums, of doubles. */
static void split_reductions(long count) {
    double *shares = (double *)out, *sums = (double *)in;
    int elements = bytes / (int)sizeof(double);
    for (long i = 0; i < count; i++) {
        for (int k = 0; checking && k < elements * ranks; k++) shares[k] = rank + 1.0 + k + i;
        MPI_Reduce_scatter_block(shares, sums, elements, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        for (int k = 0; checking && k < elements; k++)
            if (sums[k] != ranks * (ranks + 1) / 2.0 + (double)ranks * (rank * elements + k + i)) wrong("a block of sums", rank, i);
    }
}

/* Prints the means over the ranks: the time of one operation, and its cost at a rank. */
static void measure_operation(const char *name, void (*work)(long count), long checks, double seconds) {
    make_room(ranks);
    checked(work, checks);
    double took = measured(work, seconds), mine[5], sum[5];
    mine[0] = took * 1e6;
    memcpy(mine + 1, used, sizeof used);
    MPI_Reduce(mine, sum, 5, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    for (int k = 0; k < 5; k++) sum[k] /= ranks;
    if (rank == 0)
        printf("%s ranks=%d us=%.3f preempted=%.2f slept=%.2f user_us=%.2f system_us=%.2f\n", name, ranks, sum[0], sum[1], sum[2], sum[3], sum[4]);
}

static void measure_barrier(double seconds) { measure_operation("barrier", barriers, ranks, seconds); }

static void measure_allreduce(double seconds) { measure_operation("allreduce", reductions, CALLS, seconds); }

static void measure_alltoall(double seconds) { measure_operation("alltoall", exchanges, CALLS, seconds); }

static void measure_collectives(double seconds) {
    measure_barrier(seconds);
    measure_allreduce(seconds);
    measure_alltoall(seconds);
}

static void measure_broadcast(const char *name, int length, double seconds) {
    int block = bytes;
    bytes = length;
    measure_operation(name, broadcasts, ranks, seconds);
    bytes = block;
}

static void computations(long count) {
    for (long i = 0; i < count; i++) compute();
}

/* The mean over the ranks of the time of one operation. Unit: us. */
static double mean_us(void (*work)(long count), double seconds) {
    double took = measured(work, seconds) * 1e6, sum;
    MPI_Allreduce(&took, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sum / ranks;
}

/* Hidden is by how much less an operation and computing take together than one after the other: of the shorter one, in percent. */
static void print_hidden(const char *name, double pure, double computing, double both) {
    double hidden = 100 * (pure + computing - both) / (pure < computing ? pure : computing);
    hidden = hidden < 0 ? 0 : hidden > 100 ? 100 : hidden;
    if (rank == 0)
        printf("%s ranks=%d percent=%.1f pure_us=%.3f compute_us=%.3f both_us=%.3f\n", name, ranks, hidden, pure, computing, both);
}

/* How much of a started operation is hidden behind computing that takes about as long. */
static void measure_overlap(const char *name, void (*work)(long count), double seconds) {
    double pure = mean_us(work, seconds), computing, both;
    compute_steps = FIRST_STEPS;
    compute_steps = (long)(FIRST_STEPS * pure / mean_us(computations, seconds)) + 1;
    computing = mean_us(computations, seconds);
    both = mean_us(work, seconds);
    compute_steps = 0;
    print_hidden(name, pure, computing, both);
}

/* Time in the calls of ranks that come late. Of a reduction: also the time for which its root must wait, since a rank has not
 * entered yet. No library makes that shorter. */
static double in_calls_s, awaited_s;

/* The wait of a rank before a call: 0 to twice the mean, the same in each run. It sleeps, so that it needs no core: there may be
 * more ranks than cores. */
static void come_late(long call) {
    unsigned long drawn = ((unsigned long)call << 16 | (unsigned long)rank) + 1;
    for (int round = 0; round < 2; round++) {
        drawn *= 0x9e3779b97f4a7c15u;
        drawn ^= drawn >> 32;
    }
    struct timespec late = {0, (long)(drawn % (2 * MEAN_DELAY_US)) * 1000};
    nanosleep(&late, NULL);
}

/* Each call follows a barrier. All ranks but the root come late.
 * Source: Buntinas, 2003, section 6.3. */
static void late_broadcasts(long count) {
    in_calls_s = 0;
    for (long i = 0; i < count; i++) {
        double value = rank == 0 ? 1.0 + i : 0;
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank != 0) come_late(i);
        double entered = now_s();
        MPI_Bcast(&value, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        in_calls_s += now_s() - entered;
        if (value != 1.0 + i) wrong("a broadcast", 0, i);
    }
}

/* Each call follows a barrier. All ranks come late, the root too.
 * Source: Buntinas, 2003, section 4.3.4. */
static void late_reductions(long count) {
    in_calls_s = awaited_s = 0;
    for (long i = 0; i < count; i++) {
        double share = rank + 1.0 + i, sum = 0, last_entered;
        MPI_Barrier(MPI_COMM_WORLD);
        come_late(i);
        double entered = now_s();
        MPI_Reduce(&share, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        in_calls_s += now_s() - entered;
        if (rank == 0 && sum != ranks * (ranks + 1) / 2.0 + (double)i * ranks) wrong("a reduction", rank, i);
        MPI_Reduce(&entered, &last_entered, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) awaited_s += last_entered - entered;
    }
}

/* Prints the mean over the ranks and calls of the time in a call. A call takes little more than twice the mean wait, so the number
 * of calls is known. Returns it. */
static long measure_late(const char *name, void (*work)(long count), double seconds) {
    long count = (long)(2 * seconds / (MEAN_DELAY_US * 1e-6));
    if (count < FEWEST_LATE_CALLS) count = FEWEST_LATE_CALLS;
    work(CALLS);
    work(count);
    double mine = in_calls_s / count * 1e6, sum;
    MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%s ranks=%d us=%.3f\n", name, ranks, sum / ranks);
    return count;
}

static void measure_late_operations(double seconds) {
    measure_late("broadcast-late", late_broadcasts, seconds);
    long count = measure_late("reduce-late", late_reductions, seconds);
    if (rank == 0) printf("reduce-late-least ranks=%d us=%.3f\n", ranks, awaited_s / count * 1e6 / ranks);
}

/* What the computing rank does. */
enum { ALONE, COMPUTING, BOTH, WAYS };

/* One rank computes behind a started operation, longer than any other rank is late. Those sleep before they start it, so a core is
 * free where there are as many cores as ranks. The ways come in turn, each time with the same late ranks, so that what disturbs the
 * machine disturbs all of them. Times of the computing rank from start to end. */
static void measure_late_overlap(const char *name, void (*work)(long count), double seconds) {
    long count = (long)(seconds / (COMPUTING_US * 1e-6));
    if (count < FEWEST_LATE_CALLS) count = FEWEST_LATE_CALLS;
    compute_steps = FIRST_STEPS;
    double took[WAYS] = {0}, began = now_s();
    if (rank == 0) computations(CALLS * CALLS);
    long steps = (long)(FIRST_STEPS * COMPUTING_US * CALLS * CALLS / ((now_s() - began) * 1e6)) + 1;
    for (long i = 0; i < count; i++)
        for (int way = 0; way < WAYS; way++) {
            compute_steps = rank == 0 && way != ALONE ? steps : 0;
            MPI_Barrier(MPI_COMM_WORLD);
            if (rank != 0) come_late(i);
            double entered = now_s();
            if (way == COMPUTING)
                compute();
            else
                work(1);
            took[way] += (now_s() - entered) / count * 1e6;
        }
    compute_steps = 0;
    print_hidden(name, took[ALONE], took[COMPUTING], took[BOTH]);
}

static void measure_operations(double seconds) {
    if (bytes < (int)sizeof(double)) usage();
    measure_barrier(seconds);
    measure_allreduce(seconds);
    measure_operation("reduce", rooted_reductions, ranks, seconds);
    measure_broadcast("broadcast-short", (int)sizeof(double), seconds);
    measure_broadcast("broadcast-long", LONG_BROADCAST, seconds);
    measure_operation("allgather", gatherings, CALLS, seconds);
    measure_alltoall(seconds);
    measure_operation("gather", collections, ranks, seconds);
    measure_operation("scatter", distributions, ranks, seconds);
    measure_operation("reduce-scatter", split_reductions, CALLS, seconds);
    is_started = 1;
    measure_operation("ibarrier", barriers, ranks, seconds);
    measure_operation("iallreduce", reductions, CALLS, seconds);
    measure_overlap("ibarrier-overlap", barriers, seconds);
    measure_overlap("iallreduce-overlap", reductions, seconds);
    measure_late_overlap("ibarrier-late-overlap", barriers, seconds);
    measure_late_overlap("iallreduce-late-overlap", reductions, seconds);
    is_started = 0;
    measure_late_operations(seconds);
}
