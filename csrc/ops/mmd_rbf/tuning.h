// Constants of the CPU kernels of `mmd_rbf`, chosen with
//   PFL_FAST_CPU_CAPABILITY=avx512|avx2 pytest bench/test_mmd_rbf.py --benchmark-enable --ratios ratios.txt
#pragma once

#include <cstdint>

namespace pfl {

constexpr int64_t kMmdRows = 8;            // points per task, if every difference is computed
constexpr int64_t kMmdProductPoints = 16;  // fewest points of the path with matrix products; 10 are slower with them
constexpr int64_t kMmdProductTaskPoints = 64;  // points per task of that path; a multiple of kMmdProductRows
constexpr int64_t kMmdProductRows = 16;        // rows per product: less of the lower triangle is computed
constexpr int64_t kMmdDepth = 256;             // features per pass of that path: the points stay in cache
constexpr int64_t kMmdWorkPerThread =
    1 << 17;  // pairs of features below which waking a thread costs more than it saves
constexpr int64_t kMmdPairsPerThread = 1 << 11;  // pairs of points, likewise

// Products are accurate enough if R^2 sum_a 1/a is at most this number. R is the largest distance of a point from the
// mean of x and y: products round squared distances to about 8 eps R^2, and the sum of the Gaussian kernels therefore
// to 4 eps of this number, 2e-5 in float.
constexpr double kMmdProductSpread = 64;

}  // namespace pfl
