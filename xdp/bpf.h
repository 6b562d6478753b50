/* What a program needs of the kernel's interface: helpers by their numbers, and the form in which maps are declared. So
 * neither libbpf nor its headers are needed. Source: include/uapi/linux/bpf.h. */
#pragma once
#include <linux/bpf.h>

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

/* So that what happens most often is in one piece, and in the cache of instructions. */
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

#define MAP_UINT(name, value) int(*name)[value]
#define MAP_TYPE(name, type) type *name

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value,
                                         __u64 flags) = (void *)BPF_FUNC_map_update_elem;
static long (*const bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)BPF_FUNC_redirect_map;
static long (*const bpf_spin_lock)(struct bpf_spin_lock *lock) = (void *)BPF_FUNC_spin_lock;
static long (*const bpf_spin_unlock)(struct bpf_spin_lock *lock) = (void *)BPF_FUNC_spin_unlock;
