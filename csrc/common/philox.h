// Counter-based random numbers, Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// The value of element i for seed s is a pure function of (s, i): the same bits on host and device, in any order.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define PFL_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define PFL_HOST_DEVICE inline
#endif

namespace pfl {
namespace {

constexpr uint32_t kPhiloxMultiplier0 = 0xd2511f53u, kPhiloxMultiplier1 = 0xcd9e8d57u;
constexpr uint32_t kPhiloxWeyl0 = 0x9e3779b9u, kPhiloxWeyl1 = 0xbb67ae85u;
constexpr int kPhiloxRounds = 10;

struct Philox {
  uint32_t x[4];
};

// Random words of elements 4 * block .. 4 * block + 3 for this seed.
PFL_HOST_DEVICE Philox philox(uint64_t seed, uint64_t block) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  Philox c = {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}};
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t p0 = uint64_t{kPhiloxMultiplier0} * c.x[0];
    const uint64_t p1 = uint64_t{kPhiloxMultiplier1} * c.x[2];
    c = {{static_cast<uint32_t>(p1 >> 32) ^ c.x[1] ^ key0, static_cast<uint32_t>(p1),
          static_cast<uint32_t>(p0 >> 32) ^ c.x[3] ^ key1, static_cast<uint32_t>(p0)}};
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return c;
}

// Uniform number u in the open interval (0, 1): (k + 1/2) / 2^23 with a 23-bit k. u and 1 - u are exact in float and
// never 0, so log(u) and log(1 - u) are finite.
PFL_HOST_DEVICE float uniform_from(uint32_t bits) {
  return (static_cast<float>(static_cast<int32_t>(bits >> 9)) + 0.5f) * 0x1p-23f;
}

PFL_HOST_DEVICE float philox_uniform(uint64_t seed, uint64_t element) {
  return uniform_from(philox(seed, element / 4).x[element % 4]);
}

}  // namespace
}  // namespace pfl
