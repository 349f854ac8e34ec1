// Conversion of rows between any floating type and its accumulation type: double for double, float for the others.
// Everything here is in an unnamed namespace: these files are compiled once per instruction set, and the linker might
// pick the AVX copy of a shared inline function for a processor without AVX.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/dtype.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace pfl {
namespace {

struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

template <class T>
struct Accumulate {
  using type = float;
};
template <>
struct Accumulate<double> {
  using type = double;
};
template <class T>
using accumulate_t = typename Accumulate<T>::type;

// Dispatches on dtype: calls use(T{}) with the C++ type T.
template <class Use>
void with_type(Float dtype, Use use) {
  switch (dtype) {
    case Float::kDouble:
      return use(double{});
    case Float::kFloat:
      return use(float{});
    case Float::kBFloat16:
      return use(BFloat16{});
    case Float::kHalf:
      return use(Half{});
  }
}

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float to_float(BFloat16 value) {
  return float_of(static_cast<uint32_t>(value.bits) << 16);
}

// Rounds to nearest even; NaN becomes a quiet NaN.
inline BFloat16 to_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<uint16_t>(nan ? 0x7fc0u | (bits >> 16) : rounded)};
}

inline float to_float(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  // The shifted exponent is 112 too small; multiplying by 2^112 corrects it, also for subnormals.
  const uint32_t scaled = bits_of(float_of(magnitude << 13) * 0x1p112f);
  const uint32_t special = (magnitude << 13) | 0x7f800000u;  // infinity and NaN keep their payload
  return float_of(sign | (magnitude >= 0x7c00u ? special : scaled));
}

inline Half to_half(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 rounds the mantissa into the low bits
    half = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;  // rebias by 112, round to even
  }
  return {static_cast<uint16_t>(sign | half)};
}

// Returns the row itself if it has the accumulation type, else the buffer with the converted values.
inline const double* widen(const double* row, int64_t, double*) {
  return row;
}
inline const float* widen(const float* row, int64_t, float*) {
  return row;
}
inline const float* widen(const BFloat16* row, int64_t count, float* __restrict buffer) {
  for (int64_t j = 0; j < count; ++j) {
    buffer[j] = to_float(row[j]);
  }
  return buffer;
}
inline const float* widen(const Half* row, int64_t count, float* __restrict buffer) {
  int64_t j = 0;
#ifdef __F16C__
  for (; j + 8 <= count; j += 8) {
    _mm256_storeu_ps(buffer + j, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + j))));
  }
#endif
  for (; j < count; ++j) {
    buffer[j] = to_float(row[j]);
  }
  return buffer;
}

template <class T>
inline void narrow(const T* values, int64_t count, T* row) {
  std::memcpy(row, values, static_cast<size_t>(count) * sizeof(T));
}
inline void narrow(const float* __restrict values, int64_t count, BFloat16* __restrict row) {
  for (int64_t j = 0; j < count; ++j) {
    row[j] = to_bfloat16(values[j]);
  }
}
inline void narrow(const float* __restrict values, int64_t count, Half* __restrict row) {
  int64_t j = 0;
#ifdef __F16C__
  for (; j + 8 <= count; j += 8) {
    const __m128i packed = _mm256_cvtps_ph(_mm256_loadu_ps(values + j), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row + j), packed);
  }
#endif
  for (; j < count; ++j) {
    row[j] = to_half(values[j]);
  }
}

// NaN and infinity have all exponent bits set. The integer test vectorises, and fast-math flags cannot remove it.
inline int64_t count_nonfinite(const float* row, int64_t count) {
  uint32_t found = 0;
  for (int64_t j = 0; j < count; ++j) {
    found += (bits_of(row[j]) & 0x7f800000u) == 0x7f800000u;
  }
  return found;
}
inline int64_t count_nonfinite(const double* row, int64_t count) {
  uint64_t found = 0;
  for (int64_t j = 0; j < count; ++j) {
    uint64_t bits;
    std::memcpy(&bits, row + j, sizeof bits);
    found += (bits & 0x7ff0000000000000u) == 0x7ff0000000000000u;
  }
  return static_cast<int64_t>(found);
}

}  // namespace
}  // namespace pfl
