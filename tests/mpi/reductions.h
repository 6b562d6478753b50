/* The types and operations of MPI's reductions that libweir-mpi.so does, and what a plain loop makes of them. Include it behind
 * collectives_rank.h. */
#include <stdint.h>
#include <string.h>

enum { SUM, PRODUCT, LEAST, MOST, AND, OR, XOR, LOGICAL_AND, LOGICAL_OR, LOGICAL_XOR, OPERATION_COUNT };

/* The kinds of types. Each has some of the operations, which follow each other. Source: MPI 4.1, section 6.9.2. */
enum { INTEGER, FLOATING, BYTES, TRUTH };
static const struct {
    int first, end;
} OPERATIONS_OF[] = {{SUM, OPERATION_COUNT}, {SUM, AND}, {AND, LOGICAL_AND}, {LOGICAL_AND, OPERATION_COUNT}};

/* Handles are no constants in all MPIs, so these are no tables. */
static MPI_Op operation_of(int op) {
    return (MPI_Op[]){MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_BAND, MPI_BOR, MPI_BXOR, MPI_LAND, MPI_LOR, MPI_LXOR}[op];
}

static const struct {
    int bytes, is_signed, kind;
} TYPES[] = {
    {1, 1, INTEGER}, {1, 0, INTEGER}, {1, 1, INTEGER}, {1, 0, INTEGER}, {1, 0, BYTES}, {1, 0, TRUTH}, {1, 0, TRUTH},
    {2, 1, INTEGER}, {2, 0, INTEGER}, {2, 1, INTEGER}, {2, 0, INTEGER},
    {4, 1, INTEGER}, {4, 0, INTEGER}, {8, 1, INTEGER}, {8, 0, INTEGER}, {4, 1, FLOATING}, {8, 1, FLOATING},
};
enum { TYPE_COUNT = sizeof TYPES / sizeof *TYPES, DOUBLE = TYPE_COUNT - 1 };

static MPI_Datatype type_of(int type) {
    return (MPI_Datatype[]){
        MPI_SIGNED_CHAR, MPI_UNSIGNED_CHAR, MPI_INT8_T, MPI_UINT8_T, MPI_BYTE, MPI_C_BOOL, MPI_CXX_BOOL,
        MPI_SHORT, MPI_UNSIGNED_SHORT, MPI_INT16_T, MPI_UINT16_T,
        MPI_INT, MPI_UNSIGNED, MPI_LONG, MPI_UNSIGNED_LONG, MPI_FLOAT, MPI_DOUBLE,
    }[type];
}

static int is_float(int type) { return TYPES[type].kind == FLOATING; }

/* Whether the MPI's own result is known. Open MPI's sums of short integers end at the largest value where it has instructions for
 * vectors (op/avx), and wrap elsewhere. */
static int is_known(int type, int op) {
#ifdef OMPI_MAJOR_VERSION
    return TYPES[type].kind != INTEGER || TYPES[type].bytes > 2 || op != SUM;
#else
    return type >= 0 && op >= 0;
#endif
}

static int draw_operation(int type, unsigned long *state) {
    int first = OPERATIONS_OF[TYPES[type].kind].first;
    return first + (int)(next(state) % (unsigned)(OPERATIONS_OF[TYPES[type].kind].end - first));
}

/* Integers wrap: this is the arithmetic of 64 bits without sign, of which the lower bits count. */
static uint64_t combined(int op, uint64_t one, uint64_t other, int is_less) {
    switch (op) {
    case SUM: return one + other;
    case PRODUCT: return one * other;
    case LEAST: return is_less ? one : other;
    case MOST: return is_less ? other : one;
    case AND: return one & other;
    case OR: return one | other;
    case XOR: return one ^ other;
    case LOGICAL_AND: return one && other;
    case LOGICAL_OR: return one || other;
    default: return !one != !other;
    }
}

/* An integer of some bytes. The host is little-endian, as all that weir supports. */
static uint64_t value_of(int type, const void *at) {
    uint64_t value = 0;
    int unused = 64 - 8 * TYPES[type].bytes;
    memcpy(&value, at, (size_t)TYPES[type].bytes);
    return TYPES[type].is_signed ? (uint64_t)((int64_t)(value << unused) >> unused) : value;
}

/* A float. The result of two floats in the arithmetic of doubles, made a float again, is that of floats. */
static double float_of(int type, const void *at) {
    float shorter;
    double value;
    if (TYPES[type].bytes == 8) memcpy(&value, at, 8);
    else memcpy(&shorter, at, 4), value = shorter;
    return value;
}

static void set_float(int type, void *at, double value) {
    float shorter = (float)value;
    memcpy(at, TYPES[type].bytes == 8 ? (void *)&value : &shorter, (size_t)TYPES[type].bytes);
}

/* Replaces the element at `into`. */
static void combine(int type, int op, void *into, const void *with) {
    if (is_float(type)) {
        double one = float_of(type, into), other = float_of(type, with);
        if (op == SUM) one += other;
        else if (op == PRODUCT) one *= other;
        else one = (one < other) == (op == LEAST) ? one : other;
        set_float(type, into, one);
        return;
    }
    uint64_t one = value_of(type, into), other = value_of(type, with);
    int is_less = TYPES[type].is_signed ? (int64_t)one < (int64_t)other : one < other;
    one = combined(op, one, other, is_less);
    memcpy(into, &one, (size_t)TYPES[type].bytes);
}

/* Any integers; truth values are 0 or 1. Whole numbers of floats are exact in any order. Others are not, and only a group promises
 * the order of ranks. */
static void fill(void *data, int words, int type, int is_whole, unsigned long *own) {
    for (int at = 0; at < words; at++) {
        char *to = (char *)data + at * TYPES[type].bytes;
        uint64_t bits = (uint64_t)next(own) << 40 ^ (uint64_t)next(own) << 20 ^ next(own);
        double any = is_whole ? (double)(bits % 4 + 1) : (double)next(own) / (next(own) + 1.0) * (at & 1 ? -1e6 : 1e-6);
        if (TYPES[type].kind == TRUTH) bits &= 1;
        /* Some zeros, for logical operations, and small values, whose products have other lower bits. */
        else if (bits >> 60 < 4) bits &= 3;
        if (is_float(type)) set_float(type, to, any);
        else memcpy(to, &bits, (size_t)TYPES[type].bytes);
    }
}
