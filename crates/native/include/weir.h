/* weir.h: the native interface of weir, for runtimes of PGAS languages. Needs no MPI and no libfabric.
 *
 * A job has ranks 0 to N - 1, one for each endpoint. All open together, and close together. Each function returns a
 * weir_status; weir_error() has the text of the last error of the calling thread.
 *
 * Start, test, wait. A weir_start_ function starts an operation and sets a request. weir_wait waits for its end;
 * weir_test asks for it. Both set the request to WEIR_NO_REQUEST when it has ended, also with an error. Waiting for
 * WEIR_NO_REQUEST returns at once. The functions without start_ in their name do both, and wait for limits too.
 *
 * Memory. What an operation reads or writes stays the caller's, and is left to the operation until it has ended or
 * the endpoint is closed. Nothing is copied. Of length 0, a pointer may be null. Buffers need no alignment;
 * registered memory does.
 *
 * Threads. All functions may be called by any thread, except weir_close: no other thread may use the endpoint then.
 * Collective operations of a group start in the order of the calls, which must be the same at all members.
 *
 * Progress. Other ranks are answered inside calls, or at any time with WEIR_AUTOMATIC_PROGRESS. A rank that dies
 * ends all operations that need it with WEIR_LOST, so every wait ends.
 *
 * Forks. A child must not use the endpoint of its parent.
 */
#ifndef WEIR_H
#define WEIR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Counts changes of this file that a program must know of. The library's name counts them too: libweir.so.1. */
#define WEIR_INTERFACE 1u
/* WEIR_INTERFACE of the library. */
uint32_t weir_interface(void);

typedef enum weir_status {
    WEIR_OK = 0,
    WEIR_AGAIN = 1,    /* a limit is reached, and nothing has started: make progress, and try again */
    WEIR_INVALID = 2,  /* an argument is not allowed, and nothing has started */
    WEIR_LOST = 3,     /* a rank is lost, and the operation has ended */
    WEIR_REFUSED = 4,  /* the rank has not registered this memory, or not for this */
    WEIR_EXCHANGE = 5, /* the ranks could not tell each other their addresses */
    WEIR_OPEN = 6,     /* the endpoint could not be opened, or a setting (FI_WEIR_...) is not allowed */
    WEIR_CLOSED = 7    /* the endpoint is closed, or that of the parent process */
} weir_status;

/* The text of the last error of this thread, one line, never null. Valid until the thread's next call. */
const char *weir_error(void);

/* ---- Endpoint -------------------------------------------------------------------------------------------- */

typedef struct weir_endpoint weir_endpoint;

/* The program's all-gather, for weir_options: gives the `bytes` bytes at `mine` to all ranks, and puts those of all
 * ranks to `all`, by rank. Returns 0, or another number if it failed. weir_open calls it twice, in its thread. */
typedef int weir_all_gather_call(void *context, const void *mine, void *all, size_t bytes);

/* A thread answers other ranks while the program computes. */
#define WEIR_AUTOMATIC_PROGRESS 1u

/* Begin with WEIR_OPTIONS_INIT, which takes everything from the launcher. */
typedef struct weir_options {
    uint32_t interface; /* WEIR_INTERFACE */
    uint32_t bytes;     /* sizeof(weir_options) */
    uint32_t flags;     /* 0 or WEIR_AUTOMATIC_PROGRESS */
    uint32_t rank;      /* our rank, if size is not 0 */
    uint32_t size;      /* number of ranks, at most 4096; 0: rank and size are the launcher's (WEIR_RANK and WEIR_SIZE,
                           PMI_RANK and PMI_SIZE, those of Open MPI, Slurm, MVAPICH2) */
    uint32_t patience_ms;             /* how long to wait for a rank in the directory; 0: a minute */
    const char *directory;            /* an empty directory that all ranks see, or null */
    weir_all_gather_call *all_gather; /* the program's all-gather, or null; without both, WEIR_EXCHANGE_DIR or PMI-1 */
    void *context;                    /* for all_gather */
} weir_options;

#define WEIR_OPTIONS_INIT { WEIR_INTERFACE, sizeof(weir_options), 0u, 0u, 0u, 0u, NULL, NULL, NULL }

