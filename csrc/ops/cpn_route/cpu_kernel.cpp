// CPU kernels of `cpn_route`, compiled once per instruction set into namespace PFL_CAPABILITY. A row is read from
// memory once; mean, variance and all later steps find it in cache. Sums over a row have a fixed number of lanes, so
// all instruction sets and thread counts give the same bits. The arithmetic is compiled for float and double only;
// half types are converted tile by tile.
#include "ops/cpn_route/problem.h"

#include "cpu/simd/rows.h"
#include "ops/cpn_route/policy.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

constexpr int64_t kTile = kRowTile;
constexpr int64_t kLanes = 32;  // divides kTile, so the lane of a column does not depend on the tiles

template <class A>
A total(A* lanes) {
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) {
      lanes[lane] = lanes[lane] + lanes[lane + width];
    }
  }
  return lanes[0];
}

// Adds x - shift, squared if kSquare, to the lanes.
template <bool kSquare, class A>
void add_differences(const A* __restrict x, A shift, int64_t count, A* __restrict lanes) {
  A sums[kLanes];  // a local copy that cannot be aliased stays in registers
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    sums[lane] = lanes[lane];
  }
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const A d = x[j + lane] - shift;
      sums[lane] = sums[lane] + (kSquare ? d * d : d);
    }
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    lanes[lane] = sums[lane];
  }
  for (int64_t lane = 0; j < count; ++j, ++lane) {
    const A d = x[j] - shift;
    lanes[lane] = lanes[lane] + (kSquare ? d * d : d);
  }
}

template <class A>
RowStats<A> row_stats(Float dtype, const void* a, int64_t first, int64_t width, double eps) {
  A buffer[kTile];
  // Sums differences from the first value: a row of equal values has exactly that mean and variance 0.
  const A shift = *widen(dtype, a, first, 1, buffer);
  A sum[kLanes] = {}, square[kLanes] = {};
  for (int64_t j = 0; j < width; j += kTile) {
    add_differences<false>(widen(dtype, a, first + j, tile_count(width, j), buffer), shift, tile_count(width, j), sum);
  }
  const A mean = shift + total(sum) / static_cast<A>(width);
  for (int64_t j = 0; j < width; j += kTile) {
    add_differences<true>(widen(dtype, a, first + j, tile_count(width, j), buffer), mean, tile_count(width, j), square);
  }
  return {mean, inverse_sqrt(total(square) / static_cast<A>(width) + static_cast<A>(eps))};
}

// A tile of pairs: the first and second half of a row's logits, of gamma and of beta, and the noise.
template <class A>
struct Pairs {
  const A *a[2], *gamma[2], *beta[2];
  A noise[kTile];

  void read(const RouteSizes& sizes, const CpnRouteInputs& inputs, int64_t row, int64_t j, int64_t count) {
    const int64_t client = row / sizes.rows;
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t column = half * sizes.features + j;
      a[half] = widen(sizes.dtype, inputs.route.a, row * 2 * sizes.features + column, count, buffers_[3 * half]);
      gamma[half] =
          widen(sizes.dtype, inputs.gamma, client * inputs.gamma_stride + column, count, buffers_[3 * half + 1]);
      beta[half] = widen(sizes.dtype, inputs.beta, client * inputs.beta_stride + column, count, buffers_[3 * half + 2]);
    }
    if (inputs.route.seeds) {
      logistic_noise(inputs.route.seeds[client], row % sizes.rows * sizes.features + j, count, noise);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        noise[i] = A(0);
      }
    }
  }

 private:
  A buffers_[6][kTile];
};

// The steps below are separate loops over a tile: fused into one, each iteration would be a chain of dependent
// operations longer than a processor can overlap with the next.

// y: logits after affine map and ReLU; logit: difference of a pair plus noise, times scale.
template <class A>
void find_logits(const Pairs<A>& pairs, const RowStats<A>& stats, A scale, int64_t count, A* __restrict y0,
                 A* __restrict y1, A* __restrict logit) {
  const A* __restrict a0 = pairs.a[0], * __restrict a1 = pairs.a[1], * __restrict noise = pairs.noise;
  const A* __restrict gamma0 = pairs.gamma[0], * __restrict gamma1 = pairs.gamma[1];
  const A* __restrict beta0 = pairs.beta[0], * __restrict beta1 = pairs.beta[1];
  const RowStats<A> row = stats;
  for (int64_t j = 0; j < count; ++j) {
    y0[j] = relu(normalized(a0[j], row) * gamma0[j] + beta0[j]);
    y1[j] = relu(normalized(a1[j], row) * gamma1[j] + beta1[j]);
    logit[j] = ((y0[j] - y1[j]) + noise[j]) * scale;
  }
}

