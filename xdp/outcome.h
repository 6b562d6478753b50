/* What becomes of a frame, and the counters that say so. */
#pragma once
#include "bpf.h"
#include "format.h"

/* What happens to a frame. XDP_TX: it becomes the answer with this status and result. */
struct outcome {
    int action;
    __u8 status;
    __u64 result;
};

struct {
    MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    MAP_TYPE(key, __u32);
    MAP_TYPE(value, __u64);
    MAP_UINT(max_entries, WEIR_COUNTERS);
} counters SECTION(".maps");

INLINE void count(__u32 which)
{
    __u64 *counter = bpf_map_lookup_elem(&counters, &which);
    if (counter)
        *counter += 1;
}

INLINE int drop(__u32 which)
{
    count(which);
    return XDP_DROP;
}

INLINE struct outcome dropped(__u32 which)
{
    return (struct outcome){.action = drop(which)};
}

INLINE struct outcome answered(__u32 which, __u8 status, __u64 result)
{
    count(which);
    return (struct outcome){.action = XDP_TX, .status = status, .result = result};
}
