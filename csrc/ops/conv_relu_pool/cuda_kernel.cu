// CUDA kernels of `conv_relu_pool`. One lane per output channel: results, gradients and weights of a warp are
// contiguous, and all its lanes read the same pixel or one of four neighbours.
#include "ops/conv_relu_pool/problem.h"

#include "cuda/common/platform.cuh"

namespace pfl {
namespace {

constexpr int kWarps = 8;  // per block; in the forward one pooling window each
constexpr int kThreads = kWarps * kWarp;
constexpr int kMaxKernel = kConvMaxKernel;
constexpr int kTileRows = kMaxKernel + 1;                  // rows of pixels of a row of windows
constexpr int kTileColumns = 2 * kWarps + kMaxKernel - 1;  // columns of pixels of kWarps windows

template <class T>
__device__ __forceinline__ accumulate_t<T> pixel_or_zero(const T* plane, const Strided<const void*>& x,
                                                         const ConvReluPoolSizes& s, int64_t row, int64_t column) {
  const bool inside = row >= 0 && row < s.height && column >= 0 && column < s.width;
  return inside ? widen(plane[row * x.row + column * x.column]) : accumulate_t<T>(0);
}

// Block (x: sample, row of windows, kWarps of its columns; y: kWarp output channels). Stages one input channel per
// pass.
template <class T>
__global__ void __launch_bounds__(kThreads) forward_kernel(const ConvReluPool p) {
  using A = accumulate_t<T>;
  PFL_SHARED(A, weights, kMaxKernel * kMaxKernel * kWarp);
  PFL_SHARED(A, pixels, kTileRows * kTileColumns);
  const ConvReluPoolSizes& s = p.sizes;
  const int k = static_cast<int>(s.kernel), taps = k * k;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t tiles = (s.pooled_width + kWarps - 1) / kWarps;
  const int64_t first_column = blockIdx.x % tiles * kWarps, row = blockIdx.x / tiles % s.pooled_height;
  const int64_t image = blockIdx.x / tiles / s.pooled_height, client = image / s.samples;
  const int64_t first_output = int64_t{blockIdx.y} * kWarp, output = first_output + lane;
  const T* x = static_cast<const T*>(p.x.data) + client * p.x.client + image % s.samples * p.x.first;
  const T* kernels = static_cast<const T*>(p.weight.data) + client * p.weight.client;
  const bool exists = output < s.outputs;
  const A bias = exists ? widen(static_cast<const T*>(p.bias)[client * s.outputs + output]) : A(0);
  A sums[4] = {bias, bias, bias, bias};
  for (int64_t channel = 0; channel < s.channels; ++channel) {
    __syncthreads();  // wait for reads of the previous channel
    for (int i = threadIdx.x; i < taps * kWarp; i += kThreads) {
      const int tap = i % taps, of = i / taps;
      const T* kernel = kernels + (first_output + of) * p.weight.first + channel * p.weight.second;
      weights[tap * kWarp + of] =
          first_output + of < s.outputs ? widen(kernel[tap / k * p.weight.row + tap % k * p.weight.column]) : A(0);
    }
    for (int i = threadIdx.x; i < (k + 1) * kTileColumns; i += kThreads) {
      pixels[i] = pixel_or_zero(x + channel * p.x.second, p.x, s, 2 * row + i / kTileColumns - s.padding,
                                2 * first_column + i % kTileColumns - s.padding);
    }
    __syncthreads();
    for (int tap = 0; tap < taps; ++tap) {
      const A weight = weights[tap * kWarp + lane];
      const A* corner = pixels + tap / k * kTileColumns + 2 * warp + tap % k;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[i] = multiply_add(weight, corner[i / 2 * kTileColumns + i % 2], sums[i]);
      }
    }
  }
  // The maximum is the first of equal pixels, or the last NaN.
  A best = sums[0];
  int winner = 0;
#pragma unroll
  for (int i = 1; i < 4; ++i) {
    if (sums[i] > best || sums[i] != sums[i]) {
      best = sums[i];
      winner = i;
    }
  }
  const int64_t column = first_column + warp;
  if (exists && column < s.pooled_width) {
    const int64_t at = ((image * s.pooled_height + row) * s.pooled_width + column) * s.outputs + output;
    const bool inactive = best <= A(0);
    static_cast<T*>(p.out)[at] = narrow<T>(inactive ? A(0) : best);
    p.index[at] = static_cast<uint8_t>(inactive ? kConvInactive : winner);
  }
}

// Block (x: part of a client's samples and kernel row, the bias as last row; y: kWarp output channels). Windows are
// distributed over warps, whose sums are added in the order of the warps.
template <class T>
__global__ void __launch_bounds__(kThreads) parts_kernel(const ConvReluPoolBackward p) {
  using A = accumulate_t<T>;
  PFL_SHARED(A, partial, kWarps * kMaxKernel * kWarp);
  const ConvReluPoolSizes& s = p.sizes;
  const int k = static_cast<int>(s.kernel), lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t kernel_rows = s.channels * s.kernel, kernel_row = blockIdx.x % (kernel_rows + 1);
  const int64_t part = blockIdx.x / (kernel_rows + 1), client = part / p.parts_per_client;
  const int64_t first_sample = part % p.parts_per_client * p.samples_per_part;
  const int64_t samples = min(p.samples_per_part, s.samples - first_sample);
  const int64_t output = int64_t{blockIdx.y} * kWarp + lane;
  const bool is_bias = kernel_row == kernel_rows;
  const T* planes = static_cast<const T*>(p.x.data) + client * p.x.client + kernel_row / k * p.x.second;
  const T* grads = static_cast<const T*>(p.grad.data) + client * p.grad.client + output * p.grad.second;
  const uint8_t* winners = p.index.data + client * p.index.client + output * p.index.second;
  const int64_t windows = s.pooled_height * s.pooled_width;
  A sums[kMaxKernel] = {};
  for (int64_t i = warp; output < s.outputs && i < samples * windows; i += kWarps) {
    const int64_t sample = first_sample + i / windows;
    const int64_t row = i % windows / s.pooled_width, column = i % s.pooled_width;
    const int winner = winners[sample * p.index.first + row * p.index.row + column * p.index.column];
    if (winner >= kConvInactive) {
      continue;
    }
    const A grad = widen(grads[sample * p.grad.first + row * p.grad.row + column * p.grad.column]);
    if (is_bias) {
      sums[0] = sums[0] + grad;
      continue;
    }
    const int64_t top = 2 * row + winner / 2 + kernel_row % k - s.padding;
    const int64_t left = 2 * column + winner % 2 - s.padding;
#pragma unroll
    for (int tap = 0; tap < kMaxKernel; ++tap) {
      if (tap < k) {
        sums[tap] = multiply_add(pixel_or_zero(planes + sample * p.x.first, p.x, s, top, left + tap), grad, sums[tap]);
      }
    }
  }
#pragma unroll
  for (int tap = 0; tap < kMaxKernel; ++tap) {
    partial[(warp * kMaxKernel + tap) * kWarp + lane] = sums[tap];
  }
  __syncthreads();
  const int tap = warp;  // a kernel row has fewer taps than there are warps
  if (output < s.outputs && tap < (is_bias ? 1 : k)) {
    A sum = 0;
    for (int other = 0; other < kWarps; ++other) {
      sum = sum + partial[(other * kMaxKernel + tap) * kWarp + lane];
    }
    const int64_t offset = part * (kernel_rows * k + 1) + kernel_row * k + tap;
    static_cast<A*>(p.parts)[offset * s.outputs + output] = sum;
  }
}

// One thread per weight or bias: adds its parts in their order.
template <class T>
__global__ void __launch_bounds__(kThreads) add_parts_kernel(const ConvReluPoolBackward p) {
  using A = accumulate_t<T>;
  const ConvReluPoolSizes& s = p.sizes;
  const int64_t taps = s.channels * s.kernel * s.kernel, per_client = (taps + 1) * s.outputs;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= s.clients * per_client) {
    return;
  }
  const int64_t client = i / per_client, tap = i % per_client / s.outputs, output = i % s.outputs;
  const A* parts = static_cast<const A*>(p.parts) + client * p.parts_per_client * per_client + i % per_client;
  A sum = 0;
  for (int64_t part = 0; part < p.parts_per_client; ++part) {
    sum = sum + parts[part * per_client];
  }
  if (tap == taps) {
    static_cast<T*>(p.grad_bias)[client * s.outputs + output] = narrow<T>(sum);
  } else {
    const int64_t column = tap % s.kernel, row = tap / s.kernel % s.kernel, channel = tap / (s.kernel * s.kernel);
    const Strided<void*>& to = p.grad_weight;
    static_cast<T*>(
        to.data)[client * to.client + output * to.first + channel * to.second + row * to.row + column * to.column] =
        narrow<T>(sum);
  }
}

