// Constants of the CPU kernels of `take_normalized`, chosen with
//   pytest bench/test_take_normalized.py --benchmark-enable --ratios ratios.txt
#pragma once

#include <cstdint>

namespace pfl {

constexpr int64_t kTakeValuesPerThread = 1 << 16;  // with fewer, waking a thread costs more than it saves
constexpr int64_t kMaxChannelsInOrder = 192;       // most channels of the path without a table

}  // namespace pfl
