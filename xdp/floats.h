/* Arithmetic of IEEE 754 binary64 and binary32 in integers, since programs have no floats: the sums and products that a
 * processor gives, rounded to nearest, ties to even. A result that is not a number (NaN) is always the same one.
 * crates/nic/tests/floats.rs compares all of it with the processor. Source: IEEE 754-2019, sections 3.4, 4.3.1 and 6. */
#pragma once
#include "format.h"
#include <linux/types.h>

#ifndef SEPARATE
#define SEPARATE __attribute__((noinline))
#endif

#define FLOAT_SIGN (1ULL << 63)
#define FLOAT_INFINITE (0x7ffULL << 52)
#define FLOAT_NAN (0xfffULL << 51)
/* Implied bit of a normal number, as it is stored. */
#define FLOAT_IMPLIED (1ULL << 52)
/* While we compute, the implied bit is here: ten bits below the stored ones for rounding, one above for a carry. */
#define FLOAT_ONE (1ULL << 62)
#define FLOAT_SPARE 10

/* Shifts to the right. Bits that fall out leave a 1 in the lowest place, so that rounding sees them. */
static inline __u64 shift_right_sticky(__u64 bits, __u32 by)
{
    if (by == 0)
        return bits;
    if (by > 63)
        return bits != 0;
    return bits >> by | ((bits << (64 - by)) != 0);
}

/* Zeros above the highest bit. Not of 0. */
static inline __u32 leading_zeros(__u64 bits)
{
    __u32 zeros = 0;

    for (__u32 step = 32; step > 0; step /= 2) {
        if (!(bits >> (64 - step))) {
            bits <<= step;
            zeros += step;
        }
    }
    return zeros;
}

/* Rounds and packs. `exponent` is at least 1, as stored; with 1, the highest bit may be missing (subnormal). The implied bit
 * is added to the exponent, and so is a carry of rounding. */
static inline __u64 pack_float(__u64 sign, __s32 exponent, __u64 bits)
{
    bits = (bits + (1ULL << (FLOAT_SPARE - 1)) - 1 + (bits >> FLOAT_SPARE & 1)) >> FLOAT_SPARE;
    if (exponent >= 0x7ff)
        return sign | FLOAT_INFINITE;
    return sign | (((__u64)(exponent - 1) << 52) + bits);
}

/* a + b */
SEPARATE __u64 sum_of_binary64(__u64 a, __u64 b)
{
    __u64 larger = a & ~FLOAT_SIGN, smaller = b & ~FLOAT_SIGN, sign = a & FLOAT_SIGN, differ = (a ^ b) & FLOAT_SIGN;
    __s32 exponent, other;
    __u32 zeros;

    if (smaller > larger) {
        __u64 swapped = larger;

        larger = smaller;
        smaller = swapped;
        sign = b & FLOAT_SIGN;
    }
    if (larger > FLOAT_INFINITE || (larger == FLOAT_INFINITE && smaller == FLOAT_INFINITE && differ))
        return FLOAT_NAN;
    if (larger == FLOAT_INFINITE)
        return sign | larger;
    exponent = larger >> 52;
    other = smaller >> 52;
    larger &= FLOAT_IMPLIED - 1;
    smaller &= FLOAT_IMPLIED - 1;
    /* A subnormal number has no implied bit, and the exponent of the smallest normal one. */
    if (exponent)
        larger |= FLOAT_IMPLIED;
    else
        exponent = 1;
    if (other)
        smaller |= FLOAT_IMPLIED;
    else
        other = 1;
    larger <<= FLOAT_SPARE;
    smaller = shift_right_sticky(smaller << FLOAT_SPARE, exponent - other);
    if (!differ) {
        larger += smaller;
        if (larger & FLOAT_SIGN) {
            larger = shift_right_sticky(larger, 1);
            exponent++;
        }
        return pack_float(sign, exponent, larger);
    }
    larger -= smaller;
    if (!larger)
        return 0;
    zeros = leading_zeros(larger) - 1;
    if (zeros >= (__u32)exponent)
        zeros = exponent - 1;
    return pack_float(sign, exponent - (__s32)zeros, larger << (zeros & 63));
}

/* The upper half of a product of 128 bits. Bits of the lower half leave a 1 in the lowest place. */
static inline __u64 upper_half_sticky(__u64 a, __u64 b)
{
    __u64 a0 = (__u32)a, a1 = a >> 32, b0 = (__u32)b, b1 = b >> 32;
    __u64 low = a0 * b0, middle = a1 * b0 + (low >> 32), other = a0 * b1 + (__u32)middle;

    return (a1 * b1 + (middle >> 32) + (other >> 32)) | ((__u32)other || (__u32)low);
}