// One thread per pixel of x: gathers the gradients of the maxima whose receptive field contains it.
template <class T>
__global__ void __launch_bounds__(kThreads) grad_x_kernel(const ConvReluPoolBackward p) {
  using A = accumulate_t<T>;
  const ConvReluPoolSizes& s = p.sizes;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t column = i % s.width, row = i / s.width % s.height, channel = i / s.width / s.height % s.channels;
  const int64_t image = i / s.width / s.height / s.channels, client = image / s.samples, sample = image % s.samples;
  if (client >= s.clients) {
    return;
  }
  const T* grads = static_cast<const T*>(p.grad.data) + client * p.grad.client + sample * p.grad.first;
  const uint8_t* winners = p.index.data + client * p.index.client + sample * p.index.first;
  const T* kernels = static_cast<const T*>(p.weight.data) + client * p.weight.client + channel * p.weight.second;
  A sum = 0;
  for (int64_t tap = 0; tap < s.kernel * s.kernel; ++tap) {
    const int64_t y = row + s.padding - tap / s.kernel, x = column + s.padding - tap % s.kernel;
    if (y < 0 || y >= 2 * s.pooled_height || x < 0 || x >= 2 * s.pooled_width) {
      continue;
    }
    const int winner = static_cast<int>(y % 2 * 2 + x % 2);
    const T* kernel = kernels + tap / s.kernel * p.weight.row + tap % s.kernel * p.weight.column;
    const T* grad = grads + y / 2 * p.grad.row + x / 2 * p.grad.column;
    const uint8_t* index = winners + y / 2 * p.index.row + x / 2 * p.index.column;
    for (int64_t output = 0; output < s.outputs; ++output) {
      if (index[output * p.index.second] == winner) {
        sum = multiply_add(widen(grad[output * p.grad.second]), widen(kernel[output * p.weight.first]), sum);
      }
    }
  }
  const Strided<void*>& to = p.grad_x;
  static_cast<T*>(
      to.data)[client * to.client + sample * to.first + channel * to.second + row * to.row + column * to.column] =
      narrow<T>(sum);
}

