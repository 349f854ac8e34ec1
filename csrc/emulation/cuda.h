// The subset of CUDA that the kernels use, for g++: runs ops/*/cuda_kernel.cu on CPU memory with one fiber per CUDA
// thread. For tests only. It does not model speed, weak memory ordering, approximate intrinsics or driver errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

using cudaError_t = int;
using cudaStream_t = void*;
constexpr cudaError_t cudaSuccess = 0;
constexpr cudaError_t cudaErrorInvalidValue = 1;
constexpr cudaError_t cudaErrorLaunchFailure = 719;

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {
  }
};

namespace emulation {

struct Position {
  dim3 thread, block;
};

// Position of the running fiber and sizes of the running launch. Returned by value: ThreadSanitizer would see the
// runtime's memory as another thread's.
Position position();
dim3 block_dim();
dim3 grid_dim();

void launch(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body);
cudaError_t last_error();

void barrier();
void warp_barrier(unsigned mask);
// Every lane of the mask publishes a word; afterwards exchanged() reads the word of another lane.
void exchange(unsigned mask, uint64_t word);
uint64_t exchanged(int lane);
unsigned lanes_with(unsigned mask, bool predicate);
int lane();

// Randomly switches to another thread, as may happen before an atomic on hardware.
void preempt();

// Shared memory of the running block, filled with NaN when the block first requests it.
void* shared(const void* key, size_t bytes);
void* dynamic_shared();

}  // namespace emulation

#define threadIdx (::emulation::position().thread)
#define blockIdx (::emulation::position().block)
#define blockDim (::emulation::block_dim())
#define gridDim (::emulation::grid_dim())

#define PFL_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                \
  do {                                                                            \
    static_cast<void>(stream);                                                    \
    ::emulation::launch(grid, block, shared_bytes, [=] { kernel(__VA_ARGS__); }); \
  } while (0)
#define PFL_SHARED(type, name, count) \
  static char pfl_key_of_##name;      \
  type* const name = static_cast<type*>(::emulation::shared(&pfl_key_of_##name, (count) * sizeof(type)))
#define PFL_DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(::emulation::dynamic_shared())

inline cudaError_t cudaGetLastError() {
  return ::emulation::last_error();
}

inline void __syncthreads() {
  ::emulation::barrier();
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  ::emulation::warp_barrier(mask);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  ::emulation::exchange(mask, word);
  word = ::emulation::exchanged(source & 31);
  std::memcpy(&value, &word, sizeof value);
  return value;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return __shfl_sync(mask, value, ::emulation::lane() ^ bits);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, int distance) {
  const int source = ::emulation::lane() + distance;
  return __shfl_sync(mask, value, source < 32 ? source : ::emulation::lane());
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return ::emulation::lanes_with(mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, !predicate) == 0;
}

// Relaxed like CUDA's atomics: ThreadSanitizer accepts concurrent access, but other accesses stay unordered.
template <class T>
T atomicAdd(T* address, T value) {
  ::emulation::preempt();
  if constexpr (std::is_integral_v<T>) {
    return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
  } else {
    T before, after;
    __atomic_load(address, &before, __ATOMIC_RELAXED);
    do {
      after = before + value;
    } while (!__atomic_compare_exchange(address, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
  }
}

struct __nv_bfloat16 {
  uint16_t bits;
};
struct __half {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return {0x7fff};  // NaN of the hardware
  }
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
inline float __half2float(__half value) {
  _Float16 half;
  std::memcpy(&half, &value, sizeof half);
  return static_cast<float>(half);
}
inline __half __float2half_rn(float value) {
  const _Float16 half = static_cast<_Float16>(value);
  __half result;
  std::memcpy(&result, &half, sizeof half);
  return result;
}
