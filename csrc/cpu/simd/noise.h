// Consecutive Philox numbers for CPU kernels. Many counters advance together, so the compiler vectorises every round.
// In an unnamed namespace for the reason given in cpu/simd/convert.h.
#pragma once

#include <cstdint>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "common/philox.h"

namespace pfl {
namespace {

constexpr int64_t kNoiseBlocks = 16;  // counters per call, four numbers each

#ifdef __AVX2__

// High and low words of eight 32 x 32 bit products. g++ generates several times as many instructions for plain C++.
inline void multiply(__m256i x, uint32_t by, __m256i* high, __m256i* low) {
  const __m256i factor = _mm256_set1_epi32(static_cast<int>(by));
  const __m256i even = _mm256_mul_epu32(x, factor);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), factor);
  *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}

inline __m256 uniform_from(__m256i bits) {
  const __m256 k = _mm256_cvtepi32_ps(_mm256_srli_epi32(bits, 9));
  return _mm256_mul_ps(_mm256_add_ps(k, _mm256_set1_ps(0.5f)), _mm256_set1_ps(0x1p-23f));
}

// out[4 * b + i] = lane b of c[i]
inline void interleave(const __m256* c, float* out) {
  const __m256d low01 = _mm256_castps_pd(_mm256_unpacklo_ps(c[0], c[1]));
  const __m256d low23 = _mm256_castps_pd(_mm256_unpacklo_ps(c[2], c[3]));
  const __m256d high01 = _mm256_castps_pd(_mm256_unpackhi_ps(c[0], c[1]));
  const __m256d high23 = _mm256_castps_pd(_mm256_unpackhi_ps(c[2], c[3]));
  const __m256 b04 = _mm256_castpd_ps(_mm256_unpacklo_pd(low01, low23));
  const __m256 b15 = _mm256_castpd_ps(_mm256_unpackhi_pd(low01, low23));
  const __m256 b26 = _mm256_castpd_ps(_mm256_unpacklo_pd(high01, high23));
  const __m256 b37 = _mm256_castpd_ps(_mm256_unpackhi_pd(high01, high23));
  _mm256_storeu_ps(out, _mm256_permute2f128_ps(b04, b15, 0x20));
  _mm256_storeu_ps(out + 8, _mm256_permute2f128_ps(b26, b37, 0x20));
  _mm256_storeu_ps(out + 16, _mm256_permute2f128_ps(b04, b15, 0x31));
  _mm256_storeu_ps(out + 24, _mm256_permute2f128_ps(b26, b37, 0x31));
}

// The numbers of elements 4 * block .. 4 * (block + kNoiseBlocks) - 1.
inline void uniform_blocks(uint64_t seed, uint64_t block, float* __restrict out) {
  constexpr int64_t kVectors = kNoiseBlocks / 8;  // independent vectors, to hide the latency of the products
  __m256i c[kVectors][4];
  for (int64_t v = 0; v < kVectors; ++v) {
    alignas(32) uint32_t low[8], high[8];
    for (int64_t b = 0; b < 8; ++b) {
      const uint64_t counter = block + static_cast<uint64_t>(8 * v + b);
      low[b] = static_cast<uint32_t>(counter);
      high[b] = static_cast<uint32_t>(counter >> 32);
    }
    c[v][0] = _mm256_load_si256(reinterpret_cast<const __m256i*>(low));
    c[v][1] = _mm256_load_si256(reinterpret_cast<const __m256i*>(high));
    c[v][2] = c[v][3] = _mm256_setzero_si256();
  }
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const __m256i keys0 = _mm256_set1_epi32(static_cast<int>(key0));
    const __m256i keys1 = _mm256_set1_epi32(static_cast<int>(key1));
    for (int64_t v = 0; v < kVectors; ++v) {
      __m256i high0, low0, high1, low1;
      multiply(c[v][0], kPhiloxMultiplier0, &high0, &low0);
      multiply(c[v][2], kPhiloxMultiplier1, &high1, &low1);
      c[v][0] = _mm256_xor_si256(_mm256_xor_si256(high1, c[v][1]), keys0);
      c[v][1] = low1;
      c[v][2] = _mm256_xor_si256(_mm256_xor_si256(high0, c[v][3]), keys1);
      c[v][3] = low0;
    }
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  for (int64_t v = 0; v < kVectors; ++v) {
    const __m256 numbers[4] = {uniform_from(c[v][0]), uniform_from(c[v][1]), uniform_from(c[v][2]),
                               uniform_from(c[v][3])};
    interleave(numbers, out + 32 * v);
  }
}

#else

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

#endif

// out[j] = number of element first + j for j < count; `first` need not be a multiple of 4.
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
