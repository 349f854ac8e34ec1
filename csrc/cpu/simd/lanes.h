// SIMD vectors of the instruction set's register width, for kernels that accumulate in registers.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__FMA__)
#include <immintrin.h>
#endif

#include "cpu/capability.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int64_t kVectorBytes = 32;
#else
constexpr int64_t kVectorBytes = 16;
#endif

inline int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

template <class A>
struct Integer {
  using type = int32_t;
};
template <>
struct Integer<double> {
  using type = int64_t;
};

// a * b + c, rounded once.
inline float multiply_add(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
inline double multiply_add(double a, double b, double c) {
  return __builtin_fma(a, b, c);
}
#if defined(__AVX512F__)
inline __m512 multiply_add(__m512 a, __m512 b, __m512 c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline __m512d multiply_add(__m512d a, __m512d b, __m512d c) {
  return _mm512_fmadd_pd(a, b, c);
}
#endif
#if defined(__FMA__)
inline __m256 multiply_add(__m256 a, __m256 b, __m256 c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline __m256d multiply_add(__m256d a, __m256d b, __m256d c) {
  return _mm256_fmadd_pd(a, b, c);
}
#else
// Without FMA the product is rounded too: last bits may differ from processors that have it.
template <class Vector>
inline Vector multiply_add(const Vector& a, const Vector& b, const Vector& c) {
  return a * b + c;
}
#endif

// The first `count` values and zeros; `count` is smaller than a vector.
#if defined(__AVX512F__)
inline __m512 load_first(const float* values, int64_t count) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1 << count) - 1), values);
}
inline __m512d load_first(const double* values, int64_t count) {
  return _mm512_maskz_loadu_pd(static_cast<__mmask8>((1 << count) - 1), values);
}
#else
template <class A>
inline auto load_first(const A* values, int64_t count) {
  typedef A Vector __attribute__((vector_size(kVectorBytes)));
  Vector padded = {};
  std::memcpy(&padded, values, static_cast<size_t>(count) * sizeof(A));
  return padded;
}
#endif

template <class A>
struct Lanes {
  static constexpr int64_t kCount = kVectorBytes / sizeof(A);
  // Dot products use 64 bytes of lanes on every instruction set, in kParts registers, so all give the same bits.
  static constexpr int64_t kStep = 64 / sizeof(A);
  static constexpr int kParts = kStep / kCount;
  typedef A Vector __attribute__((vector_size(kVectorBytes)));
  typedef A Unaligned __attribute__((vector_size(kVectorBytes), aligned(alignof(A)), may_alias));
  typedef typename Integer<A>::type Integers __attribute__((vector_size(kVectorBytes)));
  typedef uint8_t Bytes __attribute__((vector_size(kCount)));

  static inline __attribute__((always_inline)) Vector load(const A* values) {
    return *reinterpret_cast<const Unaligned*>(values);
  }
  // The first `count` values, zero-padded to a vector if there are fewer.
  static inline __attribute__((always_inline)) Vector load(const A* values, int64_t count) {
    if (count >= kCount) {
      return load(values);
    }
    return load_first(values, count);
  }
  static inline __attribute__((always_inline)) void store(const Vector& vector, A* values) {
    *reinterpret_cast<Unaligned*>(values) = vector;
  }
  // Broadcasts the value to all lanes, as an integer: on some processors a float broadcast occupies a multiplier.
  static inline __attribute__((always_inline)) Vector broadcast(const A* value) {
    typename Integer<A>::type bits;
    std::memcpy(&bits, value, sizeof bits);
    return reinterpret_cast<Vector>(Integers{} + bits);
  }
};

}  // namespace
}  // namespace PFL_CAPABILITY
}  // namespace pfl
