// Winograd convolution F(4 x 4, 5 x 5): 4 x 4 results from a tile of 8 x 8 pixels with 64 products instead of 400
// (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016):
//
//   Y = A^T [(G g G^T) * (B^T d B)] A     d: tile of pixels, g: kernel, *: elementwise, summed over input channels
// The interpolation points are 0, 1, -1, 2, -2, 1/2, -1/2 and infinity; in float the error is a few times that of the
// direct sum. The convolution is linear in d and in g, so their gradients are the transposed matrices applied to the
// gradient of Y.
//
// A `Transform` is one of these matrices. Vectors lie across channels and no sum is split over lanes, so all
// instruction sets give the same bits.
#pragma once

#include <cstdint>

#include "cpu/capability.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

constexpr int kTaps = 5;     // kernel height and width
constexpr int kResults = 4;  // height and width of the results of a tile
constexpr int kSide = kTaps + kResults - 1;
constexpr int kPositions = kSide * kSide;

// Scale of the transformed kernel at the points +-1, +-2 and +-1/2.
constexpr double kAtOne = -2.0 / 9, kAtTwo = 1.0 / 90, kAtHalf = 32.0 / 45;

// B^T: pixels to tile positions.
struct PixelsToTile {
  static constexpr int kFrom = kSide, kTo = kSide;
  template <class A, class V>
  static inline __attribute__((always_inline)) void apply(const V* d, int s, V* t, int q) {
    t[0 * q] = d[0 * s] - d[6 * s] + A(5.25) * (d[4 * s] - d[2 * s]);
    t[7 * q] = d[7 * s] - d[1 * s] + A(5.25) * (d[3 * s] - d[5 * s]);
    const V even1 = d[2 * s] + d[6 * s] - A(4.25) * d[4 * s], odd1 = d[1 * s] + d[5 * s] - A(4.25) * d[3 * s];
    t[1 * q] = even1 + odd1;
    t[2 * q] = even1 - odd1;
    const V even2 = d[6 * s] + A(0.25) * d[2 * s] - A(1.25) * d[4 * s];
    const V odd2 = A(0.5) * d[1 * s] - A(2.5) * d[3 * s] + A(2) * d[5 * s];
    t[3 * q] = even2 + odd2;
    t[4 * q] = even2 - odd2;
    const V even3 = d[6 * s] + A(4) * d[2 * s] - A(5) * d[4 * s];
    const V odd3 = A(2) * d[1 * s] - A(2.5) * d[3 * s] + A(0.5) * d[5 * s];
    t[5 * q] = even3 + odd3;
    t[6 * q] = even3 - odd3;
  }
};

// B: gradients of tile positions to gradients of pixels.
struct TileToPixels {
  static constexpr int kFrom = kSide, kTo = kSide;
  template <class A, class V>
  static inline __attribute__((always_inline)) void apply(const V* t, int s, V* d, int q) {
    const V even1 = t[1 * s] + t[2 * s], even2 = t[3 * s] + t[4 * s], even3 = t[5 * s] + t[6 * s];
    const V odd1 = t[1 * s] - t[2 * s], odd2 = t[3 * s] - t[4 * s], odd3 = t[5 * s] - t[6 * s];
    d[0 * q] = t[0 * s];
    d[1 * q] = odd1 - t[7 * s] + A(0.5) * odd2 + A(2) * odd3;
    d[2 * q] = even1 - A(5.25) * t[0 * s] + A(0.25) * even2 + A(4) * even3;
    d[3 * q] = A(5.25) * t[7 * s] - A(4.25) * odd1 - A(2.5) * (odd2 + odd3);
    d[4 * q] = A(5.25) * t[0 * s] - A(4.25) * even1 - A(1.25) * even2 - A(5) * even3;
    d[5 * q] = odd1 - A(5.25) * t[7 * s] + A(2) * odd2 + A(0.5) * odd3;
    d[6 * q] = even1 - t[0 * s] + even2 + even3;
    d[7 * q] = t[7 * s];
  }
};

