// CPU kernels of `cpn_route`, compiled once per instruction set into namespace PFL_CAPABILITY. A row is read from
// memory once; mean, variance and all later steps find it in cache. Sums over a row have a fixed number of lanes, so
// all instruction sets and thread counts give the same bits.
#include "ops/cpn_route/problem.h"

#include "cpu/simd/rows.h"
#include "ops/cpn_route/policy.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

constexpr int64_t kLanes = 32;  // divides kRowTile, so the lane of a column does not depend on the tiles

template <class A>
struct Lanes {
  A sums[kLanes] = {};

  A total() {
    for (int64_t width = kLanes / 2; width > 0; width /= 2) {
      for (int64_t lane = 0; lane < width; ++lane) {
        sums[lane] = sums[lane] + sums[lane + width];
      }
    }
    return sums[0];
  }
};

// Adds term(j) for j < count to lane j % kLanes.
template <class A, class Term>
inline void add_terms(Lanes<A>& lanes, int64_t count, Term term) {
  A sums[kLanes];  // a local copy that cannot be aliased stays in registers
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    sums[lane] = lanes.sums[lane];
  }
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] = sums[lane] + term(j + lane);
    }
  }
  for (int64_t lane = 0; j < count; ++j, ++lane) {
    sums[lane] = sums[lane] + term(j);
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    lanes.sums[lane] = sums[lane];
  }
}

template <class T>
RowStats<accumulate_t<T>> row_stats(const T* row, int64_t width, double eps) {
  using A = accumulate_t<T>;
  A buffer[sizeof(T) < sizeof(A) ? kRowTile : 1];
  // Sums differences from the first value: a row of equal values has exactly that mean and variance 0.
  const A shift = *widen(row, 1, buffer);
  Lanes<A> sum, square;
  for (int64_t j = 0; j < width; j += kRowTile) {
    const A* x = widen(row + j, tile_count(width, j), buffer);
    add_terms(sum, tile_count(width, j), [=](int64_t i) { return x[i] - shift; });
  }
  const A mean = shift + sum.total() / static_cast<A>(width);
  for (int64_t j = 0; j < width; j += kRowTile) {
    const A* x = widen(row + j, tile_count(width, j), buffer);
    add_terms(square, tile_count(width, j), [=](int64_t i) { return (x[i] - mean) * (x[i] - mean); });
  }
  return {mean, inverse_sqrt(square.total() / static_cast<A>(width) + static_cast<A>(eps))};
}

// A tile of both halves of a row and of its gamma and beta, in the accumulation type.
template <class A>
struct Logits {
  const A *a0, *a1, *gamma0, *gamma1, *beta0, *beta1, *noise;
};

template <class T, bool kNoise>
class LogitsReader {
 public:
  using A = accumulate_t<T>;

  LogitsReader(const RouteSizes& sizes, const CpnRouteInputs& inputs, int64_t row)
      : features_(sizes.features),
        client_(row / sizes.rows),
        element_((row % sizes.rows) * sizes.features),
        seeds_(inputs.route.seeds),
        a_(static_cast<const T*>(inputs.route.a) + row * 2 * sizes.features),
        gamma_(static_cast<const T*>(inputs.gamma) + client_ * inputs.gamma_stride),
        beta_(static_cast<const T*>(inputs.beta) + client_ * inputs.beta_stride) {
  }

  const T* row() const {
    return a_;
  }

  Logits<A> tile(int64_t j, int64_t count) {
    if (kNoise) {
      logistic_noise(seeds_[client_], element_ + j, count, noise_);
    }
    return {widen(a_ + j, count, buffers_[0]),
            widen(a_ + features_ + j, count, buffers_[1]),
            widen(gamma_ + j, count, buffers_[2]),
            widen(gamma_ + features_ + j, count, buffers_[3]),
            widen(beta_ + j, count, buffers_[4]),
            widen(beta_ + features_ + j, count, buffers_[5]),
            noise_};
  }

 private:
  int64_t features_, client_, element_;
  const int64_t* seeds_;
  const T *a_, *gamma_, *beta_;
  A noise_[kNoise ? kRowTile : 1];
  A buffers_[6][sizeof(T) < sizeof(A) ? kRowTile : 1];
};

template <bool kNoise, class A>
void split(const Logits<A>& logits, const RowStats<A>& stats, const A* __restrict h, A scale, int64_t count,
           A* __restrict global_part, A* __restrict personal_part) {
  const A *a0 = logits.a0, *a1 = logits.a1, *noise = logits.noise;
  const A *gamma0 = logits.gamma0, *gamma1 = logits.gamma1, *beta0 = logits.beta0, *beta1 = logits.beta1;
  for (int64_t j = 0; j < count; ++j) {
    const A y0 = relu(normalized(a0[j], stats) * gamma0[j] + beta0[j]);
    const A y1 = relu(normalized(a1[j], stats) * gamma1[j] + beta1[j]);
    const Shares<A> share = shares_of((kNoise ? (y0 - y1) + noise[j] : y0 - y1) * scale);
    global_part[j] = share.global * h[j];
    personal_part[j] = share.personal * h[j];
  }
}

