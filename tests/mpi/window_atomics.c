/* Atomic operations on windows, by all ranks at once, checked against what they must add up to.
 *
 * usage: window_atomics REPEATS [KEY=VALUE]...
 *
 * Each KEY=VALUE is an info key of every window. For each kind of window (allocated, created, dynamic, and created with
 * other displacement units) all ranks, to themselves too:
 * - count with MPI_Fetch_and_op: each number comes once;
 * - count with MPI_Compare_and_swap;
 * - add vectors of several types and lengths with MPI_Accumulate and MPI_Get_accumulate;
 * - replace, compare and combine bits.
 * Prints one line for each kind of window. Any difference ends the run with status 3.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { ALLOCATED, CREATED, DYNAMIC, UNITS, KINDS };
static const char *const kind_names[KINDS] = {"allocated", "created", "dynamic", "units"};
enum { WINDOW_BYTES = 1 << 18 };

static int rank, ranks, repeats;

/* A window, and where its memory begins at each target, in units of bytes. */
struct window {
    MPI_Win handle;
    char *memory;
    MPI_Aint *base;
    int *unit;
};

static void expect(const char *what, enum kind kind, long long found, long long wanted) {
    if (found != wanted) {
        fprintf(stderr, "rank %d, %s, %s: %lld instead of %lld\n", rank, kind_names[kind], what, found, wanted);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
}

static struct window open_window(enum kind kind, MPI_Info info) {
    struct window window = {0};
    /* With a different unit at each rank, the library must ask for that of the target. */
    int unit = kind == UNITS && rank % 2 == 1 ? 4 : 1;
    MPI_Aint base = 0;
    if (kind == ALLOCATED) {
        MPI_Win_allocate(WINDOW_BYTES, unit, info, MPI_COMM_WORLD, &window.memory, &window.handle);
    } else {
        window.memory = aligned_alloc(64, WINDOW_BYTES);
        if (kind == DYNAMIC) {
            MPI_Win_create_dynamic(info, MPI_COMM_WORLD, &window.handle);
            MPI_Win_attach(window.handle, window.memory, WINDOW_BYTES);
            MPI_Get_address(window.memory, &base);
        } else {
            MPI_Win_create(window.memory, WINDOW_BYTES, unit, info, MPI_COMM_WORLD, &window.handle);
        }
    }
    window.base = malloc(ranks * sizeof *window.base);
    window.unit = malloc(ranks * sizeof *window.unit);
    MPI_Allgather(&base, 1, MPI_AINT, window.base, 1, MPI_AINT, MPI_COMM_WORLD);
    MPI_Allgather(&unit, 1, MPI_INT, window.unit, 1, MPI_INT, MPI_COMM_WORLD);
    MPI_Win_lock_all(0, window.handle);
    return window;
}

static void close_window(enum kind kind, struct window *window) {
    MPI_Win_unlock_all(window->handle);
    MPI_Barrier(MPI_COMM_WORLD);
    if (kind == DYNAMIC)
        MPI_Win_detach(window->handle, window->memory);
    MPI_Win_free(&window->handle);
    if (kind != ALLOCATED)
        free(window->memory);
    free(window->base);
    free(window->unit);
}

static MPI_Aint place(const struct window *window, int target, MPI_Aint offset) {
    return window->base[target] + offset / window->unit[target];
}

/* All ranks are between two tests. The window is all zero. */
static void clear(struct window *window) {
    MPI_Win_flush_all(window->handle);
    MPI_Barrier(MPI_COMM_WORLD);
    memset(window->memory, 0, WINDOW_BYTES);
    MPI_Win_sync(window->handle);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* All operations of all ranks are in the memory. */
static void settle(struct window *window) {
    MPI_Win_flush_all(window->handle);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(window->handle);
}

static void count_by_fetching(enum kind kind, struct window *window) {
    clear(window);
    long long one = 1, before = -1, found = 0, sum, total = (long long)repeats * ranks;
    int target = ranks - 1;
    for (int i = 0; i < repeats; i++) {
        long long last = before;
        MPI_Fetch_and_op(&one, &before, MPI_LONG_LONG, target, place(window, target, 64), MPI_SUM, window->handle);
        MPI_Win_flush(target, window->handle);
        if (before <= last)
            expect("a count that does not grow", kind, before, last + 1);
        found += before;
    }
    MPI_Allreduce(&found, &sum, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    expect("sum of the fetched counts", kind, sum, total * (total - 1) / 2);
    settle(window);
    if (rank == target)
        expect("count", kind, *(long long *)(window->memory + 64), total);
}

static void count_by_comparing(enum kind kind, struct window *window) {
    clear(window);
    for (int i = 0; i < repeats; i++) {
        int expected = 0, found = -1;
        for (;;) {
            int next = expected + 1;
            MPI_Compare_and_swap(&next, &expected, &found, MPI_INT, 0, place(window, 0, 128), window->handle);
            MPI_Win_flush(0, window->handle);
            if (found == expected)
                break;
            expected = found;
        }
    }
    settle(window);
    if (rank == 0)
        expect("count of successful swaps", kind, *(int *)(window->memory + 128), (long long)repeats * ranks);
}

/* Each rank adds its vectors to all ranks. `fetch`: it gets the old values, none of which is above the end. */
#define ADD(kind, window, type, mpi_type, count, fetch)                                                              \
    do {                                                                                                            \
        clear(window);                                                                                              \
        type *ones = malloc((count) * sizeof(type)), *old = malloc((count) * sizeof(type));                         \
        int times = repeats < 40 ? repeats : 40 / ranks; /* a byte can hold the sum */                              \
        for (int i = 0; i < (count); i++)                                                                           \
            ones[i] = 1;                                                                                            \
        for (int i = 0; i < times; i++)                                                                             \
            for (int target = 0; target < ranks; target++) {                                                        \
                MPI_Aint at = place(window, target, 256);                                                           \
                if (fetch) {                                                                                        \
                    MPI_Get_accumulate(ones, count, mpi_type, old, count, mpi_type, target, at, count, mpi_type, MPI_SUM, \
                                       (window)->handle);                                                           \
                    MPI_Win_flush(target, (window)->handle);                                                        \
                    for (int place = 0; place < (count); place++)                                                   \
                        if (old[place] < i || old[place] > times * ranks - (times - i))                             \
                            expect("old " #type, kind, (long long)old[place], i);                                   \
                } else {                                                                                            \
                    MPI_Accumulate(ones, count, mpi_type, target, at, count, mpi_type, MPI_SUM, (window)->handle);  \
                }                                                                                                   \
            }                                                                                                       \
        settle(window);                                                                                             \
        for (int i = 0; i < (count); i++)                                                                           \
            expect("sum of " #type, kind, (long long)((type *)((window)->memory + 256))[i], times * ranks);         \
        settle(window);                                                                                             \
        free(ones);                                                                                                 \
        free(old);                                                                                                  \
    } while (0)

static void replace_and_combine(enum kind kind, struct window *window) {
    clear(window);
    unsigned bit = 1u << rank, found, all = (1u << ranks) - 1;
    double mine = rank + 1, largest;
    for (int target = 0; target < ranks; target++) {
        MPI_Accumulate(&bit, 1, MPI_UNSIGNED, target, place(window, target, 0), 1, MPI_UNSIGNED, MPI_BOR, window->handle);
        MPI_Accumulate(&mine, 1, MPI_DOUBLE, target, place(window, target, 8), 1, MPI_DOUBLE, MPI_MAX, window->handle);
        MPI_Accumulate(&rank, 1, MPI_INT, target, place(window, target, 16 + 4 * rank), 1, MPI_INT, MPI_REPLACE,
                       window->handle);
    }
    settle(window);
    for (int target = 0; target < ranks; target++) {
        MPI_Get_accumulate(NULL, 0, MPI_UNSIGNED, &found, 1, MPI_UNSIGNED, target, place(window, target, 0), 1, MPI_UNSIGNED,
                           MPI_NO_OP, window->handle);
        MPI_Fetch_and_op(NULL, &largest, MPI_DOUBLE, target, place(window, target, 8), MPI_NO_OP, window->handle);
        MPI_Win_flush(target, window->handle);
        expect("bits", kind, found, all);
        expect("largest", kind, (long long)largest, ranks);
    }
    for (int i = 0; i < ranks; i++)
        expect("replaced", kind, ((int *)(window->memory + 16))[i], i);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    repeats = argc > 1 ? atoi(argv[1]) : 0;
    if (repeats <= 0 || ranks > 31) {
        fprintf(stderr, "usage: at most 31 ranks, window_atomics REPEATS [KEY=VALUE]...\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    MPI_Info info;
    MPI_Info_create(&info);
    for (int i = 2; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        *value = 0;
        MPI_Info_set(info, argv[i], value + 1);
    }
    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct window window = open_window(kind, info);
        count_by_fetching(kind, &window);
        count_by_comparing(kind, &window);
        for (int fetch = 0; fetch < 2; fetch++) {
            ADD(kind, &window, int, MPI_INT, 1, fetch);
            ADD(kind, &window, int, MPI_INT, 17, fetch);
            ADD(kind, &window, double, MPI_DOUBLE, 512, fetch);
            ADD(kind, &window, double, MPI_DOUBLE, 513, fetch); /* longer than one atomic of weir */
            ADD(kind, &window, float, MPI_FLOAT, 20000, fetch);
            ADD(kind, &window, signed char, MPI_SIGNED_CHAR, 33, fetch); /* weir has no atomics on bytes */
        }
        replace_and_combine(kind, &window);
        close_window(kind, &window);
        if (rank == 0)
            printf("window_atomics %s agrees\n", kind_names[kind]);
        fflush(stdout);
    }
    MPI_Info_free(&info);
    MPI_Finalize();
    return 0;
}
