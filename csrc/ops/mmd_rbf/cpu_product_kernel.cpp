// CPU kernels of `mmd_rbf` with matrix products, compiled once per instruction set into namespace PFL_CAPABILITY.
//
//   D_ij   = |a_i|^2 + |a_j|^2 - 2 a_i a_j          for the points a of [x; y], minus the mean of all of them
//   grad_i = scale ((sum_j cross_ij - own_ij) x_i + own x - cross y)
//
// Differences of large terms lose digits, so tuning.h limits the distance of points from their mean. Products are
// summed in float over kMmdDepth features, then in double. |a_i|^2 is summed in the order of the product a_i a_j: equal
// points have distance exactly 0. Gradients subtract two products with equal orders: equal sets have gradients of
// exactly 0.
#include "ops/mmd_rbf/cpu_points.h"

#include "cpu/simd/scratch.h"
#include "cpu/simd/tile.h"
#include "cpu/simd/transpose.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

constexpr int64_t kLanes = 16;  // of every instruction set, so that all give the same bits

inline int64_t whole_lanes(int64_t count) {
  return (count + kLanes - 1) / kLanes * kLanes;
}

// The points of one client minus their mean, for some features at a time.
template <class T>
class Centred {
 public:
  using A = accumulate_t<T>;

  Centred(const void* x, const void* y, int64_t client, int64_t points, int64_t features, Scratch& scratch)
      : x_(static_cast<const T*>(x) + client * points * features),
        y_(static_cast<const T*>(y) + client * points * features),
        points_(points),
        features_(features),
        mean_(scratch.take<A>(kMmdDepth)),
        buffer_(scratch.take<A>(kMmdDepth)) {
  }

  void choose_features(int64_t begin) {
    begin_ = begin;
    count_ = min(kMmdDepth, features_ - begin);
    for (int64_t k = 0; k < count_; ++k) {
      mean_[k] = A(0);
    }
    for (int64_t i = 0; i < 2 * points_; ++i) {
      add(widen(row(i), count_, buffer_), mean_);
    }
    for (int64_t k = 0; k < count_; ++k) {
      mean_[k] = mean_[k] / static_cast<A>(2 * points_);
    }
  }

  int64_t count() const {
    return count_;
  }

  // Writes point i of [x; y], zero-padded to whole lanes.
  void read(int64_t i, A* out) const {
    subtract(widen(row(i), count_, buffer_), mean_, count_, out);
    for (int64_t k = count_; k < whole_lanes(count_); ++k) {
      out[k] = A(0);
    }
  }

 private:
  const T* row(int64_t i) const {
    return (i < points_ ? x_ + i * features_ : y_ + (i - points_) * features_) + begin_;
  }

  void add(const A* __restrict from, A* __restrict sum) const {
    for (int64_t k = 0; k < count_; ++k) {
      sum[k] = sum[k] + from[k];
    }
  }

  static void subtract(const A* __restrict a, const A* __restrict b, int64_t count, A* __restrict out) {
    for (int64_t k = 0; k < count; ++k) {
      out[k] = a[k] - b[k];
    }
  }

  const T *x_, *y_;
  int64_t points_, features_, begin_ = 0, count_ = 0;
  A *mean_, *buffer_;
};

template <class T>
class Spread {
 public:
  using A = accumulate_t<T>;

  Spread(const MmdPoints& p, int64_t client, Scratch& scratch)
      : p_(p),
        points_(p.x, p.y, client, p.points, p.features, scratch),
        row_(scratch.take<A>(kMmdDepth)),
        squares_(scratch.take_zeros<double>(2 * p.points)) {
  }

  double largest() {
    for (int64_t begin = 0; begin < p_.features; begin += kMmdDepth) {
      points_.choose_features(begin);
      for (int64_t i = 0; i < 2 * p_.points; ++i) {
        points_.read(i, row_);
        squares_[i] += square(row_, whole_lanes(points_.count()));
      }
    }
    double found = 0;
    for (int64_t i = 0; i < 2 * p_.points; ++i) {
      found = squares_[i] <= found ? found : squares_[i];  // a NaN stays
      if (found != found) {
        return found;
      }
    }
    return found;
  }

