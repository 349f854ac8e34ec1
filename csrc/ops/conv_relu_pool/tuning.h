// Constants of the CPU kernels of `conv_relu_pool`, chosen with
//   PFL_FAST_CPU_CAPABILITY=avx512|avx2 pytest bench/test_conv_relu_pool.py --benchmark-enable --ratios ratios.txt
#pragma once

#include <cstdint>

namespace pfl {

constexpr int64_t kConvOutputs = 16;          // output channels per task of grad_weight
constexpr int64_t kConvWinogradChannels = 8;  // fewest input channels of the Winograd path
constexpr int64_t kConvTiles = 48;            // Winograd tiles multiplied at once: their matrices stay in cache
// products below which waking a thread costs more than it saves
constexpr int64_t kConvWorkPerThread = 1 << 18;

// Neighbouring pooling windows per register tile, and output channels whose kernel gradients fit into registers.
#if defined(__AVX512F__)
constexpr int kConvWindows = 2;
#else
constexpr int kConvWindows = 1;
#endif
#if defined(__AVX2__)
constexpr int kConvTapChannels = 2;  // for kernels of at most 5; else 1
#else
constexpr int kConvTapChannels = 1;
#endif

}  // namespace pfl
