// A small kernel with one selectable fault, to test that the emulation detects it. FAULT=0 is correct.
#include <cstdint>

#include "cuda/common/platform.cuh"

namespace {

constexpr int kThreads = 64;

enum {
  kNone,
  kMissingBarrierBeforeRead,
  kMissingBarrierBeforeWrite,
  kOffByOne,
  kPlainAdd,
  kDivergentBarrier,
  kUnaligned
};

// Reverses each of `rounds` runs of kThreads values through shared memory and sums all of them.
__global__ void reverse_and_sum(const float* values, float* reversed, int64_t* sum, int64_t rounds) {
  PFL_SHARED(float, staged, kThreads);
  const int i = static_cast<int>(threadIdx.x);
  for (int64_t round = 0; round < rounds; ++round) {
    const float* from = values + round * kThreads;
    staged[i] = FAULT == kOffByOne ? from[i + 1] : from[i];
    if (FAULT != kMissingBarrierBeforeRead && (FAULT != kDivergentBarrier || i > 0)) {
      __syncthreads();
    }
    reversed[round * kThreads + i] = staged[kThreads - 1 - i];
    if (FAULT != kMissingBarrierBeforeWrite) {
      __syncthreads();
    }
    if (FAULT == kPlainAdd) {
      *sum += static_cast<int64_t>(from[i]);
    } else {
      atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(from[i]));
    }
    if (FAULT == kUnaligned && i == 0) {
      *reinterpret_cast<pfl::Pack<float>*>(reversed + 1) = {};
    }
  }
}

}  // namespace

struct Problem {
  const float* values;
  float* reversed;
  int64_t* sum;
  int64_t rounds;
};

extern "C" int launch_faulty(const Problem* p, void* stream) {
  PFL_LAUNCH(reverse_and_sum, dim3(1), dim3(kThreads), 0, stream, p->values, p->reversed, p->sum, p->rounds);
  return cudaGetLastError();
}
