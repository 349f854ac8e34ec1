// CPU kernels of `mmd_rbf`, compiled once per instruction set into namespace PFL_CAPABILITY.
// Distances are sums of squared differences, not differences of squares: equal points have distance exactly 0, and no
// distance is negative. All pairs are summed in the same order, so equal sets also have distance exactly 0.
// cpu_product_kernel.cpp is faster for many points that are close together.

#include "ops/mmd_rbf/cpu_points.h"

#include "common/elementary.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

constexpr int64_t kTile = 512;   // features per tile, whose rows stay in L1
constexpr int64_t kChunk = 256;  // features of a gradient, or pairs of a row, per pass
constexpr int64_t kRows = kMmdRows;

// Sum of squared differences of one pair of rows, in 64 bytes of lanes.
template <class A>
struct PairSum {
  using L = Lanes<A>;
  typename L::Vector parts[L::kParts] = {};

  inline __attribute__((always_inline)) void add(const A* a, const A* b) {
#pragma GCC unroll 4
    for (int part = 0; part < L::kParts; ++part) {
      const typename L::Vector d = L::load(a + part * L::kCount) - L::load(b + part * L::kCount);
      parts[part] = multiply_add(d, d, parts[part]);
    }
  }

  inline __attribute__((always_inline)) A total() const {
    A lanes[L::kStep];
    std::memcpy(lanes, parts, sizeof lanes);
    for (int64_t width = L::kStep / 2; width > 0; width /= 2) {
      for (int64_t i = 0; i < width; ++i) {
        lanes[i] = lanes[i] + lanes[i + width];
      }
    }
    return lanes[0];
  }
};

// Squared distances from rows a0, a1 to rows b0, b1. Computing four at once halves the loads of each row.
template <class A>
void square_distances(const A* a0, const A* a1, const A* b0, const A* b1, int64_t count, A* out) {
  constexpr int64_t kStep = Lanes<A>::kStep;
  PairSum<A> s00, s01, s10, s11;
  const auto add = [&](const A* u0, const A* u1, const A* v0, const A* v1) __attribute__((always_inline)) {
    s00.add(u0, v0);
    s01.add(u0, v1);
    s10.add(u1, v0);
    s11.add(u1, v1);
  };
  int64_t k = 0;
  for (; k + kStep <= count; k += kStep) {
    add(a0 + k, a1 + k, b0 + k, b1 + k);
  }
  if (k < count) {
    A rest[4][kStep] = {};  // zero padding adds nothing
    for (int64_t i = 0; k + i < count; ++i) {
      rest[0][i] = a0[k + i];
      rest[1][i] = a1[k + i];
      rest[2][i] = b0[k + i];
      rest[3][i] = b1[k + i];
    }
    add(rest[0], rest[1], rest[2], rest[3]);
  }
  out[0] = s00.total();
  out[1] = s01.total();
  out[2] = s10.total();
  out[3] = s11.total();
}

// Adds the distances of rows [first, first + rows) of [x; y] to themselves and later rows, for one tile of features.
template <class T>
void add_distances(const Points<T>& points, int64_t first, int64_t rows, int64_t begin, int64_t features) {
  using A = accumulate_t<T>;
  A row_buffers[kRows][kTile], other_buffers[2][kTile];
  const A* row[kRows + 1];
  for (int64_t r = 0; r < rows; ++r) {
    row[r] = widen(points.row(first + r) + begin, features, row_buffers[r]);
  }
  row[rows] = row[rows - 1];  // partner of an odd last row; its result is not stored
  const int64_t total = 2 * points.count;
  for (int64_t j = first; j < total; j += 2) {
    const A* b0 = widen(points.row(j) + begin, features, other_buffers[0]);
    const A* b1 = j + 1 < total ? widen(points.row(j + 1) + begin, features, other_buffers[1]) : b0;
    for (int64_t r = 0; r < rows && first + r <= j; r += 2) {
      A found[4];
      square_distances(row[r], row[r + 1], b0, b1, features, found);
      for (int64_t pair = 0; pair < 4; ++pair) {
        const int64_t i = r + pair / 2, k = j + pair % 2;
        if (i < rows && k < total && first + i <= k) {
          A& distance = points.distance(first + i, k);
          distance = begin == 0 ? found[pair] : distance + found[pair];
        }
      }
    }
  }
}

template <class T>
void distances(const MmdRbf& p, int64_t begin, int64_t end) {
  const int64_t blocks = mmd_row_blocks(2 * p.points);
  for (int64_t task = begin; task < end; ++task) {
    // Early rows have more later rows than late ones: blocks alternate between both ends to balance the threads.
    const int64_t slot = task % blocks;
    const int64_t first = (slot % 2 == 0 ? slot / 2 : blocks - 1 - slot / 2) * kRows;
    const int64_t rows = min(kRows, 2 * p.points - first);
    const Points<T> points(p, task / blocks);
    int64_t feature = 0;
    do {
      add_distances(points, first, rows, feature, min(kTile, p.features - feature));
      feature += kTile;
    } while (feature < p.features);
    for (int64_t r = 0; r < rows; ++r) {
      points.fill_lower_triangle(first + r);
    }
  }
}

