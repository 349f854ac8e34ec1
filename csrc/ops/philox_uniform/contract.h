// The contract of `philox_uniform`: uniform numbers in (0, 1), each a function of its seed and element index only.
//
//   seed    [*batch] int64
//   shape   shape of the numbers of one seed
//   result  [*batch, *shape] float32: result[c].flatten()[i] = uniform_from(philox(seed[c], i / 4)[i % 4])
#pragma once

#include "common/check.h"
#include "ops/philox_uniform/problem.h"

namespace pfl {

inline void check_seed(const char* op, const Tensor& seed) {
  PFL_CHECK(seed.scalar_type() == ScalarType::Long, op, ": seed must be an int64 tensor, got ", seed.scalar_type());
}

template <class Run>
Tensor philox_uniform(const Tensor& seed, const std::vector<int64_t>& shape, Run run) {
  check_seed("pfl_fast::philox_uniform", seed);
  std::vector<int64_t> full(seed.sizes().begin(), seed.sizes().end());
  int64_t numel = 1;
  for (int64_t size : shape) {
    PFL_CHECK(size >= 0, "pfl_fast::philox_uniform: shape must not be negative, got ", size);
    numel *= size;
    full.push_back(size);
  }
  const Tensor seeds = torch::stable::contiguous(seed);
  Tensor out = torch::stable::new_empty(seed, full, ScalarType::Float);
  run(PhiloxUniform{seeds.const_data_ptr<int64_t>(), seeds.numel(), numel, out.mutable_data_ptr<float>()});
  return out;
}

}  // namespace pfl
