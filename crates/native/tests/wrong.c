/* Calls with pointers and numbers that are not allowed, and with lengths of 0, at one rank. Ends with 0 if each returns the
 * number that it should, and the text of the error names the value. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weir.h"

static int wrong;

static void expect(int line, int have, int want, const char *text) {
    if (have != want || (want != WEIR_OK && strstr(weir_error(), text) == NULL)) {
        fprintf(stderr, "line %d: %d instead of %d: %s\n", line, have, want, weir_error());
        wrong = 1;
    }
}

static void hold(int line, int is_right, const char *what) {
    if (!is_right) {
        fprintf(stderr, "line %d: wrong: %s\n", line, what);
        wrong = 1;
    }
}

#define RIGHT(is_right, what) hold(__LINE__, (is_right), (what))
#define OK(call) expect(__LINE__, (call), WEIR_OK, "")
#define INVALID(call, text) expect(__LINE__, (call), WEIR_INVALID, (text))

static int failing_gather(void *context, const void *mine, void *all, size_t bytes) {
    (void)mine, (void)all, (void)bytes;
    ++*(int *)context;
    return 42;
}

static int single_gather(void *context, const void *mine, void *all, size_t bytes) {
    ++*(int *)context;
    memcpy(all, mine, bytes);
    return 0;
}

int main(void) {
    weir_endpoint *endpoint = NULL;
    weir_options options = WEIR_OPTIONS_INIT;
    int calls = 0, done = 0;

    INVALID(weir_open(NULL, &endpoint), "options null");
    INVALID(weir_open(&options, NULL), "endpoint null");
    options.interface = 99;
    INVALID(weir_open(&options, &endpoint), "interface 99");
    options.interface = WEIR_INTERFACE;
    options.bytes--;
    INVALID(weir_open(&options, &endpoint), "header and the library differ");
    options.bytes++;
    options.flags = 6;
    INVALID(weir_open(&options, &endpoint), "flags 6");
    options.flags = 0;
    options.rank = 3;
    options.size = 2;
    INVALID(weir_open(&options, &endpoint), "rank 3");
    options.rank = 0;
    options.size = 1;
    options.context = &calls;
    options.all_gather = failing_gather;
    expect(__LINE__, weir_open(&options, &endpoint), WEIR_EXCHANGE, "returned 42");
    options.directory = "/";
    INVALID(weir_open(&options, &endpoint), "one of them");
    options.directory = NULL;
    options.all_gather = single_gather;
    OK(weir_open(&options, &endpoint));
    RIGHT(calls == 3, "one failed, two succeeded");

    INVALID(weir_barrier(NULL, WEIR_WORLD), "endpoint null");
    INVALID(weir_start_barrier(endpoint, WEIR_WORLD, NULL), "request null");
    INVALID(weir_barrier(endpoint, 0), "group 0");
    INVALID(weir_barrier(endpoint, 77), "group 77");
    INVALID(weir_group_close(endpoint, WEIR_WORLD), "group 1");
    INVALID(weir_progress(NULL), "endpoint null");
    INVALID(weir_close(NULL), "endpoint null");

    weir_group group = 0;
    uint32_t ranks[2] = { 0, 0 }, rank = 9, size = 9;
    INVALID(weir_group_join(endpoint, NULL, 1, &group), "ranks null");
    INVALID(weir_group_join(endpoint, ranks, 1, NULL), "group null");
    INVALID(weir_group_join(endpoint, ranks, 0, &group), "number of members 0");
    INVALID(weir_group_join(endpoint, ranks, 2, &group), "each rank once");
    OK(weir_group_join(endpoint, ranks, 1, &group));
    OK(weir_group_rank(endpoint, group, &rank, &size));
    RIGHT(rank == 0 && size == 1, "a group of one");
    OK(weir_group_rank(endpoint, group, NULL, NULL));
    OK(weir_group_close(endpoint, group));
    INVALID(weir_group_close(endpoint, group), "joined and not closed");

    weir_request request = 12345;
    INVALID(weir_wait(endpoint, &request), "request 12345");
    INVALID(weir_test(endpoint, &request, &done), "request 12345");
    INVALID(weir_wait(endpoint, NULL), "request null");
    request = WEIR_NO_REQUEST;
    OK(weir_wait(endpoint, &request));
    OK(weir_test(endpoint, &request, &done));
    RIGHT(done, "no request has ended");
    INVALID(weir_test(endpoint, &request, NULL), "done null");

    double value = 2.5, result = 0;
    weir_reduction reduction = { WEIR_WORLD, WEIR_ALL, WEIR_SUM, WEIR_F64 };
    INVALID(weir_reduce(endpoint, NULL, &value, &result, 1), "reduction null");
    INVALID(weir_reduce(endpoint, &reduction, NULL, &result, 1), "data null");
    INVALID(weir_reduce(endpoint, &reduction, &value, NULL, 1), "result null");
    INVALID(weir_reduce(endpoint, &reduction, &value, &result, SIZE_MAX / 2), "length in bytes");
    OK(weir_reduce(endpoint, &reduction, NULL, NULL, 0));
    OK(weir_reduce(endpoint, &reduction, &value, &value, 1));
    OK(weir_reduce(endpoint, &reduction, &value, &result, 1));
    RIGHT(value == 2.5 && result == 2.5, "a sum of one, also in place");
    reduction.operation = WEIR_AND;
    INVALID(weir_reduce(endpoint, &reduction, &value, &result, 1), "And on F64");
    reduction.operation = 20;
    INVALID(weir_reduce(endpoint, &reduction, &value, &result, 1), "operation 20");
    reduction.operation = WEIR_SUM;
    reduction.type = 6;
    INVALID(weir_reduce(endpoint, &reduction, &value, &result, 1), "type 6");
    reduction.type = WEIR_F64;
    reduction.root = 1;
    INVALID(weir_reduce(endpoint, &reduction, &value, &result, 1), "root 1");
    INVALID(weir_broadcast(endpoint, WEIR_WORLD, 0, NULL, 8), "data null");
    OK(weir_broadcast(endpoint, WEIR_WORLD, 0, NULL, 0));
    INVALID(weir_all_gather(endpoint, WEIR_WORLD, &value, NULL, 8), "result null");
    OK(weir_all_gather(endpoint, WEIR_WORLD, &value, &result, 8));

    static uint64_t words[2];
    INVALID(weir_register(endpoint, 5, (char *)words + 4, 8, WEIR_READABLE), "multiples of 8");
    INVALID(weir_register(endpoint, 5, words, sizeof words, 0), "rights 0");
    INVALID(weir_register(endpoint, 5, words, sizeof words, 4), "rights 4");
    INVALID(weir_register(endpoint, 5, NULL, 8, WEIR_READABLE), "memory null");
    INVALID(weir_deregister(endpoint, 5), "key 5");
    OK(weir_register(endpoint, 5, words, sizeof words, WEIR_READABLE));
    INVALID(weir_register(endpoint, 5, words, 8, WEIR_READABLE), "key 5");
    weir_place place = { 5, 8, 0 };
    uint64_t old = 9;
    OK(weir_load_u64(endpoint, &place, &old));
    RIGHT(old == 0, "the word");
    expect(__LINE__, weir_fetch_add_u64(endpoint, &place, 1, &old), WEIR_REFUSED, "key 5");
    OK(weir_deregister(endpoint, 5));
    OK(weir_register(endpoint, 5, words, sizeof words, WEIR_READABLE | WEIR_WRITABLE));
    OK(weir_fetch_add_u64(endpoint, &place, 7, NULL));
    RIGHT(words[1] == 7, "the word");
    INVALID(weir_fetch_add_u64(endpoint, NULL, 1, &old), "place null");
    INVALID(weir_atomic(endpoint, &place, NULL, &old), "change null");
    INVALID(weir_put(endpoint, &place, NULL, 8), "data null");
    OK(weir_put(endpoint, &place, NULL, 0));
    OK(weir_get(endpoint, &place, &old, sizeof old));
    RIGHT(old == 7, "what was got");
    weir_change change = { weir_bits_f32(1.5f), 0, WEIR_WRITE, WEIR_F32 };
    OK(weir_atomic(endpoint, &place, &change, NULL));
    change.operation = WEIR_SUM;
    float sum = 0;
    OK(weir_atomic(endpoint, &place, &change, &sum));
    RIGHT(sum == 1.5f, "a float");
    place.offset = 2;
    INVALID(weir_load_u32(endpoint, &place, (uint32_t *)&old), "offset 2");

    weir_lock *lock = NULL;
    INVALID(weir_lock_open(endpoint, WEIR_WORLD, 1, 8, &lock), "home 1");
    INVALID(weir_lock_open(endpoint, 77, 0, 8, &lock), "group 77");
    INVALID(weir_lock_open(endpoint, WEIR_WORLD, 0, 5, &lock), "key 5");
    INVALID(weir_lock_open(endpoint, WEIR_WORLD, 0, 8, NULL), "lock null");
    OK(weir_lock_open(endpoint, WEIR_WORLD, 0, 8, &lock));
    INVALID(weir_lock_release(lock), "lock with key 8");
    OK(weir_lock_acquire(lock));
    INVALID(weir_lock_acquire(lock), "lock with key 8");
    OK(weir_lock_release(lock));
    OK(weir_lock_acquire(lock));
    OK(weir_lock_release(lock));
    INVALID(weir_lock_acquire(NULL), "lock null");
    OK(weir_lock_close(lock));
    INVALID(weir_lock_close(NULL), "lock null");

    OK(weir_close(endpoint));
    return wrong;
}