/* Opens the endpoint of this rank. Returns when all ranks have called it. */
int weir_open(const weir_options *options, weir_endpoint **endpoint);
/* Closes it. Waits until the other ranks close too, for FI_WEIR_CLOSE_MS at most. */
int weir_close(weir_endpoint *endpoint);
/* Our rank, and the number of ranks. */
uint32_t weir_rank(const weir_endpoint *endpoint);
uint32_t weir_size(const weir_endpoint *endpoint);
/* Makes progress without waiting. */
int weir_progress(const weir_endpoint *endpoint);

/* ---- Requests -------------------------------------------------------------------------------------------- */

typedef uint64_t weir_request;
#define WEIR_NO_REQUEST ((weir_request)0)

/* Sets `done` to 1 if the request has ended, else to 0. Returns its error, if it ended with one. */
int weir_test(const weir_endpoint *endpoint, weir_request *request, int *done);
/* Waits for the end of the request. Returns its error, if it ended with one. */
int weir_wait(const weir_endpoint *endpoint, weir_request *request);

/* ---- Groups ---------------------------------------------------------------------------------------------- */

typedef uint32_t weir_group;
/* All ranks, by rank. */
#define WEIR_WORLD ((weir_group)1)

/* Joins a group of `count` different ranks, this one among them, which have their places in this order. All members
 * call it with the same list. Returns when all have. At most 112 groups at once, WEIR_WORLD among them. */
int weir_group_join(const weir_endpoint *endpoint, const uint32_t *ranks, size_t count, weir_group *group);
/* Closes it for this rank, when its operations have ended. Its place is free when all members have closed it. */
int weir_group_close(const weir_endpoint *endpoint, weir_group group);
/* Our rank in it, and the number of members. Either pointer may be null. */
int weir_group_rank(const weir_endpoint *endpoint, weir_group group, uint32_t *rank, uint32_t *size);

/* ---- Collective operations ------------------------------------------------------------------------------- */
/* Roots are ranks in the group. All members call the same with the same lengths; else they lose each other.
 * In a group of one node, short operations go through shared memory, unless a member has set FI_WEIR_COLLECTIVES=0. */

typedef enum weir_type {
    WEIR_U32 = 0,
    WEIR_I32 = 1,
    WEIR_U64 = 2,
    WEIR_I64 = 3,
    WEIR_F32 = 4,
    WEIR_F64 = 5
} weir_type;

/* Reductions have those from WEIR_SUM to WEIR_LOGICAL_XOR, atomics all. Bitwise ones are for integers. */
typedef enum weir_operation {
    WEIR_READ = 0,
    WEIR_WRITE = 1,        /* replaces the word */
    WEIR_COMPARE_SWAP = 2, /* replaces it if it is equal to the compare value */
    WEIR_SUM = 3,          /* integers wrap */
    WEIR_MIN = 4,
    WEIR_MAX = 5,
    WEIR_AND = 6,
    WEIR_OR = 7,
    WEIR_XOR = 8,
    WEIR_PRODUCT = 9,
    WEIR_LOGICAL_AND = 10,
    WEIR_LOGICAL_OR = 11,
    WEIR_LOGICAL_XOR = 12,
    WEIR_DIFFERENCE = 13,
    WEIR_SWAP_IF_NOT_EQUAL = 14,     /* these replace the word if the compare value is ... it */
    WEIR_SWAP_IF_LESS_EQUAL = 15,
    WEIR_SWAP_IF_LESS = 16,
    WEIR_SWAP_IF_GREATER_EQUAL = 17,
    WEIR_SWAP_IF_GREATER = 18,
    WEIR_MASKED_SWAP = 19            /* takes the bits that are set in the compare value */
} weir_operation;

/* The root of a reduction whose result all members get, with the same bits. */
#define WEIR_ALL 0xffffffffu

/* Elements are combined in the order of ranks in the group. */
typedef struct weir_reduction {
    weir_group group;
    uint32_t root;      /* who gets the result, or WEIR_ALL */
    uint32_t operation; /* weir_operation */
    uint32_t type;      /* weir_type */
} weir_reduction;

