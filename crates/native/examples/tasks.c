/* Tasks from one counter: each rank takes the next task by fetch-and-add, so fast ranks do more of them. Then the ranks
 * sum up by a reduction, tell the result by a broadcast, and put it to their neighbours. Groups and a lock follow.
 *
 *   cc tasks.c -lweir && mpiexec -n 4 ./a.out
 *
 * `a.out RANK` lets this rank stop after the first barrier, to show what the others see when somebody ends it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "weir.h"

enum { TASKS = 1000, DEPOSITS = 50, COUNTER_KEY = 1, MAILBOX_KEY = 2, ACCOUNT_KEY = 3, LOCK_KEY = 4 };

/* Ends with the number of the error. Closing tells the other ranks. */
static void check(weir_endpoint *endpoint, int status, const char *what) {
    if (status != WEIR_OK) {
        fprintf(stderr, "%s: %s\n", what, weir_error());
        if (endpoint != NULL) {
            weir_close(endpoint);
        }
        exit(status);
    }
}

static void expect(int is_right, const char *what) {
    if (!is_right) {
        fprintf(stderr, "wrong: %s\n", what);
        exit(100);
    }
}

static double work(uint64_t task) {
    double x = ((double)task + 0.5) / TASKS;
    return 4.0 / (1.0 + x * x) / TASKS;
}

int main(int argument_count, char **arguments) {
    weir_endpoint *endpoint = NULL;
    weir_options options = WEIR_OPTIONS_INIT;
    check(endpoint, weir_open(&options, &endpoint), "open");
    uint32_t rank = weir_rank(endpoint), size = weir_size(endpoint);

    /* Words of this rank: the counter is used at rank 0 only. */
    static uint64_t counter;
    static double mailbox;
    unsigned rights = WEIR_READABLE | WEIR_WRITABLE;
    check(endpoint, weir_register(endpoint, COUNTER_KEY, &counter, sizeof counter, rights), "register");
    check(endpoint, weir_register(endpoint, MAILBOX_KEY, &mailbox, sizeof mailbox, rights), "register");
    check(endpoint, weir_barrier(endpoint, WEIR_WORLD), "barrier");
    if (argument_count > 1 && (uint32_t)atoi(arguments[1]) == rank) {
        printf("rank %" PRIu32 " waits for its end\n", rank);
        fflush(stdout);
        for (;;) {
            pause();
        }
    }

    weir_place next_task = { COUNTER_KEY, 0, 0 };
    uint64_t task, done = 0;
    double part = 0;
    for (;;) {
        check(endpoint, weir_fetch_add_u64(endpoint, &next_task, 1, &task), "next task");
        if (task >= TASKS) {
            break;
        }
        part += work(task);
        done++;
    }

    /* Split phase: the sum of the parts and the number of tasks are under way together. */
    double pi = 0;
    uint64_t tasks = 0;
    weir_reduction parts = { WEIR_WORLD, 0, WEIR_SUM, WEIR_F64 };
    weir_reduction counts = { WEIR_WORLD, WEIR_ALL, WEIR_SUM, WEIR_U64 };
    weir_request requests[2];
    check(endpoint, weir_start_reduce(endpoint, &parts, &part, &pi, 1, &requests[0]), "reduce");
    check(endpoint, weir_start_reduce(endpoint, &counts, &done, &tasks, 1, &requests[1]), "reduce");
    for (int has_ended = 0; !has_ended;) {
        check(endpoint, weir_test(endpoint, &requests[1], &has_ended), "test");
    }
    check(endpoint, weir_wait(endpoint, &requests[0]), "wait");
    expect(tasks == TASKS && requests[0] == WEIR_NO_REQUEST && requests[1] == WEIR_NO_REQUEST, "number of tasks");
    check(endpoint, weir_broadcast(endpoint, WEIR_WORLD, 0, &pi, sizeof pi), "broadcast");
    expect(pi > 3.1415 && pi < 3.1417, "pi");

    weir_place neighbour = { MAILBOX_KEY, 0, (rank + 1) % size };
    check(endpoint, weir_put(endpoint, &neighbour, &pi, sizeof pi), "put");
    check(endpoint, weir_barrier(endpoint, WEIR_WORLD), "barrier");
    expect(mailbox == pi, "what the neighbour has put");

    /* A group of the ranks in reversed order. */
    uint32_t *members = malloc(size * sizeof *members), *gathered = malloc(size * sizeof *gathered), place;
    expect(members != NULL && gathered != NULL, "memory");
    for (uint32_t member = 0; member < size; member++) {
        members[member] = size - 1 - member;
    }
    weir_group reversed;
    check(endpoint, weir_group_join(endpoint, members, size, &reversed), "join");
    check(endpoint, weir_group_rank(endpoint, reversed, &place, NULL), "rank");
    check(endpoint, weir_all_gather(endpoint, reversed, &rank, gathered, sizeof rank), "all-gather");
    expect(place == size - 1 - rank && gathered[0] == size - 1 && gathered[place] == rank, "the order of the group");
    check(endpoint, weir_group_close(endpoint, reversed), "close the group");
    free(members);
    free(gathered);

    /* One at a time: without the lock, some changes of the balance would be lost. */
    static int64_t balance;
    weir_lock *lock;
    weir_place account = { ACCOUNT_KEY, 0, 0 };
    check(endpoint, weir_register(endpoint, account.key, &balance, sizeof balance, rights), "register");
    check(endpoint, weir_lock_open(endpoint, WEIR_WORLD, 0, LOCK_KEY, &lock), "open the lock");
    for (int repeat = 0; repeat < DEPOSITS; repeat++) {
        int64_t seen;
        check(endpoint, weir_lock_acquire(lock), "acquire");
        check(endpoint, weir_get(endpoint, &account, &seen, sizeof seen), "get");
        seen++;
        check(endpoint, weir_put(endpoint, &account, &seen, sizeof seen), "put");
        check(endpoint, weir_lock_release(lock), "release");
    }
    check(endpoint, weir_lock_close(lock), "close the lock");
    expect(rank != 0 || balance == (int64_t)size * DEPOSITS, "balance");

    /* Errors are values. */
    weir_place nowhere = { COUNTER_KEY, 0, size };
    expect(weir_fetch_add_u64(endpoint, &nowhere, 1, &task) == WEIR_INVALID, "a rank that does not exist");
    nowhere.rank = 0;
    nowhere.offset = sizeof counter;
    expect(weir_fetch_add_u64(endpoint, &nowhere, 1, &task) == WEIR_REFUSED, "beyond the memory");

    printf("rank %" PRIu32 " of %" PRIu32 ": pi is %.4f\n", rank, size, pi);
    check(endpoint, weir_barrier(endpoint, WEIR_WORLD), "barrier");
    check(NULL, weir_close(endpoint), "close");
    return 0;
}
