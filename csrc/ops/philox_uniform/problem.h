// Problem struct passed from the tensor code of `philox_uniform` to its raw kernels.
#pragma once

#include <cstdint>

#include "cpu/capability.h"

namespace pfl {

// out[c, i] = uniform number of element i for seeds[c].
struct PhiloxUniform {
  const int64_t* seeds;  // [C]
  int64_t clients;       // C
  int64_t numel;         // numbers per seed
  float* out;            // [C, numel]
};

// [begin, end): range of the C * numel numbers to write.
PFL_DECLARE_CPU_KERNEL(philox_uniform, (const PhiloxUniform& p, int64_t begin, int64_t end))

}  // namespace pfl

extern "C" int pfl_cuda_philox_uniform(const pfl::PhiloxUniform* problem, void* stream);