/* Ends when all members have started it. */
int weir_start_barrier(const weir_endpoint *endpoint, weir_group group, weir_request *request);
/* `data` of the root goes to `data` of all. */
int weir_start_broadcast(
    const weir_endpoint *endpoint, weir_group group, uint32_t root, void *data, size_t bytes, weir_request *request);
/* `count` elements each. `result` is used where the result goes, and may be `data`, else it does not overlap. */
int weir_start_reduce(const weir_endpoint *endpoint, const weir_reduction *reduction, const void *data, void *result,
                      size_t count, weir_request *request);
/* `bytes` bytes of each member go to `result` of all, by rank in the group. */
int weir_start_all_gather(const weir_endpoint *endpoint, weir_group group, const void *data, void *result, size_t bytes,
                          weir_request *request);

/* ---- Registered memory ----------------------------------------------------------------------------------- */

#define WEIR_READABLE 1u
#define WEIR_WRITABLE 2u

/* Other ranks may use `bytes` bytes from `address`, a multiple of 8, under a key that this rank has not registered.
 * The program may use words in it by atomic instructions meanwhile. */
int weir_register(const weir_endpoint *endpoint, uint64_t key, void *address, size_t bytes, unsigned rights);
/* Ends that. The program makes sure that no other rank is using the memory. */
int weir_deregister(const weir_endpoint *endpoint, uint64_t key);

/* A place in registered memory. */
typedef struct weir_place {
    uint64_t key;
    uint64_t offset; /* bytes from its address */
    uint32_t rank;   /* whose memory, in the job; may be our own */
} weir_place;

/* Copies to a place. When it has ended, the bytes are there. Words that are used meanwhile may be old, new or
 * mixed. */
int weir_start_put(
    const weir_endpoint *endpoint, const weir_place *to, const void *data, size_t bytes, weir_request *request);
/* Copies from a place. */
int weir_start_get(
    const weir_endpoint *endpoint, const weir_place *from, void *into, size_t bytes, weir_request *request);

/* The change of one word. Bits of words of 32 bits are in the lower half; weir_bits_ makes them from floats. */
typedef struct weir_change {
    uint64_t operand;
    uint64_t compare;   /* for operations that compare */
    uint32_t operation; /* weir_operation */
    uint32_t type;      /* weir_type */
} weir_change;

/* Changes one word, as one step for all ranks. Its offset is a multiple of its length. `old` gets the word before,
 * or is null if nobody wants it. At most 1024 are under way with a rank. */
int weir_start_atomic(const weir_endpoint *endpoint, const weir_place *of, const weir_change *change, void *old,
                      weir_request *request);

/* ---- Locks ------------------------------------------------------------------------------------------------- */

typedef struct weir_lock weir_lock;

/* Makes a lock of a group, which nobody has. All members call it with the same home and key, and it returns when all
 * have. `home`: the member whose memory says who is the last to wait. The key must be free at all of them. */
int weir_lock_open(const weir_endpoint *endpoint, weir_group group, uint32_t home, uint64_t key, weir_lock **lock);
/* Waits for the lock. Members get it in the order in which they ask. One thread of a member uses it at a time. If a
 * member that has it or waits for it dies, or the home, all others get WEIR_LOST, and nobody gets the lock any more. */
int weir_lock_acquire(const weir_lock *lock);
int weir_lock_release(const weir_lock *lock);
/* Ends it. All members call it, before they close group and endpoint, and it returns when all have. */
int weir_lock_close(weir_lock *lock);

/* ---- Blocking forms -------------------------------------------------------------------------------------- */

/* For the functions below: repeats a start while a limit is reached, then waits. */
#define WEIR_PERFORM_(endpoint, start)                                                                                \
    do {                                                                                                              \
        weir_request request = WEIR_NO_REQUEST;                                                                       \
        int status;                                                                                                   \
        while ((status = (start)) == WEIR_AGAIN) {                                                                    \
            if ((status = weir_progress(endpoint)) != WEIR_OK) {                                                      \
                return status;                                                                                        \
            }                                                                                                         \
        }                                                                                                             \
        return status == WEIR_OK ? weir_wait(endpoint, &request) : status;                                            \
    } while (0)

