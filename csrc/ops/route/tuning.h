// Constants of the CPU kernels of `route` and `cpn_route`, chosen with
//   pytest bench/test_route.py bench/test_cpn_route.py --benchmark-enable --ratios ratios.txt
#pragma once

#include <cstdint>

namespace pfl {

constexpr int64_t kRouteFeaturesPerThread = 1 << 14;  // with fewer, waking a thread costs more than it saves

}  // namespace pfl
