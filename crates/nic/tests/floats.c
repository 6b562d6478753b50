/* The integer arithmetic of the kernel programs, as a program of this host: reads cases (operation, a, b, 8 bytes each), and
 * writes what a combined with b is. The test that runs it knows the answers. */
#include "floats.h"
#include <stdio.h>

int main(void)
{
    static __u64 cases[1024][3], results[1024];
    size_t count;

    while ((count = fread(cases, sizeof cases[0], 1024, stdin)) > 0) {
        for (size_t at = 0; at < count; at++) {
            __u32 operation = cases[at][0];

            results[at] = (operation & WEIR_VECTOR_TYPE) == WEIR_VECTOR_F64
                              ? combine_binary64(operation, cases[at][1], cases[at][2])
                              : combine_binary32(operation, cases[at][1], cases[at][2]);
        }
        fwrite(results, sizeof results[0], count, stdout);
    }
    return 0;
}
