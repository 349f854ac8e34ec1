// CUDA kernels of `distill_losses`: 16 threads per row add in the order of the CPU kernel's lanes, so in float the bits
// are the same.
#include "ops/distill_losses/problem.h"

#include "common/elementary.h"
#include "cuda/common/platform.cuh"

namespace pfl {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = static_cast<int>(kDistillLanes);
constexpr int kResidentBlocks = 2;          // per multiprocessor: 128 registers per thread, no spills in double either
constexpr int kGroups = kThreads / kLanes;  // rows per block and pass; also the lanes of sums over rows

// Sum over the 16 threads of a row, returned to all of them. All threads of the warp must call it.
template <class A>
__device__ __forceinline__ A group_sum(A value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

template <class A>
__device__ __forceinline__ A group_max(A value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    const A other = __shfl_xor_sync(kAllLanes, value, offset);
    value = other > value ? other : value;
  }
  return value;
}

// log_of does not handle NaN; sum - sum restores it.
template <class A>
__device__ __forceinline__ A log_of_sum(A sum) {
  return log_of(sum) + (sum - sum);
}

// Maxima and sums of one row, as defined in problem.h.
template <class T>
struct Row {
  using A = accumulate_t<T>;
  const T *y_g, *y_p, *y_u;
  int64_t classes;
  int lane;
  A max_g, max_p, max_u, s_g, s_p, s_u, u, x_g, x_p;

  __device__ __forceinline__ Row(const DistillInputs& in, int64_t row)
      : y_g(static_cast<const T*>(in.y_g) + row * in.classes),
        y_p(static_cast<const T*>(in.y_p) + row * in.classes),
        y_u(static_cast<const T*>(in.y_u) + row * in.classes),
        classes(in.classes),
        lane(static_cast<int>(threadIdx.x) % kLanes) {
    max_g = row_max(y_g);
    max_p = row_max(y_p);
    max_u = row_max(y_u);
    s_g = s_p = s_u = u = x_g = x_p = A(0);
#pragma unroll 1
    for (int64_t c = lane; c < classes; c += kLanes) {
      const A d_g = widen(y_g[c]) - max_g, d_p = widen(y_p[c]) - max_p, d_u = widen(y_u[c]) - max_u;
      const A e_g = exp_of(d_g), e_p = exp_of(d_p), e_u = exp_of(d_u);
      s_g += e_g;
      s_p += e_p;
      s_u += e_u;
      u += e_u * d_u;
      x_g += e_g * (d_p - d_g);
      x_p += e_p * (d_p - d_g);
    }
    s_g = group_sum(s_g);
    s_p = group_sum(s_p);
    s_u = group_sum(s_u);
    u = group_sum(u);
    x_g = group_sum(x_g);
    x_p = group_sum(x_p);
  }

  __device__ __forceinline__ A row_max(const T* y) const {
    A max = widen(y[0]);
#pragma unroll 1
    for (int64_t c = lane; c < classes; c += kLanes) {
      const A value = widen(y[c]);
      max = value > max ? value : max;
    }
    return group_max(max);
  }

  // A target out of range is a caller error; it is never used to read memory.
  __device__ __forceinline__ A cross_entropy(const T* y, A max, A sum, int64_t target) const {
    const A d = target >= 0 && target < classes ? widen(y[target]) - max : A(0);
    return log_of_sum(sum) - d;
  }
};

template <class A>
__device__ __forceinline__ void write_mean(const DistillForward& p, int term, int64_t client, double sum) {
  // A dynamic index would move the arguments into local memory.
  void* const out = term == 0 ? p.out[0] : term == 1 ? p.out[1] : term == 2 ? p.out[2] : p.out[3];
  static_cast<A*>(out)[client] = static_cast<A>(sum / static_cast<double>(p.in.rows));
}

// One block per part of a client's rows. If there is only one part, it writes the means.
template <class T>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    distill_losses_kernel(const DistillForward p, int64_t parts) {
  using A = accumulate_t<T>;
  PFL_SHARED(double, sums, kDistillTerms* kGroups);
  const int64_t client = int64_t{blockIdx.x} / parts;
  const int64_t first = int64_t{blockIdx.x} % parts * kDistillPartRows;
  const int count = static_cast<int>(min(p.in.rows - first, kDistillPartRows));
  const int group = static_cast<int>(threadIdx.x) / kLanes;
  double gce = 0, lce = 0, ent = 0, dis = 0;
#pragma unroll 1
  for (int i = group; i - group < count; i += kGroups) {
    // All threads of a warp must take part in shuffles: a group without a row repeats the last one, without a result.
    const int64_t at = client * p.in.rows + first + (i < count ? i : count - 1);
    const Row<T> row(p.in, at);
    if (i < count) {
      gce += static_cast<double>(row.cross_entropy(row.y_g, row.max_g, row.s_g, p.in.target[at]));
      lce += static_cast<double>(row.cross_entropy(row.y_p, row.max_p, row.s_p, p.in.target[at]));
      ent += static_cast<double>(row.u / row.s_u - log_of_sum(row.s_u));
      dis += static_cast<double>(row.x_p / row.s_p - row.x_g / row.s_g);
    }
  }
  if (threadIdx.x % kLanes == 0) {
    sums[0 * kGroups + group] = gce;
    sums[1 * kGroups + group] = lce;
    sums[2 * kGroups + group] = ent;
    sums[3 * kGroups + group] = dis;
  }
  __syncthreads();
  if (threadIdx.x < kDistillTerms * kGroups) {  // exactly two warps
    const int term = static_cast<int>(threadIdx.x) / kGroups;
    const double sum = group_sum(sums[threadIdx.x]);
    if (threadIdx.x % kGroups == 0) {
      if (parts == 1) {
        write_mean<A>(p, term, client, sum);
      } else {
        p.partial[int64_t{blockIdx.x} * kDistillTerms + term] = sum;
      }
    }
  }
}

// One thread per client and term: adds its parts in their order.
template <class A>
__global__ void __launch_bounds__(kThreads) distill_mean_kernel(const DistillForward p, int64_t parts) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t client = index / kDistillTerms;
  const int term = static_cast<int>(index % kDistillTerms);
  if (client >= p.in.clients) {
    return;
  }
  double sum = 0;
  for (int64_t part = 0; part < parts; ++part) {
    sum += p.partial[(client * parts + part) * kDistillTerms + term];
  }
  write_mean<A>(p, term, client, sum);
}

