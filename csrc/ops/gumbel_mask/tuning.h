// Constants of the kernels of `gumbel_mask`, chosen with
//   pytest bench/test_gumbel_mask.py --benchmark-enable --ratios ratios.txt
#pragma once

#include <cstdint>

namespace pfl {

constexpr int64_t kGumbelTile = 256;           // values per CPU tile, which stays in L1
constexpr int64_t kGumbelTilesPerThread = 32;  // with fewer, waking a thread costs more than it saves

}  // namespace pfl
