/* The data that the members of a group give, and what a reduction makes of them, for fi_collectives.c. All members know the
 * data of all, so each computes every result by itself. */

#include <stdint.h>
#include <stdlib.h>

#include <rdma/fi_domain.h>

static uint64_t hash(uint64_t number, uint64_t rank, uint64_t place) {
    uint64_t word = number * 0x9E3779B97F4A7C15u + rank * 0xBF58476D1CE4E5B9u + place * 0x94D049BB133111EBu;
    word = (word ^ word >> 31) * 0xD6E8FEB86659FD93u;
    return word ^ word >> 32;
}

enum { TYPES = 6 };
static const int types[TYPES] = {FI_INT32, FI_UINT32, FI_INT64, FI_UINT64, FI_FLOAT, FI_DOUBLE};
static const size_t sizes[TYPES] = {4, 4, 8, 8, 4, 8};

static void give(char *into, int type, uint64_t number, int rank, size_t first, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint64_t word = hash(number, rank, first + i);
        switch (types[type]) {
        case FI_FLOAT: ((float *)into)[i] = (float)(int32_t)word / 1024; break;
        case FI_DOUBLE: ((double *)into)[i] = (double)(int64_t)word / 4096; break;
        case FI_INT32: case FI_UINT32: ((uint32_t *)into)[i] = word % 5 ? (uint32_t)word : 0; break;
        default: ((uint64_t *)into)[i] = word % 5 ? word : 0;
        }
    }
}

#define ARITHMETIC(a, b)                                                                  \
    op == FI_MIN ? ((b) < (a) ? (b) : (a)) : op == FI_MAX ? ((b) > (a) ? (b) : (a))       \
    : op == FI_SUM ? (a) + (b) : op == FI_PROD ? (a) * (b)                                \
    : op == FI_LOR ? ((a) || (b)) : op == FI_LAND ? ((a) && (b)) : (!(a) != !(b))
#define BITWISE(a, b) op == FI_BOR ? ((a) | (b)) : op == FI_BAND ? ((a) & (b)) : ((a) ^ (b))
#define INTEGERS(type)                                                                    \
    for (size_t i = 0; i < count; i++) {                                                  \
        type a = ((type *)left)[i], b = ((type *)right)[i];                               \
        ((type *)left)[i] = op == FI_BOR || op == FI_BAND || op == FI_BXOR ? (type)(BITWISE(a, b)) : (type)(ARITHMETIC(a, b)); \
    }
#define FLOATS(type)                                                                      \
    for (size_t i = 0; i < count; i++) {                                                  \
        type a = ((type *)left)[i], b = ((type *)right)[i];                               \
        ((type *)left)[i] = (type)(ARITHMETIC(a, b));                                     \
    }

static void combine(char *left, const char *right, int type, int op, size_t count) {
    switch (types[type]) {
    case FI_INT32: INTEGERS(int32_t) break;
    case FI_UINT32: INTEGERS(uint32_t) break;
    case FI_INT64: INTEGERS(int64_t) break;
    case FI_UINT64: INTEGERS(uint64_t) break;
    case FI_FLOAT: FLOATS(float) break;
    default: FLOATS(double) break;
    }
}

/* What a loop over the ranks makes of the vectors: floats depend on order and brackets. */
static void reduced(char *into, int type, int op, uint64_t number, int group_size, size_t first, size_t count) {
    char *next = malloc(count * sizes[type] + 1);
    give(into, type, number, 0, first, count);
    for (int rank = 1; rank < group_size; rank++) {
        give(next, type, number, rank, first, count);
        combine(into, next, type, op, count);
    }
    free(next);
}