template <class T>
__global__ void __launch_bounds__(kThreads, kResidentBlocks) distill_losses_backward_kernel(const DistillBackward p) {
  using A = accumulate_t<T>;
  const int64_t rows = p.in.clients * p.in.rows;
  const int64_t group_row = int64_t{blockIdx.x} * kGroups + threadIdx.x / kLanes;
  const int64_t at = min(group_row, rows - 1);  // all threads of a warp must take part in shuffles
  const Row<T> row(p.in, at);
  if (group_row >= rows) {
    return;
  }
  const int64_t client = at / p.in.rows, target = p.in.target[at];
  const A inverse_rows = A(1) / static_cast<A>(p.in.rows);
  const A gce = static_cast<const A*>(p.grads[0])[client] * inverse_rows;
  const A lce = static_cast<const A*>(p.grads[1])[client] * inverse_rows;
  const A ent = static_cast<const A*>(p.grads[2])[client] * inverse_rows;
  const A dis = static_cast<const A*>(p.grads[3])[client] * inverse_rows;
  const A inverse_g = A(1) / row.s_g, inverse_p = A(1) / row.s_p, inverse_u = A(1) / row.s_u;
  const A mean_g = row.x_g / row.s_g, mean_p = row.x_p / row.s_p, mean_u = row.u / row.s_u;
#pragma unroll 1
  for (int64_t c = row.lane; c < row.classes; c += kLanes) {
    const A d_g = widen(row.y_g[c]) - row.max_g, d_p = widen(row.y_p[c]) - row.max_p;
    const A d_u = widen(row.y_u[c]) - row.max_u;
    const A g = exp_of(d_g) * inverse_g, q = d_p - d_g;
    const A other = exp_of(d_p) * inverse_p;
    A grad_g = gce * g + dis * ((g - other) - g * (q - mean_g));
    A grad_p = lce * other + dis * ((other - g) + other * (q - mean_p));
    if (c == target) {
      grad_g -= gce;
      grad_p -= lce;
    }
    const int64_t offset = at * row.classes + c;
    static_cast<T*>(p.grad_g)[offset] = narrow<T>(grad_g);
    static_cast<T*>(p.grad_p)[offset] = narrow<T>(grad_p);
    static_cast<T*>(p.grad_u)[offset] = narrow<T>(ent * ((exp_of(d_u) * inverse_u) * (d_u - mean_u)));
  }
}

dim3 grid_for(int64_t work, int64_t per_block) {
  return dim3(static_cast<unsigned>((work + per_block - 1) / per_block));
}

template <class T>
void launch(const DistillForward& p, cudaStream_t stream) {
  const int64_t parts = distill_parts(p.in.rows);
  PFL_LAUNCH(distill_losses_kernel<T>, grid_for(p.in.clients * parts, 1), dim3(kThreads), 0, stream, p, parts);
  if (parts > 1) {
    PFL_LAUNCH(distill_mean_kernel<accumulate_t<T>>, grid_for(p.in.clients * kDistillTerms, kThreads), dim3(kThreads),
               0, stream, p, parts);
  }
}

template <class T>
void launch(const DistillBackward& p, cudaStream_t stream) {
  PFL_LAUNCH(distill_losses_backward_kernel<T>, grid_for(p.in.clients * p.in.rows, kGroups), dim3(kThreads), 0, stream,
             p);
}

template <class Problem>
int dispatch(const Problem& p, void* on) {
  if (p.in.clients * p.in.rows == 0) {
    return 0;
  }
  const cudaStream_t stream = static_cast<cudaStream_t>(on);
  with_type(p.in.dtype, [&](auto type) { launch<decltype(type)>(p, stream); });
  return static_cast<int>(cudaGetLastError());
}

}  // namespace
}  // namespace pfl

int pfl_cuda_distill_losses(const pfl::DistillForward* problem, void* stream) {
  return pfl::dispatch(*problem, stream);
}

int pfl_cuda_distill_losses_backward(const pfl::DistillBackward* problem, void* stream) {
  return pfl::dispatch(*problem, stream);
}
