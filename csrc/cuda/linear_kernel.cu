// CUDA kernels of `linear` and `linear_step_`: one batched matrix product in the layouts of forward, backward and step.
// With few rows the kernel is bound by reading weights: a block reads its part of them once for kRows rows.
#include "linear_kernel.h"

#include "platform.cuh"

namespace pfl {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 32, kColumns = 64;  // tile of the result per block
constexpr int kDepth = kWarp;             // terms of the sums staged at once
constexpr int kThreadsAcross = 16;        // threads per row of the tile
constexpr int kRowsEach = kRows / (kThreads / kThreadsAcross), kColumnsEach = kColumns / kThreadsAcross;

// left[c] * right[c], [rows, depth] times [depth, columns], for each client c.
struct Product {
  LinearRows left, right;
  int64_t rows, depth, columns;
};

// Epilogue that adds the bias, if there is one, and stores the result.
template <class T>
struct StoreSum {
  T* out;  // [C, rows, columns]
  LinearRows bias;
  int64_t rows, columns;

  __device__ void operator()(int64_t client, int64_t row, int64_t column, accumulate_t<T> sum) const {
    const T* added = static_cast<const T*>(bias.data);
    out[(client * rows + row) * columns + column] =
        narrow<T>(added ? sum + widen(added[client * bias.client + column]) : sum);
  }
};

// Epilogue that takes the sum as gradient of a weight and applies an SGD step.
template <class T>
struct StepWeight {
  const T* from;
  T* to;
  int64_t from_client, from_row, to_client, to_row;
  accumulate_t<T> minus_lr, decay;

  __device__ void operator()(int64_t client, int64_t row, int64_t column, accumulate_t<T> sum) const {
    const accumulate_t<T> old = widen(from[client * from_client + row * from_row + column]);
    const accumulate_t<T> gradient = decay != 0 ? multiply_add(decay, old, sum) : sum;
    to[client * to_client + row * to_row + column] = narrow<T>(multiply_add(minus_lr, gradient, old));
  }
};

// Stages kCount rows of the left matrix (columns of the right one) from `first` on, kDepth terms each, as
// [kDepth, kCount], zero-padded. kDepthContiguous: the terms are contiguous in memory, else the rows (columns) are.
// Threads read contiguous values; the pitch is odd, so in both layouts they write to different banks.
template <class T, bool kDepthContiguous, int kCount>
__device__ void stage(const T* matrix, int64_t pitch, int64_t first, int64_t count, int64_t begin, int64_t depth,
                      accumulate_t<T>* tile) {
  constexpr int kPitch = kCount + 1;
#pragma unroll 4
  for (int e = threadIdx.x; e < kCount * kDepth; e += kThreads) {
    const int i = kDepthContiguous ? e / kDepth : e % kCount, k = kDepthContiguous ? e % kDepth : e / kCount;
    const int64_t at = kDepthContiguous ? (first + i) * pitch + begin + k : (begin + k) * pitch + first + i;
    const bool exists = first + i < count && begin + k < depth;
    tile[k * kPitch + i] = exists ? widen(matrix[at]) : accumulate_t<T>(0);
  }
}

// One block per client and tile of the result. A thread computes kRowsEach rows and kColumnsEach columns with stride
// kThreadsAcross, and adds their terms in order: no sum is split.
template <class T, bool kLeftDepthContiguous, bool kRightDepthContiguous, class Epilogue>
__global__ void __launch_bounds__(kThreads) product_kernel(const Product p, const Epilogue epilogue) {
  using A = accumulate_t<T>;
  PFL_SHARED(A, left, kDepth * (kRows + 1));
  PFL_SHARED(A, right, kDepth * (kColumns + 1));
  const int64_t tiles_across = (p.columns + kColumns - 1) / kColumns, tiles_down = (p.rows + kRows - 1) / kRows;
  const int64_t tile = blockIdx.x, client = tile / (tiles_across * tiles_down);
  const int64_t first_row = tile / tiles_across % tiles_down * kRows, first_column = tile % tiles_across * kColumns;
  const T* lefts = static_cast<const T*>(p.left.data) + client * p.left.client;
  const T* rights = static_cast<const T*>(p.right.data) + client * p.right.client;
  const int thread_row = threadIdx.x / kThreadsAcross * kRowsEach, thread_column = threadIdx.x % kThreadsAcross;
  A sum[kRowsEach][kColumnsEach] = {};
#pragma unroll 1
  for (int64_t begin = 0; begin < p.depth; begin += kDepth) {
    __syncthreads();  // wait for reads of the previous tiles
    stage<T, kLeftDepthContiguous, kRows>(lefts, p.left.row, first_row, p.rows, begin, p.depth, left);
    stage<T, kRightDepthContiguous, kColumns>(rights, p.right.row, first_column, p.columns, begin, p.depth, right);
    __syncthreads();
    // Threads without rows skip the products. With few rows, grad_weight has few terms.
    const int terms = first_row + thread_row < p.rows ? static_cast<int>(min(kDepth, p.depth - begin)) : 0;
#pragma unroll 4
    for (int k = 0; k < terms; ++k) {
      A row[kRowsEach], column[kColumnsEach];
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
        row[i] = left[k * (kRows + 1) + thread_row + i];
      }
#pragma unroll
      for (int j = 0; j < kColumnsEach; ++j) {
        column[j] = right[k * (kColumns + 1) + thread_column + j * kThreadsAcross];
      }
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
#pragma unroll
        for (int j = 0; j < kColumnsEach; ++j) {
          sum[i][j] += row[i] * column[j];
        }
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kColumnsEach; ++j) {
    const int64_t column = first_column + thread_column + j * kThreadsAcross;
    if (column < p.columns) {
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
        const int64_t row = first_row + thread_row + i;
        if (row < p.rows) {
          epilogue(client, row, column, sum[i][j]);
        }
      }
    }
  }
}

