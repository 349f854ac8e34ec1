#include "ops/philox_uniform/problem.h"

#include "common/philox.h"
#include "cuda/common/platform.cuh"

namespace pfl {
namespace {

constexpr int kThreads = 256;

// One thread per block of four numbers of a client; writes only the numbers before numel.
__global__ void __launch_bounds__(kThreads) philox_uniform_kernel(const PhiloxUniform p, int64_t blocks_per_client) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t client = index / blocks_per_client;
  const int64_t block = index % blocks_per_client;
  if (client >= p.clients) {
    return;
  }
  const Philox bits = philox(static_cast<uint64_t>(p.seeds[client]), static_cast<uint64_t>(block));
  Pack<float> numbers;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    numbers.values[i] = uniform_from(bits.x[i]);
  }
  store_pack(p.out + client * p.numel, 4 * block, p.numel, numbers);
}

}  // namespace
}  // namespace pfl

int pfl_cuda_philox_uniform(const pfl::PhiloxUniform* problem, void* stream) {
  const int64_t blocks_per_client = (problem->numel + 3) / 4;
  const int64_t threads = problem->clients * blocks_per_client;
  if (threads == 0) {
    return 0;
  }
  const dim3 grid(static_cast<unsigned>((threads + pfl::kThreads - 1) / pfl::kThreads));
  PFL_LAUNCH(pfl::philox_uniform_kernel, grid, dim3(pfl::kThreads), 0, static_cast<cudaStream_t>(stream), *problem,
             blocks_per_client);
  return static_cast<int>(cudaGetLastError());
}
