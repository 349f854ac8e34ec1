// Constants of the kernels of `mix`, chosen with
//   pytest bench/test_mix.py --benchmark-enable --ratios ratios.txt
#pragma once

#include <cstdint>

namespace pfl {

constexpr int64_t kMixTile = 1024;          // columns per CPU tile
constexpr int64_t kMixCudaTile = 2048;      // columns per CUDA block
constexpr int64_t kMixTilesPerThread = 16;  // with fewer, waking a thread costs more than it saves

}  // namespace pfl