static inline int weir_barrier(const weir_endpoint *endpoint, weir_group group) {
    WEIR_PERFORM_(endpoint, weir_start_barrier(endpoint, group, &request));
}

static inline int weir_broadcast(
    const weir_endpoint *endpoint, weir_group group, uint32_t root, void *data, size_t bytes) {
    WEIR_PERFORM_(endpoint, weir_start_broadcast(endpoint, group, root, data, bytes, &request));
}

static inline int weir_reduce(const weir_endpoint *endpoint, const weir_reduction *reduction, const void *data,
                              void *result, size_t count) {
    WEIR_PERFORM_(endpoint, weir_start_reduce(endpoint, reduction, data, result, count, &request));
}

static inline int weir_all_gather(
    const weir_endpoint *endpoint, weir_group group, const void *data, void *result, size_t bytes) {
    WEIR_PERFORM_(endpoint, weir_start_all_gather(endpoint, group, data, result, bytes, &request));
}

static inline int weir_put(const weir_endpoint *endpoint, const weir_place *to, const void *data, size_t bytes) {
    WEIR_PERFORM_(endpoint, weir_start_put(endpoint, to, data, bytes, &request));
}

static inline int weir_get(const weir_endpoint *endpoint, const weir_place *from, void *into, size_t bytes) {
    WEIR_PERFORM_(endpoint, weir_start_get(endpoint, from, into, bytes, &request));
}

static inline int weir_atomic(
    const weir_endpoint *endpoint, const weir_place *of, const weir_change *change, void *old) {
    WEIR_PERFORM_(endpoint, weir_start_atomic(endpoint, of, change, old, &request));
}

static inline uint64_t weir_bits_f64(double number) {
    union { double number; uint64_t bits; } word;
    word.number = number;
    return word.bits;
}

static inline uint64_t weir_bits_f32(float number) {
    union { float number; uint32_t bits; } word;
    word.number = number;
    return word.bits;
}

#define WEIR_WORD_(name, c_type, weir_type_)                                                                          \
    static inline int weir_fetch_add_##name(                                                                          \
        const weir_endpoint *endpoint, const weir_place *of, c_type operand, c_type *old) {                           \
        weir_change change = { operand, 0, WEIR_SUM, weir_type_ };                                                    \
        return weir_atomic(endpoint, of, &change, old);                                                               \
    }                                                                                                                 \
    static inline int weir_swap_##name(                                                                               \
        const weir_endpoint *endpoint, const weir_place *of, c_type word, c_type *old) {                              \
        weir_change change = { word, 0, WEIR_WRITE, weir_type_ };                                                     \
        return weir_atomic(endpoint, of, &change, old);                                                               \
    }                                                                                                                 \
    static inline int weir_compare_swap_##name(                                                                       \
        const weir_endpoint *endpoint, const weir_place *of, c_type expected, c_type word, c_type *old) {             \
        weir_change change = { word, expected, WEIR_COMPARE_SWAP, weir_type_ };                                       \
        return weir_atomic(endpoint, of, &change, old);                                                               \
    }                                                                                                                 \
    static inline int weir_load_##name(const weir_endpoint *endpoint, const weir_place *of, c_type *word) {           \
        weir_change change = { 0, 0, WEIR_READ, weir_type_ };                                                         \
        return weir_atomic(endpoint, of, &change, word);                                                              \
    }                                                                                                                 \
    static inline int weir_store_##name(const weir_endpoint *endpoint, const weir_place *of, c_type word) {           \
        weir_change change = { word, 0, WEIR_WRITE, weir_type_ };                                                     \
        return weir_atomic(endpoint, of, &change, NULL);                                                              \
    }

/* weir_fetch_add_u64, weir_swap_u64, weir_compare_swap_u64, weir_load_u64, weir_store_u64, and those of u32. `old`
 * gets the word before, or is null. */
WEIR_WORD_(u64, uint64_t, WEIR_U64)
WEIR_WORD_(u32, uint32_t, WEIR_U32)

#ifdef __cplusplus
}
#endif

#endif
