// Differences between nvcc and the emulation build, and helpers of all CUDA kernels.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/dtype.h"

#ifdef PFL_EMULATION
#include "emulation/cuda.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define PFL_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)
#define PFL_SHARED(type, name, count) __shared__ type name[count]
#define PFL_DYNAMIC_SHARED(type, name)              \
  extern __shared__ unsigned char pfl_shared_raw[]; \
  type* const name = reinterpret_cast<type*>(pfl_shared_raw)
#endif

namespace pfl {

// Dispatches on dtype: calls use(T{}) with the C++ type T.
template <class Use>
auto with_type(Float dtype, Use use) {
  switch (dtype) {
    case Float::kDouble:
      return use(double{});
    case Float::kFloat:
      return use(float{});
    case Float::kBFloat16:
      return use(__nv_bfloat16{});
    default:
      return use(__half{});
  }
}

template <class T>
struct Accumulate {
  using type = float;
};
template <>
struct Accumulate<double> {
  using type = double;
};
template <class T>
using accumulate_t = typename Accumulate<T>::type;

__device__ __forceinline__ double widen(double value) {
  return value;
}
__device__ __forceinline__ float widen(float value) {
  return value;
}
__device__ __forceinline__ float widen(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ __forceinline__ float widen(__half value) {
  return __half2float(value);
}

// a * b + c, rounded once.
__device__ __forceinline__ float multiply_add(float a, float b, float c) {
  return fmaf(a, b, c);
}
__device__ __forceinline__ double multiply_add(double a, double b, double c) {
  return fma(a, b, c);
}

template <class T>
__device__ __forceinline__ T narrow(accumulate_t<T> value);
template <>
__device__ __forceinline__ double narrow<double>(double value) {
  return value;
}
template <>
__device__ __forceinline__ float narrow<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ __half narrow<__half>(float value) {
  return __float2half_rn(value);
}

__host__ __device__ __forceinline__ int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// 16 bytes of T, the widest load and store.
template <class T>
struct alignas(16) Pack {
  static constexpr int kCount = 16 / sizeof(T);
  T values[kCount];
};

__device__ __forceinline__ bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

// Columns [column, column + kCount) of a row of numel values, zero-padded; one vector load if aligned and complete.
template <class T>
__device__ __forceinline__ Pack<T> load_pack(const T* row, int64_t column, int64_t numel) {
  if (is_aligned(row) && column + Pack<T>::kCount <= numel) {
    return *reinterpret_cast<const Pack<T>*>(row + column);
  }
  Pack<T> pack;
#pragma unroll
  for (int i = 0; i < Pack<T>::kCount; ++i) {
    pack.values[i] = column + i < numel ? row[column + i] : narrow<T>(0);
  }
  return pack;
}

template <class T>
__device__ __forceinline__ void store_pack(T* row, int64_t column, int64_t numel, const Pack<T>& pack) {
  if (is_aligned(row) && column + Pack<T>::kCount <= numel) {
    *reinterpret_cast<Pack<T>*>(row + column) = pack;
    return;
  }
#pragma unroll
  for (int i = 0; i < Pack<T>::kCount; ++i) {
    if (column + i < numel) {
      row[column + i] = pack.values[i];
    }
  }
}

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kWarp = 32;

template <class A>
__device__ __forceinline__ A warp_sum(A value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

}  // namespace pfl