// dz0, dz1: gradients of the ReLU's input.
template <bool kNoise, class A>
void split_backward(const Logits<A>& logits, const RowStats<A>& stats, const A* __restrict h,
                    const A* __restrict grad_global, const A* __restrict grad_personal, A scale, int64_t count,
                    A* __restrict grad_h, A* __restrict dz0, A* __restrict dz1) {
  const A *a0 = logits.a0, *a1 = logits.a1, *noise = logits.noise;
  const A *gamma0 = logits.gamma0, *gamma1 = logits.gamma1, *beta0 = logits.beta0, *beta1 = logits.beta1;
  for (int64_t j = 0; j < count; ++j) {
    const A y0 = relu(normalized(a0[j], stats) * gamma0[j] + beta0[j]);
    const A y1 = relu(normalized(a1[j], stats) * gamma1[j] + beta1[j]);
    const Shares<A> share = shares_of((kNoise ? (y0 - y1) + noise[j] : y0 - y1) * scale);
    const A d = pair_gradient(share, scale, h[j], grad_global[j], grad_personal[j]);
    grad_h[j] = share.global * grad_global[j] + share.personal * grad_personal[j];
    dz0[j] = y0 <= A(0) ? A(0) : d;
    dz1[j] = y1 <= A(0) ? A(0) : -d;
  }
}

// Adds to the gamma and beta sums and replaces dz by the gradient of the normalized logits.
template <class A>
void affine_backward(const A* __restrict a, const A* __restrict gamma, const RowStats<A>& stats, int64_t count,
                     A* __restrict dz, A* __restrict grad_gamma, A* __restrict grad_beta) {
  const RowStats<A> row = stats;
  for (int64_t j = 0; j < count; ++j) {
    const A d = dz[j];
    grad_gamma[j] = grad_gamma[j] + d * normalized(a[j], row);
    grad_beta[j] = grad_beta[j] + d;
    dz[j] = d * gamma[j];
  }
}

template <class A>
void norm_backward(const A* __restrict a, const A* __restrict dx, const RowStats<A>& stats, A mean, A mean_product,
                   int64_t count, A* __restrict grad_a) {
  const RowStats<A> row = stats;
  for (int64_t j = 0; j < count; ++j) {
    grad_a[j] = row.rstd * ((dx[j] - mean) - normalized(a[j], row) * mean_product);
  }
}

template <class T, bool kNoise>
void forward(const CpnRouteForward& p, int64_t begin, int64_t end) {
  using A = accumulate_t<T>;
  const int64_t features = p.sizes.features;
  const A scale = static_cast<A>(1.0 / p.inputs.route.tau);
  A buffers[3][sizeof(T) < sizeof(A) ? kRowTile : 1];
  for (int64_t row = begin; row < end; ++row) {
    LogitsReader<T, kNoise> reader(p.sizes, p.inputs, row);
    const RowStats<A> stats = row_stats(reader.row(), 2 * features, p.inputs.eps);
    for (int64_t j = 0; j < features; j += kRowTile) {
      const int64_t count = tile_count(features, j);
      const int64_t start = row * features + j;
      T* global_part = static_cast<T*>(p.global_part) + start;
      T* personal_part = static_cast<T*>(p.personal_part) + start;
      A* wide_global = wide_row(global_part, buffers[0]);
      A* wide_personal = wide_row(personal_part, buffers[1]);
      split<kNoise>(reader.tile(j, count), stats,
                    widen(static_cast<const T*>(p.inputs.route.h) + start, count, buffers[2]), scale, count,
                    wide_global, wide_personal);
      round_row(wide_global, count, global_part);
      round_row(wide_personal, count, personal_part);
    }
  }
}

