// CUDA kernels of `mmd_rbf`: distances per tile of pairs, Gaussian kernels and sums per row, one sum per client.
#include "ops/mmd_rbf/problem.h"

#include "common/elementary.h"
#include "cuda/common/platform.cuh"

namespace pfl {
namespace {

constexpr int kSide = 16;      // a block computes kSide x kSide distances, one per thread
constexpr int kDepth = 32;     // features of kSide rows staged at once
constexpr int kThreads = 128;  // threads per block of the other kernels
constexpr int kRows = 4;       // gradients that share one read of all points
constexpr int kPairs = 64;     // weights of each gradient staged at once
constexpr int kWarps = kThreads / kWarp;

struct Bandwidths {
  double values[kMmdMaxBandwidths];
};

// Block (client and matrix, row tile, column tile) for the matrices (x, x), (y, y), (x, y). The first two are
// symmetric: only tiles on and above the diagonal are computed and copied to the lower triangle.
template <class T>
__global__ void __launch_bounds__(kSide* kSide) distances_kernel(const MmdRbf p) {
  using A = accumulate_t<T>;
  PFL_SHARED(A, rows, kSide * (kDepth + 1));
  PFL_SHARED(A, columns, kSide * (kDepth + 1));
  const int64_t client = blockIdx.x / 3;
  const int matrix = blockIdx.x % 3;
  if (matrix < 2 && blockIdx.z < blockIdx.y) {
    return;
  }
  const int64_t b = p.points, offset = client * b * p.features;
  const T* row_points = static_cast<const T*>(matrix == 1 ? p.y : p.x) + offset;
  const T* column_points = static_cast<const T*>(matrix == 0 ? p.x : p.y) + offset;
  const int64_t first_row = int64_t{blockIdx.y} * kSide, first_column = int64_t{blockIdx.z} * kSide;
  const int row = threadIdx.x / kSide, column = threadIdx.x % kSide;
  A sum = 0;
  for (int64_t begin = 0; begin < p.features; begin += kDepth) {
    __syncthreads();  // wait for reads of the previous features
    for (int i = threadIdx.x; i < kSide * kDepth; i += kSide * kSide) {
      const int line = i / kDepth, k = i % kDepth;
      const bool exists = begin + k < p.features;
      const int at = line * (kDepth + 1) + k;
      // Features past the end are zero on both sides and add nothing.
      rows[at] = exists && first_row + line < b ? widen(row_points[(first_row + line) * p.features + begin + k]) : A(0);
      columns[at] = exists && first_column + line < b
                        ? widen(column_points[(first_column + line) * p.features + begin + k])
                        : A(0);
    }
    __syncthreads();
#pragma unroll 8
    for (int k = 0; k < kDepth; ++k) {
      const A difference = rows[row * (kDepth + 1) + k] - columns[column * (kDepth + 1) + k];
      sum += difference * difference;
    }
  }
  const int64_t i = first_row + row, j = first_column + column;
  if (i < b && j < b) {
    A* distances = static_cast<A*>(p.weights) + (client * 3 + matrix) * b * b;
    distances[i * b + j] = sum;
    if (matrix < 2 && blockIdx.z > blockIdx.y) {
      distances[j * b + i] = sum;
    }
  }
}

// Returns k(D) and replaces D by w(D).
template <class A>
__device__ A apply_kernels(A* distance, const Bandwidths& bandwidths, int count) {
  A kernel = 0, weight = 0;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const A value = exp_of(*distance * static_cast<A>(-0.5 / bandwidths.values[i]));
    kernel += value;
    weight += value * static_cast<A>(1 / bandwidths.values[i]);
  }
  *distance = weight;
  return kernel;
}

template <class A>
__device__ A block_sum(A value, A* warps) {
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) {
    warps[threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  A sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    sum += warps[warp];
  }
  return sum;
}

// One block per row of a client.
template <class A>
__global__ void __launch_bounds__(kThreads) rows_kernel(const MmdRbf p, const Bandwidths bandwidths) {
  PFL_SHARED(A, warps, kWarps);
  const int64_t b = p.points, client = blockIdx.x / b, row = blockIdx.x % b;
  A* xx = static_cast<A*>(p.weights) + (client * 3 * b + row) * b;
  const int count = static_cast<int>(p.count);
  A sum = 0;
  for (int64_t j = threadIdx.x; j < b; j += kThreads) {
    const A k_xx = apply_kernels(xx + j, bandwidths, count);
    const A k_yy = apply_kernels(xx + b * b + j, bandwidths, count);
    const A k_xy = apply_kernels(xx + 2 * b * b + j, bandwidths, count);
    sum += (k_xx + k_yy) - (k_xy + k_xy);
  }
  sum = block_sum(sum, warps);
  if (threadIdx.x == 0) {
    static_cast<A*>(p.sums)[blockIdx.x] = sum;
  }
}

// One block per client.
template <class A>
__global__ void __launch_bounds__(kThreads) total_kernel(const MmdRbf p) {
  PFL_SHARED(A, warps, kWarps);
  A sum = 0;
  for (int64_t i = threadIdx.x; i < p.points; i += kThreads) {
    sum += static_cast<const A*>(p.sums)[blockIdx.x * p.points + i];
  }
  sum = block_sum(sum, warps);
  if (threadIdx.x == 0) {
    static_cast<A*>(p.out)[blockIdx.x] = sum / static_cast<A>(p.points * p.points);
  }
}

// Set of points x, whose gradient is computed, and the other set y.
template <class T>
struct Side {
  using A = accumulate_t<T>;
  const T *x, *y;
  int64_t own, cross;               // offsets of the weights of (x, x) and (x, y)
  int64_t cross_row, cross_column;  // strides of the weights of (x, y)
  T* out;
};

// Block (client, rows, features): one thread per feature, kRows gradients each.
template <class T>
__global__ void __launch_bounds__(kThreads, 8) backward_kernel(const MmdRbfBackward p, const Side<T> side) {
  using A = accumulate_t<T>;
  PFL_SHARED(A, own, kRows * kPairs);
  PFL_SHARED(A, cross, kRows * kPairs);
  const int64_t b = p.points, client = blockIdx.x, first = int64_t{blockIdx.y} * kRows;
  const int64_t feature = int64_t{blockIdx.z} * kThreads + threadIdx.x;
  const int rows = static_cast<int>(min(kRows, b - first));
  const A* weights = static_cast<const A*>(p.weights) + client * 3 * b * b;
  const bool exists = feature < p.features;
  const T* x = side.x + client * b * p.features + feature;
  const T* y = side.y + client * b * p.features + feature;
  A point[kRows] = {}, sum[kRows] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (exists && r < rows) {
      point[r] = widen(x[(first + r) * p.features]);
    }
  }
  for (int64_t begin = 0; begin < b; begin += kPairs) {
    const int pairs = static_cast<int>(min(kPairs, b - begin));
    __syncthreads();  // wait for reads of the previous weights
    for (int i = threadIdx.x; i < rows * pairs; i += kThreads) {
      const int64_t row = first + i / pairs, j = begin + i % pairs;
      const int at = i / pairs * kPairs + i % pairs;
      own[at] = weights[side.own + row * b + j];
      cross[at] = weights[side.cross + row * side.cross_row + j * side.cross_column];
    }
    __syncthreads();
    if (exists) {
#pragma unroll 1
      for (int j = 0; j < pairs; ++j) {
        const A same = widen(x[(begin + j) * p.features]), other = widen(y[(begin + j) * p.features]);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (r < rows) {
            sum[r] += cross[r * kPairs + j] * (point[r] - other) - own[r * kPairs + j] * (point[r] - same);
          }
        }
      }
    }
  }
  const A scale = A(2) * static_cast<const A*>(p.grad)[client] / static_cast<A>(b * b);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (exists && r < rows) {
      side.out[(client * b + first + r) * p.features + feature] = narrow<T>(sum[r] * scale);
    }
  }
}

