// CUDA kernels of `orthogonal_project`: one block computes both products for a few samples of one client.
#include "ops/orthogonal_project/problem.h"

#include "cuda/common/platform.cuh"

namespace pfl {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kSamples = 4;         // samples per block, which share each read of a basis
constexpr int kDepth = kWarp;       // columns of a basis staged at once, for kThreads rows
constexpr int kPitch = kDepth + 1;  // avoids bank conflicts between rows of a tile

// Shared memory of a block.
template <class A>
struct Scratch {
  A* tile;         // [kThreads, kPitch] tile of a basis
  A* coordinates;  // [kSamples, kDepth]
  A* partial;      // [kWarps, kSamples, kDepth]
};

template <class T>
struct BlockSamples {
  int64_t first_sample;  // index among the samples of all clients
  int samples;
  const T* basis;
};

template <class T>
__device__ BlockSamples<T> block_samples(const ProjectSizes& sizes, const Subspace& space) {
  const int64_t client = blockIdx.y, first = int64_t{blockIdx.x} * kSamples;
  return {client * sizes.samples + first, static_cast<int>(min(kSamples, sizes.samples - first)),
          static_cast<const T*>(space.basis) + client * space.stride};
}

// coordinates = values * basis, visible to the block after the next barrier. One lane per column; each warp sums every kWarps-th feature; warps are added in order.
template <class T, class Load>
__device__ void find_coordinates(const ProjectSizes& sizes, const Subspace& space, const BlockSamples<T>& block,
                                 const Scratch<accumulate_t<T>>& scratch, const Load& load) {
  using A = accumulate_t<T>;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  A* coordinates = static_cast<A*>(space.coordinates) + block.first_sample * space.padded_rank;
  for (int64_t begin = 0; begin < space.rank; begin += kDepth) {
    const int64_t k = begin + lane;
    A sum[kSamples] = {};
#pragma unroll 2
    for (int64_t d = warp; d < sizes.features; d += kWarps) {
      const A factor = k < space.rank ? widen(block.basis[d * space.rank + k]) : A(0);
#pragma unroll
      for (int s = 0; s < kSamples; ++s) {
        if (s < block.samples) {
          sum[s] += load(block.first_sample + s, d) * factor;
        }
      }
    }
    __syncthreads();  // wait for reads of the previous sums
#pragma unroll
    for (int s = 0; s < kSamples; ++s) {
      scratch.partial[(warp * kSamples + s) * kDepth + lane] = sum[s];
    }
    __syncthreads();
    if (warp < block.samples && k < space.rank) {
      A total = 0;
      for (int w = 0; w < kWarps; ++w) {
        total += scratch.partial[(w * kSamples + warp) * kDepth + lane];
      }
      coordinates[warp * space.padded_rank + k] = total;
    }
  }
}
static_assert(kWarps == kSamples, "a warp adds up the coordinates of one sample");

// sum[s] = dot product of the coordinates of sample s and the basis row of feature `begin + threadIdx.x`.
template <class T>
__device__ void expand(const ProjectSizes& sizes, const Subspace& space, const BlockSamples<T>& block,
                       const Scratch<accumulate_t<T>>& scratch, int64_t begin, accumulate_t<T>* sum) {
  using A = accumulate_t<T>;
  const A* coordinates = static_cast<const A*>(space.coordinates) + block.first_sample * space.padded_rank;
#pragma unroll
  for (int s = 0; s < kSamples; ++s) {
    sum[s] = 0;
  }
  for (int64_t first = 0; first < space.rank; first += kDepth) {
    const int depth = static_cast<int>(min(kDepth, space.rank - first));
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    __syncthreads();  // wait for all coordinates and for reads of the previous tile
#pragma unroll 4
    for (int row = warp; row < kThreads; row += kWarps) {
      const bool exists = begin + row < sizes.features && lane < depth;
      scratch.tile[row * kPitch + lane] = exists ? widen(block.basis[(begin + row) * space.rank + first + lane]) : A(0);
    }
    if (warp < block.samples && lane < depth) {
      scratch.coordinates[warp * kDepth + lane] = coordinates[warp * space.padded_rank + first + lane];
    }
    __syncthreads();
#pragma unroll 4
    for (int k = 0; k < depth; ++k) {
      const A factor = scratch.tile[threadIdx.x * kPitch + k];
#pragma unroll
      for (int s = 0; s < kSamples; ++s) {
        if (s < block.samples) {
          sum[s] += scratch.coordinates[s * kDepth + k] * factor;
        }
      }
    }
  }
}

template <class T>
struct Features {
  const T* values;
  int64_t features;