unsigned blocks(int64_t count, int64_t size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

template <class T>
int launch(const ConvReluPool& p, cudaStream_t stream) {
  const ConvReluPoolSizes& s = p.sizes;
  const int64_t rows = s.clients * s.samples * s.pooled_height;
  const dim3 grid(static_cast<unsigned>(rows * blocks(s.pooled_width, kWarps)), blocks(s.outputs, kWarp));
  PFL_LAUNCH(forward_kernel<T>, grid, dim3(kThreads), 0, stream, p);
  return static_cast<int>(cudaGetLastError());
}

template <class T>
int launch(const ConvReluPoolBackward& p, cudaStream_t stream) {
  const ConvReluPoolSizes& s = p.sizes;
  if (p.grad_weight.data) {
    const int64_t parts = s.clients * p.parts_per_client, kernel_rows = s.channels * s.kernel;
    if (parts > 0) {
      const dim3 grid(static_cast<unsigned>(parts * (kernel_rows + 1)), blocks(s.outputs, kWarp));
      PFL_LAUNCH(parts_kernel<T>, grid, dim3(kThreads), 0, stream, p);
    }
    const dim3 grid(blocks(s.clients * (kernel_rows * s.kernel + 1) * s.outputs, kThreads));
    PFL_LAUNCH(add_parts_kernel<T>, grid, dim3(kThreads), 0, stream, p);
  }
  if (p.grad_x.data && s.samples > 0) {
    const dim3 grid(blocks(s.clients * s.samples * s.channels * s.height * s.width, kThreads));
    PFL_LAUNCH(grad_x_kernel<T>, grid, dim3(kThreads), 0, stream, p);
  }
  return static_cast<int>(cudaGetLastError());
}

template <class Problem>
int dispatch_type(const Problem& p, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  return with_type(p.sizes.dtype, [&](auto type) { return launch<decltype(type)>(p, on); });
}

}  // namespace
}  // namespace pfl

int pfl_cuda_conv_relu_pool(const pfl::ConvReluPool* problem, void* stream) {
  return pfl::dispatch_type(*problem, stream);
}

int pfl_cuda_conv_relu_pool_backward(const pfl::ConvReluPoolBackward* problem, void* stream) {
  return pfl::dispatch_type(*problem, stream);
}
