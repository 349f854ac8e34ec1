// Constants of the kernels of `distill_losses`, chosen with
//   pytest bench/test_distill_losses.py --benchmark-enable --ratios ratios.txt
#pragma once

#include <cstdint>

namespace pfl {

constexpr int64_t kDistillPartRows = 64;  // rows per set of partial sums
constexpr int64_t kDistillTile = 256;     // classes per CPU tile; a multiple of kDistillLanes
// with fewer, waking a thread costs more than it saves
constexpr int64_t kDistillLogitsPerThread = 1 << 13;

}  // namespace pfl
