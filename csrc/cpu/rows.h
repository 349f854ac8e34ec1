// Rows that are worked on in tiles of floats (doubles for double), and the noise of one tile: what the CPU kernels of
// `route` and `cpn_route` share. In an unnamed namespace for the reason given in convert.h.
#pragma once

#include "convert.h"
#include "noise.h"
#include "shares.h"

namespace pfl {
namespace {

constexpr int64_t kRowTile = 512;  // columns whose widened copies stay in the first-level cache

inline int64_t tile_count(int64_t features, int64_t begin) {
  return features - begin < kRowTile ? features - begin : kRowTile;
}

// Where the values of a row go before they are rounded to its type: the row itself where nothing has to be rounded.
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

// Logistic noise of elements first .. first + count - 1 under this seed, count <= kRowTile.
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