/* a * b */
SEPARATE __u64 product_of_binary64(__u64 a, __u64 b)
{
    __u64 sign = (a ^ b) & FLOAT_SIGN, bits;
    __s32 exponent;

    a &= ~FLOAT_SIGN;
    b &= ~FLOAT_SIGN;
    if (b > a) {
        __u64 swapped = a;

        a = b;
        b = swapped;
    }
    if (a > FLOAT_INFINITE || (a == FLOAT_INFINITE && !b))
        return FLOAT_NAN;
    if (!b || a == FLOAT_INFINITE)
        return sign | (b ? a : 0);
    /* Of two subnormal numbers nothing is left but the sign. */
    if (a < FLOAT_IMPLIED)
        return sign;
    exponent = (__s32)(a >> 52) + (__s32)(b >> 52) - 1023;
    a = (a & (FLOAT_IMPLIED - 1)) | FLOAT_IMPLIED;
    if (b < FLOAT_IMPLIED) {
        __u32 zeros = leading_zeros(b) - 11;

        b <<= zeros & 63;
        exponent -= (__s32)zeros - 1;
    } else {
        b = (b & (FLOAT_IMPLIED - 1)) | FLOAT_IMPLIED;
    }
    bits = upper_half_sticky(a << FLOAT_SPARE, b << (FLOAT_SPARE + 1));
    if (bits < FLOAT_ONE)
        bits <<= 1;
    else
        exponent++;
    if (exponent < 1) {
        bits = shift_right_sticky(bits, 1 - exponent);
        exponent = 1;
    }
    return pack_float(sign, exponent, bits);
}

/* The same number as binary64. */
static inline __u64 widen_binary32(__u32 narrow)
{
    __u64 sign = (__u64)(narrow >> 31) << 63, bits = narrow & 0x7fffff;
    __u32 exponent = narrow >> 23 & 0xff, zeros;

    if (exponent == 0xff)
        return sign | FLOAT_INFINITE | bits << 29;
    if (exponent)
        return sign | (__u64)(exponent + 1023 - 127) << 52 | bits << 29;
    if (!bits)
        return sign;
    zeros = leading_zeros(bits) - 11;
    /* The stored bits of a subnormal number have the exponent of 2^-126; the highest one becomes the implied one. */
    return sign | (((__u64)(1023 - 126 + 29 - zeros - 1) << 52) + (bits << (zeros & 63)));
}

/* Rounds to binary32. */
static inline __u32 narrow_binary64(__u64 wide)
{
    __u64 magnitude = wide & ~FLOAT_SIGN, bits = ((magnitude & (FLOAT_IMPLIED - 1)) | FLOAT_IMPLIED) << FLOAT_SPARE;
    __u32 sign = wide >> 63 << 31, spare = FLOAT_SPARE + 29;
    __s32 exponent = (__s32)(magnitude >> 52) - 1023 + 127;

    if (magnitude > FLOAT_INFINITE)
        return 0x7fc00000;
    if (magnitude < FLOAT_IMPLIED)
        return sign;
    if (exponent < 1) {
        bits = shift_right_sticky(bits, 1 - exponent);
        exponent = 1;
    }
    if (exponent >= 0xff)
        return sign | 0xff << 23;
    bits = (bits + (1ULL << (spare - 1)) - 1 + (bits >> spare & 1)) >> spare;
    return sign | (((__u32)(exponent - 1) << 23) + (__u32)bits);
}

/* Whether the second of two floats becomes the minimum or maximum. A number wins against what is none; the first of two that
 * are equal stays. `infinite`: the bits of infinity of the type, whose sign is the highest bit. */
static inline int second_wins(__u32 operation, __u64 first, __u64 second, __u64 infinite)
{
    __s64 a = first & ~FLOAT_SIGN, b = second & ~FLOAT_SIGN;

    if (a > (__s64)infinite)
        return 1;
    if (b > (__s64)infinite)
        return 0;
    /* Both zeros are 0. */
    a = first & FLOAT_SIGN ? -a : a;
    b = second & FLOAT_SIGN ? -b : b;
    return operation == WEIR_VECTOR_MIN ? b < a : b > a;
}

/* Combines two binary64. */
SEPARATE __u64 combine_binary64(__u32 operation, __u64 a, __u64 b)
{
    switch (operation & WEIR_VECTOR_OPERATION) {
    case WEIR_VECTOR_SUM:
        return sum_of_binary64(a, b);
    case WEIR_VECTOR_PROD:
        return product_of_binary64(a, b);
    default:
        return second_wins(operation & WEIR_VECTOR_OPERATION, a, b, FLOAT_INFINITE) ? b : a;
    }
}

/* Combines two binary32: a sum or product of binary64, rounded once more, has the bits of one of binary32, since it has more
 * than twice as many. Source: Figueroa, When is double rounding innocuous? (1995). */
SEPARATE __u32 combine_binary32(__u32 operation, __u32 a, __u32 b)
{
    switch (operation & WEIR_VECTOR_OPERATION) {
    case WEIR_VECTOR_SUM:
        return narrow_binary64(sum_of_binary64(widen_binary32(a), widen_binary32(b)));
    case WEIR_VECTOR_PROD:
        return narrow_binary64(product_of_binary64(widen_binary32(a), widen_binary32(b)));
    default:
        return second_wins(operation & WEIR_VECTOR_OPERATION, (__u64)a << 32, (__u64)b << 32, 0x7f8ULL << 52) ? b : a;
    }
}
