// Constants of the kernels of `sgd_`, chosen with
//   pytest bench/test_sgd.py --benchmark-enable --ratios ratios.txt
#pragma once

#include <cstdint>

namespace pfl {

constexpr int64_t kSgdTile = 2048;         // columns per CPU tile: all operands stay in L1
constexpr int64_t kSgdTilesPerThread = 8;  // with fewer, waking a thread costs more than it saves

}  // namespace pfl
