// Row tiles in the accumulation type and the logistic noise of a tile, for the CPU kernels of `route` and `cpn_route`.
// In an unnamed namespace for the reason given in cpu/simd/convert.h.
#pragma once

#include "common/shares.h"
#include "cpu/simd/convert.h"
#include "cpu/simd/noise.h"

namespace pfl {
namespace {

constexpr int64_t kRowTile = 512;  // columns per tile, whose widened copies stay in L1

inline int64_t tile_count(int64_t features, int64_t begin) {
  return features - begin < kRowTile ? features - begin : kRowTile;
}

// Where results in the accumulation type are written: the row itself if it has that type, else the buffer, which
// round_row() then rounds to the type of the row.
inline double* wide_row(double* row, double*) {
  return row;
}
inline float* wide_row(float* row, float*) {
  return row;
}
template <class T>
inline float* wide_row(T*, float* buffer) {
  return buffer;
}

inline void round_row(const double*, int64_t, double*) {
}
inline void round_row(const float*, int64_t, float*) {
}
template <class T>
inline void round_row(const float* values, int64_t count, T* row) {
  narrow(values, count, row);
}

// The same with the type of the row as a value, for kernels compiled for accumulation types only. Values [first, first
// + count) of an array: the array itself if it has the accumulation type, else the buffer with the converted values.
inline const double* widen(Float, const void* array, int64_t first, int64_t, double*) {
  return static_cast<const double*>(array) + first;
}
inline const float* widen(Float dtype, const void* array, int64_t first, int64_t count, float* buffer) {
  switch (dtype) {
    case Float::kBFloat16:
      return widen(static_cast<const BFloat16*>(array) + first, count, buffer);
    case Float::kHalf:
      return widen(static_cast<const Half*>(array) + first, count, buffer);
    default:
      return static_cast<const float*>(array) + first;
  }
}

inline double* wide_row(Float, void* array, int64_t first, double*) {
  return static_cast<double*>(array) + first;
}
inline float* wide_row(Float dtype, void* array, int64_t first, float* buffer) {
  return dtype == Float::kFloat ? static_cast<float*>(array) + first : buffer;
}

inline void store_row(Float, const double* values, int64_t count, void* array, int64_t first) {
  narrow(values, count, static_cast<double*>(array) + first);
}
inline void store_row(Float dtype, const float* values, int64_t count, void* array, int64_t first) {
  switch (dtype) {
    case Float::kBFloat16:
      return narrow(values, count, static_cast<BFloat16*>(array) + first);
    case Float::kHalf:
      return narrow(values, count, static_cast<Half*>(array) + first);
    default:
      return narrow(values, count, static_cast<float*>(array) + first);
  }
}

// Stores results of wide_row() that are in the buffer.
template <class A>
inline void round_row(Float dtype, const A* values, int64_t count, void* array, int64_t first) {
  if (sizeof(A) == sizeof(float) && dtype != Float::kFloat) {
    store_row(dtype, values, count, array, first);
  }
}

// Logistic noise of elements first .. first + count - 1 for this seed, count <= kRowTile.
template <class Real>
inline void logistic_noise(int64_t seed, int64_t first, int64_t count, Real* __restrict noise) {
  float u[kRowTile];
  uniforms(static_cast<uint64_t>(seed), static_cast<uint64_t>(first), count, u);
  for (int64_t j = 0; j < count; ++j) {
    noise[j] = logistic_from<Real>(u[j]);
  }
}

}  // namespace
}  // namespace pfl