 private:
  static double square(const A* row, int64_t count) {
    A lanes[kLanes] = {};
    for (int64_t k = 0; k < count; k += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] = lanes[lane] + row[k + lane] * row[k + lane];
      }
    }
    double sum = 0;
    for (const A lane : lanes) {
      sum += static_cast<double>(lane);
    }
    return sum;
  }

  const MmdPoints& p_;
  Centred<T> points_;
  A* row_;
  double* squares_;
};

// Distances of the points [first, first + rows) of [x; y] to themselves and later points.
template <class T>
class ProductDistances {
 public:
  using A = accumulate_t<T>;

  ProductDistances(const MmdRbf& p, int64_t client, int64_t first, Scratch& scratch)
      : points_(p, client),
        features_(p.features),
        first_(first),
        rows_(min(kMmdProductTaskPoints, 2 * p.points - first)),
        columns_(whole_lanes(2 * p.points - first)),
        centred_(p.x, p.y, client, p.points, p.features, scratch),
        transposed_(scratch.take<A>(kMmdDepth * columns_)),
        part_(scratch.take<A>(kMmdProductRows * columns_)),
        square_(scratch.take_zeros<double>(columns_)),
        product_(scratch.take_zeros<double>(kMmdProductTaskPoints * columns_)) {
  }

  void run() {
    for (int64_t begin = 0; begin < features_; begin += kMmdDepth) {
      centred_.choose_features(begin);
      transpose_points();
      add_squares();
      for (int64_t r = 0; r < rows_; r += kMmdProductRows) {
        add_products(r, min(kMmdProductRows, rows_ - r));
      }
    }
    const int64_t total = 2 * points_.count;
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t j = r; first_ + j < total; ++j) {
        const double distance = square_[r] + square_[j] - 2 * product_[r * columns_ + j];
        points_.distance(first_ + r, first_ + j) = distance > 0 ? static_cast<A>(distance) : A(0);
      }
      points_.fill_lower_triangle(first_ + r);
    }
  }

 private:
  // transposed_[k][j] = feature k of point first + j; zeros after the last point.
  void transpose_points() {
    constexpr int64_t kCount = Lanes<A>::kCount;
    A buffers[kCount][kMmdDepth];
    const A* row[kCount];
    for (int64_t j = 0; j < columns_; j += kCount) {
      for (int64_t lane = 0; lane < kCount; ++lane) {
        row[lane] = buffers[lane];
        if (first_ + j + lane < 2 * points_.count) {
          centred_.read(first_ + j + lane, buffers[lane]);
        } else {
          std::memset(buffers[lane], 0, sizeof buffers[lane]);
        }
      }
      transpose_rows<A>(row, centred_.count(), transposed_ + j, columns_);
    }
  }

  void add_squares() {
    using L = Lanes<A>;
    for (int64_t j = 0; j < columns_; j += L::kCount) {
      typename L::Vector sum = {};
      for (int64_t k = 0; k < centred_.count(); ++k) {
        const typename L::Vector values = L::load(transposed_ + k * columns_ + j);
        sum = multiply_add(values, values, sum);
      }
      A sums[L::kCount];
      L::store(sum, sums);
      for (int64_t lane = 0; lane < L::kCount; ++lane) {
        square_[j + lane] += static_cast<double>(sums[lane]);
      }
    }
  }

  void add_products(int64_t r, int64_t rows) {
    const A* from = transposed_ + r;
    const int64_t columns = columns_ - r;
    multiply({from, 1, columns_}, {from, columns_, 1}, rows, centred_.count(), columns, {part_, columns_, 1}, false);
    for (int64_t i = 0; i < rows; ++i) {
      double* __restrict product = product_ + (r + i) * columns_ + r;
      const A* __restrict part = part_ + i * columns_;
      for (int64_t j = 0; j < columns; ++j) {
        product[j] += static_cast<double>(part[j]);
      }
    }
  }

  Points<T> points_;
  int64_t features_, first_, rows_, columns_;
  Centred<T> centred_;
  A *transposed_, *part_;
  double *square_, *product_;
};

// Gradients of the points [first, first + rows) of one set, here called x; y is the other set.
template <class T>
class ProductGradient {
 public:
  using A = accumulate_t<T>;

