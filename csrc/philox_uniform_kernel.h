// What tensor code and the raw kernels of `philox_uniform` agree on.
#pragma once

#include <cstdint>

#include "cpu/capability.h"

namespace pfl {

// out[c, i] = the uniform number of element i under seeds[c].
struct PhiloxUniform {
  const int64_t* seeds;  // [C]
  int64_t clients;       // C
  int64_t numel;         // numbers for each seed
  float* out;            // [C, numel]
};

// [begin, end): the numbers to write, of all C * numel.
PFL_DECLARE_CPU_KERNEL(philox_uniform, (const PhiloxUniform& p, int64_t begin, int64_t end))

}  // namespace pfl

extern "C" int pfl_cuda_philox_uniform(const pfl::PhiloxUniform* problem, void* stream);