// dx [2K]: scratch. gamma_sum, beta_sum [2K]: incremented.
template <class T, bool kNoise>
void backward_row(const CpnRouteBackward& p, int64_t row, accumulate_t<T>* dx, accumulate_t<T>* gamma_sum,
                  accumulate_t<T>* beta_sum) {
  using A = accumulate_t<T>;
  const int64_t features = p.sizes.features;
  const A scale = static_cast<A>(1.0 / p.inputs.route.tau);
  A buffers[4][sizeof(T) < sizeof(A) ? kRowTile : 1];
  LogitsReader<T, kNoise> reader(p.sizes, p.inputs, row);
  const RowStats<A> stats = row_stats(reader.row(), 2 * features, p.inputs.eps);
  Lanes<A> sum, product;
  for (int64_t j = 0; j < features; j += kRowTile) {
    const int64_t count = tile_count(features, j);
    const int64_t start = row * features + j;
    const Logits<A> logits = reader.tile(j, count);
    T* grad_h = static_cast<T*>(p.grad_h) + start;
    A* wide_h = wide_row(grad_h, buffers[0]);
    split_backward<kNoise>(logits, stats, widen(static_cast<const T*>(p.inputs.route.h) + start, count, buffers[1]),
                           widen(static_cast<const T*>(p.grad_global) + start, count, buffers[2]),
                           widen(static_cast<const T*>(p.grad_personal) + start, count, buffers[3]), scale, count,
                           wide_h, dx + j, dx + features + j);
    round_row(wide_h, count, grad_h);
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t column = half * features + j;
      const A* a = half ? logits.a1 : logits.a0;
      const A* d = dx + column;
      affine_backward(a, half ? logits.gamma1 : logits.gamma0, stats, count, dx + column, gamma_sum + column,
                      beta_sum + column);
      add_terms(sum, count, [=](int64_t i) { return d[i]; });
      add_terms(product, count, [=](int64_t i) { return d[i] * normalized(a[i], stats); });
    }
  }
  const A mean = sum.total() / static_cast<A>(2 * features);
  const A mean_product = product.total() / static_cast<A>(2 * features);
  T* grad_a = static_cast<T*>(p.grad_a) + row * 2 * features;
  for (int64_t j = 0; j < 2 * features; j += kRowTile) {
    const int64_t count = tile_count(2 * features, j);
    A* wide_a = wide_row(grad_a + j, buffers[0]);
    norm_backward(widen(reader.row() + j, count, buffers[1]), dx + j, stats, mean, mean_product, count, wide_a);
    round_row(wide_a, count, grad_a + j);
  }
}

template <class T, bool kNoise>
void backward(const CpnRouteBackward& p, int64_t begin, int64_t end, double* scratch) {
  using A = accumulate_t<T>;
  const int64_t width = 2 * p.sizes.features;
  for (int64_t part = begin; part < end; ++part) {
    A* gamma_sum = static_cast<A*>(p.gamma_parts) + part * width;
    A* beta_sum = static_cast<A*>(p.beta_parts) + part * width;
    for (int64_t j = 0; j < width; ++j) {
      gamma_sum[j] = beta_sum[j] = A(0);
    }
    const int64_t client = part / p.parts;
    const int64_t first = (part % p.parts) * p.rows_per_part;
    for (int64_t row = first; row < first + p.rows_per_part && row < p.sizes.rows; ++row) {
      backward_row<T, kNoise>(p, client * p.sizes.rows + row, reinterpret_cast<A*>(scratch), gamma_sum, beta_sum);
    }
  }
}

// out = sum of parts [count, width] in their order.
template <class T>
void add_parts(const accumulate_t<T>* parts, int64_t count, int64_t width, T* out) {
  using A = accumulate_t<T>;
  for (int64_t j = 0; j < width; j += kRowTile) {
    const int64_t columns = tile_count(width, j);
    A sums[kRowTile] = {};
    for (int64_t part = 0; part < count; ++part) {
      const A* __restrict x = parts + part * width + j;
      for (int64_t i = 0; i < columns; ++i) {
        sums[i] = sums[i] + x[i];
      }
    }
    narrow(sums, columns, out + j);
  }
}

template <class T>
void dispatch(const CpnRouteForward& p, int64_t begin, int64_t end) {
  p.inputs.route.seeds ? forward<T, true>(p, begin, end) : forward<T, false>(p, begin, end);
}
template <class T>
void dispatch(const CpnRouteBackward& p, int64_t begin, int64_t end, double* scratch) {
  p.inputs.route.seeds ? backward<T, true>(p, begin, end, scratch) : backward<T, false>(p, begin, end, scratch);
}
// Overload without scratch: adds up the parts.
template <class T>
void dispatch(const CpnRouteBackward& p, int64_t begin, int64_t end) {
  using A = accumulate_t<T>;
  const int64_t width = 2 * p.sizes.features;
  for (int64_t client = begin; client < end; ++client) {
    add_parts<T>(static_cast<const A*>(p.gamma_parts) + client * p.parts * width, p.parts, width,
                 static_cast<T*>(p.grad_gamma) + client * width);
    add_parts<T>(static_cast<const A*>(p.beta_parts) + client * p.parts * width, p.parts, width,
                 static_cast<T*>(p.grad_beta) + client * width);
  }
}

template <class Problem, class... Arguments>
void dispatch_type(const Problem& p, Arguments... arguments) {
  with_type(p.sizes.dtype, [&](auto type) { dispatch<decltype(type)>(p, arguments...); });
}

}  // namespace

void cpn_route_forward(const CpnRouteForward& p, int64_t begin, int64_t end) {
  dispatch_type(p, begin, end);
}

void cpn_route_backward(const CpnRouteBackward& p, int64_t begin, int64_t end, double* scratch) {
  dispatch_type(p, begin, end, scratch);
}

void cpn_route_add_parts(const CpnRouteBackward& p, int64_t begin, int64_t end) {
  dispatch_type(p, begin, end);
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
