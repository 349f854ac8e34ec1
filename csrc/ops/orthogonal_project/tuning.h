// Constants of the CPU kernels of `orthogonal_project`, chosen with
//   PFL_FAST_CPU_CAPABILITY=avx512|avx2 pytest bench/test_orthogonal_project.py --benchmark-enable --ratios ratios.txt
// Half of a value is slower. Twice the rows are faster but halve the number of tasks; twice the others gain nothing.
#pragma once

#include <cstdint>

namespace pfl {

constexpr int64_t kProjectRows = 32;    // samples per task, which share each packed part of a basis
constexpr int64_t kProjectDepth = 128;  // terms per pass: both operands stay in cache
constexpr int64_t kProjectBlock = 64;   // features of g and p per block of results
// multiply-adds below which waking a thread costs more than it saves
constexpr int64_t kProjectWorkPerThread = 1 << 17;

}  // namespace pfl