template <class A>
void find_exponentials(const A* __restrict logit, int64_t count, A* __restrict e) {
  for (int64_t j = 0; j < count; ++j) {
    e[j] = share_exponential(logit[j]);
  }
}

template <class A>
void split(const A* __restrict logit, const A* __restrict e, const A* __restrict h, int64_t count,
           A* __restrict global_part, A* __restrict personal_part) {
  for (int64_t j = 0; j < count; ++j) {
    const Shares<A> share = shares_from(logit[j], e[j]);
    global_part[j] = share.global * h[j];
    personal_part[j] = share.personal * h[j];
  }
}

// Replaces y by the gradient of the ReLU's input.
template <class A>
void split_backward(const A* __restrict logit, const A* __restrict e, const A* __restrict h,
                    const A* __restrict grad_global, const A* __restrict grad_personal, A scale, int64_t count,
                    A* __restrict grad_h, A* __restrict y0, A* __restrict y1) {
  for (int64_t j = 0; j < count; ++j) {
    const Shares<A> share = shares_from(logit[j], e[j]);
    const A d = pair_gradient(share, scale, h[j], grad_global[j], grad_personal[j]);
    grad_h[j] = share.global * grad_global[j] + share.personal * grad_personal[j];
    y0[j] = y0[j] <= A(0) ? A(0) : d;
    y1[j] = y1[j] <= A(0) ? A(0) : -d;
  }
}

// Sums over a row of the gradients dx of the normalized logits x, and of dx * x.
template <class A>
struct RowSums {
  A gradient[kLanes] = {}, product[kLanes] = {};
};

// Adds to the gamma and beta sums, replaces dz by the gradient of the normalized logits and adds that to the row sums.
template <class A>
void affine_backward(const A* __restrict a, const A* __restrict gamma, const RowStats<A>& stats, int64_t count,
                     A* __restrict dz, A* __restrict grad_gamma, A* __restrict grad_beta, RowSums<A>& sums) {
  const RowStats<A> row = stats;
  A gradient[kLanes], product[kLanes];  // local copies that cannot be aliased stay in registers
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    gradient[lane] = sums.gradient[lane];
    product[lane] = sums.product[lane];
  }
  const auto step = [&](int64_t j, int64_t lane) __attribute__((always_inline)) {
    const A x = normalized(a[j], row), d = dz[j], dx = d * gamma[j];
    grad_gamma[j] = grad_gamma[j] + d * x;
    grad_beta[j] = grad_beta[j] + d;
    dz[j] = dx;
    gradient[lane] = gradient[lane] + dx;
    product[lane] = product[lane] + dx * x;
  };
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      step(j + lane, lane);
    }
  }
  for (int64_t lane = 0; j < count; ++j, ++lane) {
    step(j, lane);
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    sums.gradient[lane] = gradient[lane];
    sums.product[lane] = product[lane];
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

template <class A>
void forward(const CpnRouteForward& p, int64_t begin, int64_t end) {
  const Float dtype = p.sizes.dtype;
  const int64_t features = p.sizes.features;
  const A scale = static_cast<A>(1.0 / p.inputs.route.tau);
  Pairs<A> pairs;
  A y0[kTile], y1[kTile], logit[kTile], e[kTile], buffers[3][kTile];
  for (int64_t row = begin; row < end; ++row) {
    const RowStats<A> stats = row_stats<A>(dtype, p.inputs.route.a, row * 2 * features, 2 * features, p.eps);
    static_cast<RowStats<A>*>(p.stats)[row] = stats;
    for (int64_t j = 0; j < features; j += kTile) {
      const int64_t count = tile_count(features, j), start = row * features + j;
      pairs.read(p.sizes, p.inputs, row, j, count);
      find_logits(pairs, stats, scale, count, y0, y1, logit);
      find_exponentials(logit, count, e);
      A* const global_part = wide_row(dtype, p.global_part, start, buffers[0]);
      A* const personal_part = wide_row(dtype, p.personal_part, start, buffers[1]);
      split(logit, e, widen(dtype, p.inputs.route.h, start, count, buffers[2]), count, global_part, personal_part);
      round_row(dtype, global_part, count, p.global_part, start);
      round_row(dtype, personal_part, count, p.personal_part, start);
    }
  }
}

// dx [2K]: scratch. gamma_sum, beta_sum [2K]: incremented.
template <class A>
void backward_row(const CpnRouteBackward& p, int64_t row, A* dx, A* gamma_sum, A* beta_sum) {
  const Float dtype = p.sizes.dtype;
  const int64_t features = p.sizes.features;
  const A scale = static_cast<A>(1.0 / p.inputs.route.tau);
  const RowStats<A> stats = static_cast<const RowStats<A>*>(p.stats)[row];
  Pairs<A> pairs;
  A logit[kTile], e[kTile], buffers[4][kTile];
  RowSums<A> sums;
  for (int64_t j = 0; j < features; j += kTile) {
    const int64_t count = tile_count(features, j), start = row * features + j;
    pairs.read(p.sizes, p.inputs, row, j, count);
    find_logits(pairs, stats, scale, count, dx + j, dx + features + j, logit);
    find_exponentials(logit, count, e);
    A* const grad_h = wide_row(dtype, p.grad_h, start, buffers[0]);
    split_backward(logit, e, widen(dtype, p.inputs.route.h, start, count, buffers[1]),
                   widen(dtype, p.grad_global, start, count, buffers[2]),
                   widen(dtype, p.grad_personal, start, count, buffers[3]), scale, count, grad_h, dx + j,
                   dx + features + j);
    round_row(dtype, grad_h, count, p.grad_h, start);
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t column = half * features + j;
      affine_backward(pairs.a[half], pairs.gamma[half], stats, count, dx + column, gamma_sum + column,
                      beta_sum + column, sums);
    }
  }
  const A mean = total(sums.gradient) / static_cast<A>(2 * features);
  const A mean_product = total(sums.product) / static_cast<A>(2 * features);
  for (int64_t j = 0; j < 2 * features; j += kTile) {
    const int64_t count = tile_count(2 * features, j), start = row * 2 * features + j;
    A* const grad_a = wide_row(dtype, p.grad_a, start, buffers[0]);
    norm_backward(widen(dtype, p.inputs.route.a, start, count, buffers[1]), dx + j, stats, mean, mean_product, count,
                  grad_a);
    round_row(dtype, grad_a, count, p.grad_a, start);
  }
}