// kernel[j] = k(D[j]); replaces D[j] by w(D[j]).
template <class A>
void apply_kernels(const MmdRbf& p, int64_t count, A* __restrict distance, A* __restrict kernel) {
  A weight[kChunk];
  for (int64_t j = 0; j < count; ++j) {
    kernel[j] = weight[j] = A(0);
  }
  for (int64_t i = 0; i < p.count; ++i) {
    const A rate = static_cast<A>(-0.5 / p.bandwidths[i]), inverse = static_cast<A>(1 / p.bandwidths[i]);
    for (int64_t j = 0; j < count; ++j) {
      const A value = exp_of(distance[j] * rate);
      kernel[j] = kernel[j] + value;
      weight[j] = weight[j] + value * inverse;
    }
  }
  for (int64_t j = 0; j < count; ++j) {
    distance[j] = weight[j];
  }
}

template <class T>
void rows(const MmdRbf& p, int64_t begin, int64_t end) {
  using A = accumulate_t<T>;
  const int64_t b = p.points;
  for (int64_t index = begin; index < end; ++index) {
    A* xx = static_cast<A*>(p.weights) + (index / b * 3 * b + index % b) * b;
    A sum = 0;
    for (int64_t first = 0; first < b; first += kChunk) {
      const int64_t count = min(kChunk, b - first);
      A k_xx[kChunk], k_yy[kChunk], k_xy[kChunk];
      apply_kernels(p, count, xx + first, k_xx);
      apply_kernels(p, count, xx + b * b + first, k_yy);
      apply_kernels(p, count, xx + 2 * b * b + first, k_xy);
      for (int64_t j = 0; j < count; ++j) {
        sum = sum + ((k_xx[j] + k_yy[j]) - (k_xy[j] + k_xy[j]));
      }
    }
    static_cast<A*>(p.sums)[index] = sum;
  }
}

// sum[k] += cross * (x[k] - y_j[k]) - own * (x[k] - x_j[k])
template <class A>
void add_point_gradient(A* __restrict sum, const A* __restrict x, const A* __restrict other, const A* __restrict same,
                        A cross, A own, int64_t count) {
  for (int64_t k = 0; k < count; ++k) {
    sum[k] = sum[k] + (cross * (x[k] - other[k]) - own * (x[k] - same[k]));
  }
}

// Gradients of one set of points, here called x; y is the other set.
template <class T>
struct Gradient {
  using A = accumulate_t<T>;
  const T *x, *y;
  const A *own, *cross;  // weights of (x, x) and (x, y)
  int64_t cross_row, cross_column;
  T* out;
  A scale;

  void compute(int64_t points, int64_t features, int64_t first, int64_t rows) const {
    A sums[kRows][kChunk], row_buffers[kRows][kChunk], other_buffer[kChunk], same_buffer[kChunk];
    for (int64_t begin = 0; begin < features; begin += kChunk) {
      const int64_t count = min(kChunk, features - begin);
      const A* row[kRows];
      for (int64_t r = 0; r < rows; ++r) {
        row[r] = widen(x + (first + r) * features + begin, count, row_buffers[r]);
        for (int64_t k = 0; k < count; ++k) {
          sums[r][k] = A(0);
        }
      }
      for (int64_t j = 0; j < points; ++j) {
        const A* other = widen(y + j * features + begin, count, other_buffer);
        const A* same = widen(x + j * features + begin, count, same_buffer);
        for (int64_t r = 0; r < rows; ++r) {
          add_point_gradient(sums[r], row[r], other, same, cross[(first + r) * cross_row + j * cross_column],
                             own[(first + r) * points + j], count);
        }
      }
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t k = 0; k < count; ++k) {
          sums[r][k] = sums[r][k] * scale;
        }
        narrow(sums[r], count, out + (first + r) * features + begin);
      }
    }
  }
};

template <class T>
void backward(const MmdRbfBackward& p, int64_t begin, int64_t end) {
  using A = accumulate_t<T>;
  const int64_t b = p.points, blocks = mmd_row_blocks(b), pairs = b * b;
  for (int64_t task = begin; task < end; ++task) {
    const bool of_y = task >= p.clients * blocks;
    void* out = of_y ? p.grad_y : p.grad_x;
    const int64_t client = task / blocks % p.clients, first = task % blocks * kRows;
    const int64_t offset = client * b * p.features;
    const T *x = static_cast<const T*>(p.x) + offset, *y = static_cast<const T*>(p.y) + offset;
    const A* weights = static_cast<const A*>(p.weights) + 3 * client * pairs;
    const A scale = A(2) * static_cast<const A*>(p.grad)[client] / static_cast<A>(pairs);
    const Gradient<T> gradient{of_y ? y : x, of_y ? x : y, of_y ? weights + pairs : weights, weights + 2 * pairs,
                               of_y ? 1 : b, of_y ? b : 1, static_cast<T*>(out) + offset,    scale};
    gradient.compute(b, p.features, first, min(kRows, b - first));
  }
}

}  // namespace

void mmd_rbf_distances(const MmdRbf& p, int64_t begin, int64_t end) {
  with_type(p.dtype, [&](auto type) { distances<decltype(type)>(p, begin, end); });
}

void mmd_rbf_rows(const MmdRbf& p, int64_t begin, int64_t end) {
  return p.dtype == Float::kDouble ? rows<double>(p, begin, end) : rows<float>(p, begin, end);
}

void mmd_rbf_backward(const MmdRbfBackward& p, int64_t begin, int64_t end) {
  with_type(p.dtype, [&](auto type) { backward<decltype(type)>(p, begin, end); });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