// G: kernel taps to tile positions.
struct TapsToTile {
  static constexpr int kFrom = kTaps, kTo = kSide;
  template <class A, class V>
  static inline __attribute__((always_inline)) void apply(const V* g, int s, V* t, int q) {
    t[0 * q] = g[0 * s];
    const V even1 = g[0 * s] + g[2 * s] + g[4 * s], odd1 = g[1 * s] + g[3 * s];
    t[1 * q] = A(kAtOne) * (even1 + odd1);
    t[2 * q] = A(kAtOne) * (even1 - odd1);
    const V even2 = g[0 * s] + A(4) * g[2 * s] + A(16) * g[4 * s], odd2 = A(2) * g[1 * s] + A(8) * g[3 * s];
    t[3 * q] = A(kAtTwo) * (even2 + odd2);
    t[4 * q] = A(kAtTwo) * (even2 - odd2);
    const V even3 = g[0 * s] + A(0.25) * g[2 * s] + A(0.0625) * g[4 * s];
    const V odd3 = A(0.5) * g[1 * s] + A(0.125) * g[3 * s];
    t[5 * q] = A(kAtHalf) * (even3 + odd3);
    t[6 * q] = A(kAtHalf) * (even3 - odd3);
    t[7 * q] = g[4 * s];
  }
};

// G^T: gradients of tile positions to gradients of kernel taps.
struct TileToTaps {
  static constexpr int kFrom = kSide, kTo = kTaps;
  template <class A, class V>
  static inline __attribute__((always_inline)) void apply(const V* t, int s, V* g, int q) {
    const V even1 = A(kAtOne) * (t[1 * s] + t[2 * s]), odd1 = A(kAtOne) * (t[1 * s] - t[2 * s]);
    const V even2 = A(kAtTwo) * (t[3 * s] + t[4 * s]), odd2 = A(kAtTwo) * (t[3 * s] - t[4 * s]);
    const V even3 = A(kAtHalf) * (t[5 * s] + t[6 * s]), odd3 = A(kAtHalf) * (t[5 * s] - t[6 * s]);
    g[0 * q] = t[0 * s] + even1 + even2 + even3;
    g[1 * q] = odd1 + A(2) * odd2 + A(0.5) * odd3;
    g[2 * q] = even1 + A(4) * even2 + A(0.25) * even3;
    g[3 * q] = odd1 + A(8) * odd2 + A(0.125) * odd3;
    g[4 * q] = t[7 * s] + even1 + A(16) * even2 + A(0.0625) * even3;
  }
};

// A^T: sums at tile positions to results.
struct TileToResults {
  static constexpr int kFrom = kSide, kTo = kResults;
  template <class A, class V>
  static inline __attribute__((always_inline)) void apply(const V* m, int s, V* y, int q) {
    const V even1 = m[1 * s] + m[2 * s], even2 = m[3 * s] + m[4 * s], even3 = m[5 * s] + m[6 * s];
    const V odd1 = m[1 * s] - m[2 * s], odd2 = m[3 * s] - m[4 * s], odd3 = m[5 * s] - m[6 * s];
    y[0 * q] = m[0 * s] + even1 + even2 + even3;
    y[1 * q] = odd1 + A(2) * odd2 + A(0.5) * odd3;
    y[2 * q] = even1 + A(4) * even2 + A(0.25) * even3;
    y[3 * q] = m[7 * s] + odd1 + A(8) * odd2 + A(0.125) * odd3;
  }
};

// A: gradients of results to gradients of the sums at tile positions.
struct ResultsToTile {
  static constexpr int kFrom = kResults, kTo = kSide;
  template <class A, class V>
  static inline __attribute__((always_inline)) void apply(const V* y, int s, V* m, int q) {
    const V even1 = y[0 * s] + y[2 * s], odd1 = y[1 * s] + y[3 * s];
    const V even2 = y[0 * s] + A(4) * y[2 * s], odd2 = A(2) * y[1 * s] + A(8) * y[3 * s];
    const V even3 = y[0 * s] + A(0.25) * y[2 * s], odd3 = A(0.5) * y[1 * s] + A(0.125) * y[3 * s];
    m[0 * q] = y[0 * s];
    m[1 * q] = even1 + odd1;
    m[2 * q] = even1 - odd1;
    m[3 * q] = even2 + odd2;
    m[4 * q] = even2 - odd2;
    m[5 * q] = even3 + odd3;
    m[6 * q] = even3 - odd3;
    m[7 * q] = y[3 * s];
  }
};

// out = M in M^T for the matrix M of the transform and square `in` and `out`.
template <class Transform, class A, class V>
inline __attribute__((always_inline)) void apply_2d(const V* in, V* out) {
  V half[Transform::kTo * Transform::kFrom];
  for (int column = 0; column < Transform::kFrom; ++column) {
    Transform::template apply<A>(in + column, Transform::kFrom, half + column, Transform::kFrom);
  }
  for (int row = 0; row < Transform::kTo; ++row) {
    Transform::template apply<A>(half + row * Transform::kFrom, 1, out + row * Transform::kTo, 1);
  }
}

}  // namespace
}  // namespace PFL_CAPABILITY
}  // namespace pfl
