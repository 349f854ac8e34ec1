// CUDA kernels of `cpn_route`: one block per row, which is read from memory once and then from cache. The formulas are
// those of the CPU kernel; sums over a row are added in another order.
#include "ops/cpn_route/problem.h"

#include "cuda/common/logistic.cuh"
#include "cuda/common/platform.cuh"
#include "ops/cpn_route/policy.h"

namespace pfl {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBackwardBlocks = 3;  // resident blocks of the backward: 170 registers per thread, no spills

// Sum over all threads, in the order of the warps; every thread returns it.
template <class A>
__device__ A block_sum(A value, A* shared) {
  value = warp_sum(value);
  __syncthreads();  // wait for reads of the previous sums
  if (threadIdx.x % kWarp == 0) {
    shared[threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  A total = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) {
    total += shared[warp];
  }
  return total;
}

// Sum of term(value) over a row.
template <class T, class Term>
__device__ accumulate_t<T> row_sum(const T* row, int64_t width, accumulate_t<T>* shared, Term term) {
  constexpr int kCount = Pack<T>::kCount;
  accumulate_t<T> sum = 0;
  for (int64_t column = int64_t{threadIdx.x} * kCount; column < width; column += kThreads * kCount) {
    const Pack<T> pack = load_pack(row, column, width);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (column + i < width) {
        sum += term(widen(pack.values[i]));
      }
    }
  }
  return block_sum(sum, shared);
}

template <class T>
__device__ RowStats<accumulate_t<T>> row_stats(const T* row, int64_t width, double eps, accumulate_t<T>* shared) {
  using A = accumulate_t<T>;
  // Sums differences from the first value: a row of equal values has exactly that mean and variance 0.
  const A shift = widen(row[0]);
  const A sum = row_sum(row, width, shared, [=](A x) { return x - shift; });
  const A mean = shift + sum / static_cast<A>(width);
  const A square = row_sum(row, width, shared, [=](A x) { return (x - mean) * (x - mean); });
  return {mean, inverse_sqrt(square / static_cast<A>(width) + static_cast<A>(eps))};
}

// Pointers, statistics and noise seed of one row.
template <class T>
struct Row {
  using A = accumulate_t<T>;
  int64_t features;
  int64_t element;  // first element in [b, K]
  const T *a, *gamma, *beta;
  bool noisy;
  uint64_t seed;
  A scale;
  RowStats<A> stats;
};

template <class T>
__device__ __forceinline__ Row<T> row_of(const RouteSizes& sizes, const CpnRouteInputs& inputs, int64_t row) {
  const int64_t client = row / sizes.rows;
  Row<T> result;
  result.features = sizes.features;
  result.element = row % sizes.rows * sizes.features;
  result.a = static_cast<const T*>(inputs.route.a) + row * 2 * sizes.features;
  result.gamma = static_cast<const T*>(inputs.gamma) + client * inputs.gamma_stride;
  result.beta = static_cast<const T*>(inputs.beta) + client * inputs.beta_stride;
  result.noisy = inputs.route.seeds != nullptr;
  result.seed = result.noisy ? static_cast<uint64_t>(inputs.route.seeds[client]) : 0;
  result.scale = static_cast<accumulate_t<T>>(1.0 / inputs.route.tau);
  return result;
}

// Logits, gamma and beta of a pack of pairs.
template <class T>
struct Logits {
  Pack<T> a0, a1, gamma0, gamma1, beta0, beta1;
};

template <class T>
__device__ __forceinline__ Logits<T> load_logits(const Row<T>& row, int64_t column) {
  const int64_t k = row.features;
  return {load_pack(row.a, column, k),         load_pack(row.a + k, column, k), load_pack(row.gamma, column, k),
          load_pack(row.gamma + k, column, k), load_pack(row.beta, column, k),  load_pack(row.beta + k, column, k)};
}

// One pair: normalized logits x, logits y after affine map and ReLU, and the resulting shares.
template <class A>
struct Pair {
  A x0, x1, y0, y1;
  Shares<A> share;
};

template <class T>
__device__ __forceinline__ Pair<accumulate_t<T>> pair_at(const Row<T>& row, const Logits<T>& logits, int64_t column,
                                                         int i, LogisticRun& noise) {
  using A = accumulate_t<T>;
  Pair<A> pair;
  pair.x0 = normalized(widen(logits.a0.values[i]), row.stats);
  pair.x1 = normalized(widen(logits.a1.values[i]), row.stats);
  pair.y0 = relu(pair.x0 * widen(logits.gamma0.values[i]) + widen(logits.beta0.values[i]));
  pair.y1 = relu(pair.x1 * widen(logits.gamma1.values[i]) + widen(logits.beta1.values[i]));
  A difference = pair.y0 - pair.y1;
  if (row.noisy) {
    difference = difference + noise.at<A>(static_cast<uint64_t>(row.element + column + i));
  }
  pair.share = shares_of(difference * row.scale);
  return pair;
}

template <class T>
__global__ void __launch_bounds__(kThreads) cpn_route_kernel(const CpnRouteForward p) {
  using A = accumulate_t<T>;
  constexpr int kCount = Pack<T>::kCount;
  PFL_SHARED(A, shared, kWarps);
  const int64_t features = p.sizes.features;
  const int64_t start = blockIdx.x * features;
  Row<T> row = row_of<T>(p.sizes, p.inputs, blockIdx.x);
  row.stats = row_stats(row.a, 2 * features, p.eps, shared);
  if (threadIdx.x == 0) {
    static_cast<RowStats<A>*>(p.stats)[blockIdx.x] = row.stats;
  }
  for (int64_t column = int64_t{threadIdx.x} * kCount; column < features; column += kThreads * kCount) {
    const Logits<T> logits = load_logits(row, column);
    const Pack<T> h = load_pack(static_cast<const T*>(p.inputs.route.h) + start, column, features);
    LogisticRun noise(row.seed);
    Pack<T> global_part, personal_part;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Shares<A> share = pair_at(row, logits, column, i, noise).share;
      global_part.values[i] = narrow<T>(share.global * widen(h.values[i]));
      personal_part.values[i] = narrow<T>(share.personal * widen(h.values[i]));
    }
    store_pack(static_cast<T*>(p.global_part) + start, column, features, global_part);
    store_pack(static_cast<T*>(p.personal_part) + start, column, features, personal_part);
  }
}