// One thread per output of a client: sums its gradients over the rows.
template <class T>
__global__ void __launch_bounds__(kThreads)
    bias_kernel(const LinearSizes sizes, const LinearRows grad, T* __restrict__ grad_bias) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= sizes.clients * sizes.outputs) {
    return;
  }
  const T* column = static_cast<const T*>(grad.data) + at / sizes.outputs * grad.client + at % sizes.outputs;
  accumulate_t<T> sum = 0;
#pragma unroll 4
  for (int64_t r = 0; r < sizes.rows; ++r) {
    sum += widen(column[r * grad.row]);
  }
  grad_bias[at] = narrow<T>(sum);
}

unsigned blocks_of(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

template <class T, bool kLeftDepthContiguous, bool kRightDepthContiguous, class Epilogue>
void multiply(const Product& p, int64_t clients, const Epilogue& epilogue, cudaStream_t stream) {
  const unsigned tiles = blocks_of(p.rows, kRows) * blocks_of(p.columns, kColumns);
  PFL_LAUNCH((product_kernel<T, kLeftDepthContiguous, kRightDepthContiguous, Epilogue>),
             dim3(static_cast<unsigned>(clients) * tiles), dim3(kThreads), 0, stream, p, epilogue);
}

template <class T, bool kLeftDepthContiguous, bool kRightDepthContiguous>
void multiply(const Product& p, int64_t clients, void* out, const LinearRows& bias, cudaStream_t stream) {
  const StoreSum<T> epilogue{static_cast<T*>(out), bias, p.rows, p.columns};
  multiply<T, kLeftDepthContiguous, kRightDepthContiguous>(p, clients, epilogue, stream);
}

template <class T>
int launch(const Linear& p, cudaStream_t stream) {
  const LinearSizes& s = p.sizes;
  multiply<T, true, true>({p.x, p.weight, s.rows, s.inputs, s.outputs}, s.clients, p.out, p.bias, stream);
  return static_cast<int>(cudaGetLastError());
}

template <class T>
int launch(const LinearBackward& p, cudaStream_t stream) {
  const LinearSizes& s = p.sizes;
  if (p.grad_x) {
    const Product product{p.grad, p.weight, s.rows, s.outputs, s.inputs};
    multiply<T, true, false>(product, s.clients, p.grad_x, LinearRows{}, stream);
  }
  if (p.grad_weight) {
    const Product product{p.grad, p.x, s.outputs, s.rows, s.inputs};
    multiply<T, false, false>(product, s.clients, p.grad_weight, LinearRows{}, stream);
  }
  if (p.grad_bias) {
    PFL_LAUNCH(bias_kernel<T>, dim3(blocks_of(s.clients * s.outputs, kThreads)), dim3(kThreads), 0, stream, s, p.grad,
               static_cast<T*>(p.grad_bias));
  }
  return static_cast<int>(cudaGetLastError());
}

template <class T>
int launch(const LinearStep& p, cudaStream_t stream) {
  using A = accumulate_t<T>;
  const LinearSizes& s = p.sizes;
  const StepWeight<T> epilogue{static_cast<const T*>(p.start.data),
                               static_cast<T*>(p.weight),
                               p.start.client,
                               p.start.row,
                               p.weight_client,
                               p.weight_row,
                               static_cast<A>(-p.lr),
                               static_cast<A>(p.weight_decay)};
  multiply<T, false, false>({p.grad, p.x, s.outputs, s.rows, s.inputs}, s.clients, epilogue, stream);
  return static_cast<int>(cudaGetLastError());
}

template <class Problem>
int dispatch_type(const Problem& p, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  return with_type(p.sizes.dtype, [&](auto type) { return launch<decltype(type)>(p, on); });
}

}  // namespace
}  // namespace pfl

int pfl_cuda_linear(const pfl::Linear* problem, void* stream) {
  return pfl::dispatch_type(*problem, stream);
}

int pfl_cuda_linear_backward(const pfl::LinearBackward* problem, void* stream) {
  return pfl::dispatch_type(*problem, stream);
}

int pfl_cuda_linear_step(const pfl::LinearStep* problem, void* stream) {
  return pfl::dispatch_type(*problem, stream);
}
