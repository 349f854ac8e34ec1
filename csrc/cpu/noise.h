// Runs of Philox numbers for CPU kernels: many counters side by side, so that the compiler vectorises every round.
// In an unnamed namespace for the reason given in convert.h.
#pragma once

#include <cstdint>

#include "philox.h"

namespace pfl {
namespace {

constexpr int64_t kNoiseBlocks = 16;  // counters worked on at once, four numbers each

// The numbers of elements 4 * block .. 4 * (block + kNoiseBlocks) - 1.
inline void uniform_blocks(uint64_t seed, uint64_t block, float* __restrict out) {
  uint32_t c0[kNoiseBlocks], c1[kNoiseBlocks], c2[kNoiseBlocks], c3[kNoiseBlocks];
  for (int64_t b = 0; b < kNoiseBlocks; ++b) {
    const uint64_t counter = block + static_cast<uint64_t>(b);
    c0[b] = static_cast<uint32_t>(counter);
    c1[b] = static_cast<uint32_t>(counter >> 32);
    c2[b] = c3[b] = 0;
  }
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int64_t b = 0; b < kNoiseBlocks; ++b) {
      const uint64_t p0 = uint64_t{kPhiloxMultiplier0} * c0[b];
      const uint64_t p1 = uint64_t{kPhiloxMultiplier1} * c2[b];
      c0[b] = static_cast<uint32_t>(p1 >> 32) ^ c1[b] ^ key0;
      c1[b] = static_cast<uint32_t>(p1);
      c2[b] = static_cast<uint32_t>(p0 >> 32) ^ c3[b] ^ key1;
      c3[b] = static_cast<uint32_t>(p0);
    }
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  for (int64_t b = 0; b < kNoiseBlocks; ++b) {
    out[4 * b + 0] = uniform_from(c0[b]);
    out[4 * b + 1] = uniform_from(c1[b]);
    out[4 * b + 2] = uniform_from(c2[b]);
    out[4 * b + 3] = uniform_from(c3[b]);
  }
}

// out[j] = the number of element first + j, for j < count, wherever the run begins.
inline void uniforms(uint64_t seed, uint64_t first, int64_t count, float* out) {
  float buffer[4 * kNoiseBlocks];
  int64_t j = 0;
  while (j < count) {
    const uint64_t element = first + static_cast<uint64_t>(j);
    const int64_t skip = static_cast<int64_t>(element % 4);
    if (skip == 0 && count - j >= 4 * kNoiseBlocks) {
      uniform_blocks(seed, element / 4, out + j);
      j += 4 * kNoiseBlocks;
      continue;
    }
    uniform_blocks(seed, element / 4, buffer);
    for (int64_t i = skip; i < 4 * kNoiseBlocks && j < count; ++i, ++j) {
      out[j] = buffer[i];
    }
  }
}

}  // namespace
}  // namespace pfl
