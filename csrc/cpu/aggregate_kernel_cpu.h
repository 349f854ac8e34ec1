// The CPU kernels of `aggregate` as the tensor code sees them.
#pragma once

#include <cstdint>

#include "aggregate_kernel.h"
#include "capability.h"

namespace pfl {

constexpr int64_t kAggregateTile = 2048;  // columns whose sums stay in the first-level cache

// first_tile [T + 1]: number of tiles before each tensor. [begin, end): the tiles to do. nonfinite [G, N] or null.
PFL_DECLARE_CPU_KERNEL(aggregate_forward, (const AggregateForward& p, const int64_t* first_tile, int64_t begin,
                                           int64_t end, int64_t* nonfinite))

// [begin, end): the parts to do, each with its own partial sums.
PFL_DECLARE_CPU_KERNEL(aggregate_backward,
                       (const AggregateBackward& p, const int64_t* first_tile, int64_t begin, int64_t end))

}  // namespace pfl