// Gradients of one pair: of the ReLU's input (z) and of the normalized logits (t).
template <class A>
struct PairGradient {
  A z0, z1, t0, t1;
};

template <class T>
__device__ __forceinline__ PairGradient<accumulate_t<T>> gradient_at(const Row<T>& row, const Logits<T>& logits, int i,
                                                                     const Pair<accumulate_t<T>>& pair,
                                                                     accumulate_t<T> h, accumulate_t<T> grad_global,
                                                                     accumulate_t<T> grad_personal) {
  using A = accumulate_t<T>;
  const A d = pair_gradient(pair.share, row.scale, h, grad_global, grad_personal);
  const A z0 = pair.y0 <= A(0) ? A(0) : d;
  const A z1 = pair.y1 <= A(0) ? A(0) : -d;
  return {z0, z1, z0 * widen(logits.gamma0.values[i]), z1 * widen(logits.gamma1.values[i])};
}

// One block per part: it loops over the rows of the part, and each thread sums gamma and beta for its own columns.
template <class T>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks) cpn_route_backward_kernel(const CpnRouteBackward p) {
  using A = accumulate_t<T>;
  constexpr int kCount = Pack<T>::kCount;
  PFL_SHARED(A, shared, kWarps);
  const int64_t features = p.sizes.features;
  const int64_t part = blockIdx.x % p.parts;
  A* gamma_sum = static_cast<A*>(p.gamma_parts) + blockIdx.x * 2 * features;
  A* beta_sum = static_cast<A*>(p.beta_parts) + blockIdx.x * 2 * features;
  const int64_t client_row = blockIdx.x / p.parts * p.sizes.rows;
  const int64_t first = part * p.rows_per_part;
  const int64_t last = min(first + p.rows_per_part, p.sizes.rows);
  for (int64_t column = int64_t{threadIdx.x} * kCount; column < features; column += kThreads * kCount) {
    for (int64_t j = column; j < min(column + kCount, features); ++j) {
      gamma_sum[j] = gamma_sum[features + j] = beta_sum[j] = beta_sum[features + j] = 0;
    }
  }
#pragma unroll 1
  for (int64_t r = first; r < last; ++r) {
    const int64_t start = (client_row + r) * features;
    const T* h = static_cast<const T*>(p.inputs.route.h) + start;
    const T* grad_global = static_cast<const T*>(p.grad_global) + start;
    const T* grad_personal = static_cast<const T*>(p.grad_personal) + start;
    T* grad_a = static_cast<T*>(p.grad_a) + 2 * start;
    Row<T> row = row_of<T>(p.sizes, p.inputs, client_row + r);
    row.stats = static_cast<const RowStats<A>*>(p.stats)[client_row + r];
    A sum = 0, product = 0;
#pragma unroll 1
    for (int64_t column = int64_t{threadIdx.x} * kCount; column < features; column += kThreads * kCount) {
      const Logits<T> logits = load_logits(row, column);
      const Pack<T> values = load_pack(h, column, features);
      const Pack<T> globals = load_pack(grad_global, column, features);
      const Pack<T> personals = load_pack(grad_personal, column, features);
      LogisticRun noise(row.seed);
      Pack<T> grad_h;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const A g = widen(globals.values[i]), s = widen(personals.values[i]);
        const Pair<A> pair = pair_at(row, logits, column, i, noise);
        const PairGradient<A> gradient = gradient_at(row, logits, i, pair, widen(values.values[i]), g, s);
        grad_h.values[i] = narrow<T>(pair.share.global * g + pair.share.personal * s);
        sum += gradient.t0 + gradient.t1;
        product += gradient.t0 * pair.x0 + gradient.t1 * pair.x1;
        if (column + i < features) {
          gamma_sum[column + i] += gradient.z0 * pair.x0;
          gamma_sum[features + column + i] += gradient.z1 * pair.x1;
          beta_sum[column + i] += gradient.z0;
          beta_sum[features + column + i] += gradient.z1;
        }
      }
      store_pack(static_cast<T*>(p.grad_h) + start, column, features, grad_h);
    }
    const A mean = block_sum(sum, shared) / static_cast<A>(2 * features);
    const A mean_product = block_sum(product, shared) / static_cast<A>(2 * features);
    // Second pass over the row: recomputing the gradients is cheaper than storing them for rows of any width.
#pragma unroll 1
    for (int64_t column = int64_t{threadIdx.x} * kCount; column < features; column += kThreads * kCount) {
      const Logits<T> logits = load_logits(row, column);
      const Pack<T> values = load_pack(h, column, features);
      const Pack<T> globals = load_pack(grad_global, column, features);
      const Pack<T> personals = load_pack(grad_personal, column, features);
      LogisticRun noise(row.seed);
      Pack<T> grad_a0, grad_a1;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const Pair<A> pair = pair_at(row, logits, column, i, noise);
        const PairGradient<A> gradient = gradient_at(row, logits, i, pair, widen(values.values[i]),
                                                     widen(globals.values[i]), widen(personals.values[i]));
        grad_a0.values[i] = narrow<T>(row.stats.rstd * ((gradient.t0 - mean) - pair.x0 * mean_product));
        grad_a1.values[i] = narrow<T>(row.stats.rstd * ((gradient.t1 - mean) - pair.x1 * mean_product));
      }
      store_pack(grad_a, column, features, grad_a0);
      store_pack(grad_a + features, column, features, grad_a1);
    }
  }
}