unsigned tiles(int64_t count, int64_t size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

template <class T>
int launch(const MmdRbf& p, cudaStream_t stream) {
  using A = accumulate_t<T>;
  Bandwidths bandwidths = {};
  for (int64_t i = 0; i < p.count; ++i) {
    bandwidths.values[i] = p.bandwidths[i];
  }
  const unsigned side = tiles(p.points, kSide), clients = static_cast<unsigned>(p.clients);
  PFL_LAUNCH(distances_kernel<T>, dim3(3 * clients, side, side), dim3(kSide * kSide), 0, stream, p);
  PFL_LAUNCH(rows_kernel<A>, dim3(static_cast<unsigned>(p.clients * p.points)), dim3(kThreads), 0, stream, p,
             bandwidths);
  PFL_LAUNCH(total_kernel<A>, dim3(clients), dim3(kThreads), 0, stream, p);
  return static_cast<int>(cudaGetLastError());
}

template <class T>
int launch(const MmdRbfBackward& p, cudaStream_t stream) {
  const int64_t pairs = p.points * p.points;
  const T *x = static_cast<const T*>(p.x), *y = static_cast<const T*>(p.y);
  const dim3 grid(static_cast<unsigned>(p.clients), tiles(p.points, kRows), tiles(p.features, kThreads));
  if (p.grad_x) {
    const Side<T> side{x, y, 0, 2 * pairs, p.points, 1, static_cast<T*>(p.grad_x)};
    PFL_LAUNCH(backward_kernel<T>, grid, dim3(kThreads), 0, stream, p, side);
  }
  if (p.grad_y) {
    const Side<T> side{y, x, pairs, 2 * pairs, 1, p.points, static_cast<T*>(p.grad_y)};
    PFL_LAUNCH(backward_kernel<T>, grid, dim3(kThreads), 0, stream, p, side);
  }
  return static_cast<int>(cudaGetLastError());
}

template <class Problem>
int dispatch_type(const Problem& p, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  return with_type(p.dtype, [&](auto type) { return launch<decltype(type)>(p, on); });
}

}  // namespace
}  // namespace pfl

int pfl_cuda_mmd_rbf(const pfl::MmdRbf* problem, void* stream) {
  return pfl::dispatch_type(*problem, stream);
}

int pfl_cuda_mmd_rbf_backward(const pfl::MmdRbfBackward* problem, void* stream) {
  return pfl::dispatch_type(*problem, stream);
}
