// Points of one client and the storage of their distances, for the CPU kernels of `mmd_rbf`.
#pragma once

#include "ops/mmd_rbf/problem.h"

#include "cpu/simd/convert.h"
#include "cpu/simd/lanes.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// Rows of [x; y] of one client, and the storage of their distances.
template <class T>
struct Points {
  using A = accumulate_t<T>;
  const T *x, *y;
  A *xx, *yy, *xy;
  int64_t count, features;

  Points(const MmdRbf& p, int64_t client)
      : x(static_cast<const T*>(p.x) + client * p.points * p.features),
        y(static_cast<const T*>(p.y) + client * p.points * p.features),
        xx(static_cast<A*>(p.weights) + client * 3 * p.points * p.points),
        yy(xx + p.points * p.points),
        xy(yy + p.points * p.points),
        count(p.points),
        features(p.features) {
  }

  const T* row(int64_t i) const {
    return i < count ? x + i * features : y + (i - count) * features;
  }

  // Distance between rows i <= j.
  A& distance(int64_t i, int64_t j) const {
    if (i >= count) {
      return yy[(i - count) * count + j - count];
    }
    return j < count ? xx[i * count + j] : xy[i * count + j - count];
  }

  void fill_lower_triangle(int64_t i) const {
    A* own = i < count ? xx : yy;
    const int64_t index = i < count ? i : i - count;
    for (int64_t j = index + 1; j < count; ++j) {
      own[j * count + index] = own[index * count + j];
    }
  }
};

}  // namespace
}  // namespace PFL_CAPABILITY
}  // namespace pfl