  ProductGradient(const MmdRbfBackward& p, bool of_y, int64_t client, int64_t first, Scratch& scratch)
      : points_(p.points),
        features_(p.features),
        first_(first),
        rows_(min(kMmdProductTaskPoints, p.points - first)),
        centred_(of_y ? p.y : p.x, of_y ? p.x : p.y, client, p.points, p.features, scratch),
        out_(static_cast<T*>(of_y ? p.grad_y : p.grad_x) + (client * p.points + first) * p.features),
        scale_(A(2) * static_cast<const A*>(p.grad)[client] / static_cast<A>(p.points * p.points)),
        values_(scratch.take<A>(kMmdDepth * kMmdDepth)),
        same_(scratch.take<A>(kMmdProductTaskPoints * kMmdDepth)),
        other_(scratch.take<A>(kMmdProductTaskPoints * kMmdDepth)),
        own_factor_(scratch.take<A>(kMmdProductTaskPoints)) {
    const int64_t pairs = p.points * p.points;
    const A* weights = static_cast<const A*>(p.weights) + 3 * client * pairs;
    const A* cross = weights + 2 * pairs;
    own_ = {weights + (of_y ? pairs : 0) + first * p.points, p.points, 1};
    cross_ =
        of_y ? Matrix<const A>{cross + first, 1, p.points} : Matrix<const A>{cross + first * p.points, p.points, 1};
  }

  void run() {
    for (int64_t r = 0; r < rows_; ++r) {
      own_factor_[r] = static_cast<A>(sum(cross_, r) - sum(own_, r));
    }
    for (int64_t begin = 0; begin < features_; begin += kMmdDepth) {
      centred_.choose_features(begin);
      multiply_points(own_, 0, same_);
      multiply_points(cross_, points_, other_);
      for (int64_t r = 0; r < rows_; ++r) {
        centred_.read(first_ + r, values_);
        combine(own_factor_[r], same_ + r * kMmdDepth, other_ + r * kMmdDepth, values_);
        narrow(values_, centred_.count(), out_ + r * features_ + begin);
      }
    }
  }

 private:
  double sum(const Matrix<const A>& weights, int64_t r) const {
    double total = 0;
    for (int64_t j = 0; j < points_; ++j) {
      total += static_cast<double>(weights.data[r * weights.row + j * weights.column]);
    }
    return total;
  }

  // out = weights * the points [begin, begin + points) of [x; y].
  void multiply_points(const Matrix<const A>& weights, int64_t begin, A* out) {
    for (int64_t j = 0; j < points_; j += kMmdDepth) {
      const int64_t terms = min(kMmdDepth, points_ - j);
      for (int64_t i = 0; i < terms; ++i) {
        centred_.read(begin + j + i, values_ + i * kMmdDepth);
      }
      multiply({weights.data + j * weights.column, weights.row, weights.column}, {values_, kMmdDepth, 1}, rows_, terms,
               whole_lanes(centred_.count()), {out, kMmdDepth, 1}, j > 0);
    }
  }

  void combine(A factor, const A* __restrict same, const A* __restrict other, A* __restrict values) const {
    for (int64_t k = 0; k < centred_.count(); ++k) {
      values[k] = (factor * values[k] + (same[k] - other[k])) * scale_;
    }
  }

  int64_t points_, features_, first_, rows_;
  Centred<T> centred_;
  T* out_;
  A scale_;
  A *values_, *same_, *other_, *own_factor_;
  Matrix<const A> own_, cross_;
};

}  // namespace

void mmd_rbf_spread(const MmdPoints& p, int64_t begin, int64_t end, double* spread) {
  with_type(p.dtype, [&](auto type) {
    for (int64_t client = begin; client < end; ++client) {
      spread[client] = WithScratch<Spread<decltype(type)>>("mmd_rbf", p, client)->largest();
    }
  });
}

void mmd_rbf_product_distances(const MmdRbf& p, int64_t client, int64_t first) {
  with_type(p.dtype,
            [&](auto type) { WithScratch<ProductDistances<decltype(type)>>("mmd_rbf", p, client, first)->run(); });
}

void mmd_rbf_product_backward(const MmdRbfBackward& p, bool of_y, int64_t client, int64_t first) {
  with_type(p.dtype, [&](auto type) {
    WithScratch<ProductGradient<decltype(type)>>("mmd_rbf_backward", p, of_y, client, first)->run();
  });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
