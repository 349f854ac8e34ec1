// Constants of the kernels of `aggregate`, chosen with
//   pytest bench/test_aggregate.py --benchmark-enable --ratios ratios.txt
#pragma once

#include <cstdint>

namespace pfl {

constexpr int64_t kAggregateTile = 4096;  // columns whose sums stay in L1 on the CPU
constexpr int64_t kAggregateWorkPerThread =
    1 << 17;                                  // multiply-adds below which waking a thread costs more than it saves
constexpr int64_t kAggregateParts = 64;       // sets of partial sums of the CPU backward
constexpr int64_t kAggregateCudaParts = 512;  // blocks of the CUDA backward, one set of partial sums each

}  // namespace pfl