// Sum of the parts of one column, in their order.
template <class T>
__device__ __forceinline__ T add_parts(const void* parts, int64_t count, int64_t client, int64_t width,
                                       int64_t column) {
  using A = accumulate_t<T>;
  const A* values = static_cast<const A*>(parts) + client * count * width + column;
  A sum = 0;
  for (int64_t part = 0; part < count; ++part) {
    sum += values[part * width];
  }
  return narrow<T>(sum);
}

template <class T>
__global__ void __launch_bounds__(kThreads) cpn_route_add_parts_kernel(const CpnRouteBackward p) {
  const int64_t width = 2 * p.sizes.features;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index < p.sizes.clients * width) {
    static_cast<T*>(p.grad_gamma)[index] = add_parts<T>(p.gamma_parts, p.parts, index / width, width, index % width);
    static_cast<T*>(p.grad_beta)[index] = add_parts<T>(p.beta_parts, p.parts, index / width, width, index % width);
  }
}

template <class T>
int launch(const CpnRouteForward& p, cudaStream_t stream) {
  const int64_t rows = p.sizes.features > 0 ? p.sizes.clients * p.sizes.rows : 0;
  if (rows > 0) {
    PFL_LAUNCH(cpn_route_kernel<T>, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, stream, p);
  }
  return static_cast<int>(cudaGetLastError());
}

template <class T>
int launch(const CpnRouteBackward& p, cudaStream_t stream) {
  const int64_t columns = p.sizes.clients * 2 * p.sizes.features;
  if (columns > 0) {
    PFL_LAUNCH(cpn_route_backward_kernel<T>, dim3(static_cast<unsigned>(p.sizes.clients * p.parts)), dim3(kThreads), 0,
               stream, p);
  }
  if (columns > 0 && p.gamma_parts != p.grad_gamma) {
    PFL_LAUNCH(cpn_route_add_parts_kernel<T>, dim3(static_cast<unsigned>((columns + kThreads - 1) / kThreads)),
               dim3(kThreads), 0, stream, p);
  }
  return static_cast<int>(cudaGetLastError());
}

template <class Problem>
int launch_type(const Problem& p, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  return with_type(p.sizes.dtype, [&](auto type) { return launch<decltype(type)>(p, on); });
}

}  // namespace
}  // namespace pfl

int pfl_cuda_cpn_route(const pfl::CpnRouteForward* problem, void* stream) {
  return pfl::launch_type(*problem, stream);
}

int pfl_cuda_cpn_route_backward(const pfl::CpnRouteBackward* problem, void* stream) {
  return pfl::launch_type(*problem, stream);
}
