/* What programs share that check their data: contents that are known in advance, and counters that a tool reads meanwhile. */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* Counters of a rank: the file `counts.RANK`, which stays if the rank is killed. `tools/checked.py` reads it. `failures`: bytes,
 * lengths or envelopes of a message that are wrong. `ended`: the program has come to its end. */
struct counts {
    uint64_t sent, checked, bytes, wrong_bytes, failures, errors, ended;
};
static struct counts unread_counts, *counts = &unread_counts;

/* Returns 0 if there is such a file now. */
static inline int share_counts(const char *directory, int rank) {
    char path[4096];
    snprintf(path, sizeof path, "%s/counts.%d", directory, rank);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || ftruncate(file, sizeof *counts)) return -1;
    void *shared = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (shared == MAP_FAILED) return -1;
    counts = shared;
    return 0;
}

static inline uint64_t mix(uint64_t x) { /* splitmix64 */
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Byte `at` of the message with this key. */
static inline unsigned char content(uint64_t key, size_t at) { return mix(key + at / 8) >> (at % 8 * 8); }