template <class A>
void backward(const CpnRouteBackward& p, int64_t begin, int64_t end, A* scratch) {
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
      backward_row(p, client * p.sizes.rows + row, scratch, gamma_sum, beta_sum);
    }
  }
}

// Row `client` of out = sum of the client's parts [parts, 2K], in their order.
template <class A>
void add_parts(const CpnRouteBackward& p, const A* parts, int64_t client, void* out) {
  const int64_t width = 2 * p.sizes.features;
  for (int64_t j = 0; j < width; j += kTile) {
    const int64_t count = tile_count(width, j);
    A sums[kTile] = {};
    for (int64_t part = 0; part < p.parts; ++part) {
      const A* __restrict x = parts + (client * p.parts + part) * width + j;
      for (int64_t i = 0; i < count; ++i) {
        sums[i] = sums[i] + x[i];
      }
    }
    store_row(p.sizes.dtype, sums, count, out, client * width + j);
  }
}

template <class A>
void add_parts(const CpnRouteBackward& p, int64_t begin, int64_t end) {
  for (int64_t client = begin; client < end; ++client) {
    add_parts(p, static_cast<const A*>(p.gamma_parts), client, p.grad_gamma);
    add_parts(p, static_cast<const A*>(p.beta_parts), client, p.grad_beta);
  }
}

}  // namespace

void cpn_route_forward(const CpnRouteForward& p, int64_t begin, int64_t end) {
  p.sizes.dtype == Float::kDouble ? forward<double>(p, begin, end) : forward<float>(p, begin, end);
}

void cpn_route_backward(const CpnRouteBackward& p, int64_t begin, int64_t end, double* scratch) {
  p.sizes.dtype == Float::kDouble ? backward(p, begin, end, scratch)
                                  : backward(p, begin, end, reinterpret_cast<float*>(scratch));
}

void cpn_route_add_parts(const CpnRouteBackward& p, int64_t begin, int64_t end) {
  p.sizes.dtype == Float::kDouble ? add_parts<double>(p, begin, end) : add_parts<float>(p, begin, end);
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