  __device__ accumulate_t<T> operator()(int64_t sample, int64_t d) const {
    return widen(values[sample * features + d]);
  }
};

// A block computes kSamples samples of one client.
template <class T>
__global__ void __launch_bounds__(kThreads) project_kernel(const OrthogonalProject problem) {
  using A = accumulate_t<T>;
  PFL_SHARED(A, tile, kThreads * kPitch);
  PFL_SHARED(A, staged, kSamples * kDepth);
  PFL_SHARED(A, partial, kWarps * kSamples * kDepth);
  const Scratch<A> scratch{tile, staged, partial};
  const ProjectSizes& sizes = problem.sizes;
  const BlockSamples<T> in_g = block_samples<T>(sizes, problem.of_g), in_p = block_samples<T>(sizes, problem.of_p);
  find_coordinates(sizes, problem.of_g, in_g, scratch, Features<T>{static_cast<const T*>(problem.f_g), sizes.features});
  find_coordinates(sizes, problem.of_p, in_p, scratch, Features<T>{static_cast<const T*>(problem.f_p), sizes.features});
  const A share_g = static_cast<A>(sizes.alpha), share_p = static_cast<A>(1 - sizes.alpha);
  A inner[kSamples] = {};
#pragma unroll 1
  for (int64_t begin = 0; begin < sizes.features; begin += kThreads) {
    A g[kSamples], p[kSamples];
    expand(sizes, problem.of_g, in_g, scratch, begin, g);
    expand(sizes, problem.of_p, in_p, scratch, begin, p);
    const int64_t d = begin + threadIdx.x;
#pragma unroll
    for (int s = 0; s < kSamples; ++s) {
      if (s < in_g.samples && d < sizes.features) {
        const A g_value = sizes.relu && g[s] < A(0) ? A(0) : g[s];
        const A p_value = sizes.relu && p[s] < A(0) ? A(0) : p[s];
        const int64_t at = (in_g.first_sample + s) * sizes.features + d;
        static_cast<T*>(problem.g)[at] = narrow<T>(g_value);
        static_cast<T*>(problem.p)[at] = narrow<T>(p_value);
        static_cast<T*>(problem.fused)[at] = narrow<T>(share_g * g_value + share_p * p_value);
        inner[s] += g_value * p_value;
      }
    }
  }
  __syncthreads();  // wait for reads of `partial`: without features no other barrier follows them
#pragma unroll
  for (int s = 0; s < kSamples; ++s) {
    const A sum = warp_sum(inner[s]);
    if (threadIdx.x % kWarp == 0) {
      partial[threadIdx.x / kWarp * kSamples + s] = sum;
    }
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < in_g.samples) {
    A total = 0;
    for (int w = 0; w < kWarps; ++w) {
      total += partial[w * kSamples + threadIdx.x];
    }
    static_cast<T*>(problem.inner)[in_g.first_sample + threadIdx.x] = narrow<T>(total);
  }
}

// Gradient of one side's projected features: from its own output, from `fused`, and from `inner`.
template <class T>
struct CotangentOf {
  using A = accumulate_t<T>;
  const T *own, *result, *other, *v_fused, *v_inner;
  A share;
  int64_t features;
  bool relu;

  __device__ A operator()(int64_t sample, int64_t d) const {
    const int64_t at = sample * features + d;
    A sum = own ? widen(own[at]) : A(0);
    if (v_fused) {
      sum += share * widen(v_fused[at]);
    }
    if (v_inner) {
      sum += widen(v_inner[sample]) * widen(other[at]);
    }
    return relu && widen(result[at]) <= A(0) ? A(0) : sum;
  }
};

// A block computes kSamples samples of one client.
template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const ProjectSizes sizes, const Subspace space, const CotangentOf<T> cotangent, T* grad) {
  using A = accumulate_t<T>;
  PFL_SHARED(A, tile, kThreads * kPitch);
  PFL_SHARED(A, staged, kSamples * kDepth);
  PFL_SHARED(A, partial, kWarps * kSamples * kDepth);
  const Scratch<A> scratch{tile, staged, partial};
  const BlockSamples<T> block = block_samples<T>(sizes, space);
  find_coordinates(sizes, space, block, scratch, cotangent);
#pragma unroll 1
  for (int64_t begin = 0; begin < sizes.features; begin += kThreads) {
    A sum[kSamples];
    expand(sizes, space, block, scratch, begin, sum);
    const int64_t d = begin + threadIdx.x;
#pragma unroll
    for (int s = 0; s < kSamples; ++s) {
      if (s < block.samples && d < sizes.features) {
        grad[(block.first_sample + s) * sizes.features + d] = narrow<T>(sum[s]);
      }
    }
  }
}

// Samples lie along x: the y dimension of a grid ends at 65,535 blocks.
dim3 grid_of(const ProjectSizes& sizes) {
  return dim3(static_cast<unsigned>((sizes.samples + kSamples - 1) / kSamples), static_cast<unsigned>(sizes.clients));
}

template <class T>
int launch(const OrthogonalProject& p, cudaStream_t stream) {
  PFL_LAUNCH(project_kernel<T>, grid_of(p.sizes), dim3(kThreads), 0, stream, p);
  return static_cast<int>(cudaGetLastError());
}

template <class T>
int launch(const OrthogonalProjectBackward& p, cudaStream_t stream) {
  using A = accumulate_t<T>;
  const auto typed = [](const void* pointer) { return static_cast<const T*>(pointer); };
  const T *v_fused = typed(p.v_fused), *v_inner = typed(p.v_inner);
  const A share_g = static_cast<A>(p.sizes.alpha), share_p = static_cast<A>(1 - p.sizes.alpha);
  const int64_t features = p.sizes.features;
  const bool relu = p.sizes.relu != 0;
  if (p.grad_g) {
    const CotangentOf<T> of_g{typed(p.v_g), typed(p.g), typed(p.p), v_fused, v_inner, share_g, features, relu};
    PFL_LAUNCH(backward_kernel<T>, grid_of(p.sizes), dim3(kThreads), 0, stream, p.sizes, p.of_g, of_g,
               static_cast<T*>(p.grad_g));
  }
  if (p.grad_p) {
    const CotangentOf<T> of_p{typed(p.v_p), typed(p.p), typed(p.g), v_fused, v_inner, share_p, features, relu};
    PFL_LAUNCH(backward_kernel<T>, grid_of(p.sizes), dim3(kThreads), 0, stream, p.sizes, p.of_p, of_p,
               static_cast<T*>(p.grad_p));
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

int pfl_cuda_orthogonal_project(const pfl::OrthogonalProject* problem, void* stream) {
  return pfl::dispatch_type(*problem, stream);
}

int pfl_cuda_orthogonal_project_backward(const pfl::OrthogonalProjectBackward* problem, void* stream) {
  return pfl::dispatch_type(*problem, stream);
}
