// What forward and backward of `conv_relu_pool` share: vectors, rows of tensors with any strides, and a sample's padded
// image of floats, which stays in the first-level cache.
#pragma once

#include "conv_relu_pool_kernel.h"

#include "convert.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// As much as a vector holds, of the widest kind.
#if defined(__AVX512F__)
constexpr int64_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int64_t kVectorBytes = 32;
#else
constexpr int64_t kVectorBytes = 16;
#endif

inline int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

template <class A>
struct Integer {
  using type = int32_t;
};
template <>
struct Integer<double> {
  using type = int64_t;
};

template <class A>
struct Lanes {
  static constexpr int64_t kCount = kVectorBytes / sizeof(A);
  typedef A Vector __attribute__((vector_size(kVectorBytes)));
  typedef A Unaligned __attribute__((vector_size(kVectorBytes), aligned(alignof(A)), may_alias));
  typedef typename Integer<A>::type Integers __attribute__((vector_size(kVectorBytes)));
  typedef uint8_t Bytes __attribute__((vector_size(kCount)));

  static inline __attribute__((always_inline)) Vector load(const A* values) {
    return *reinterpret_cast<const Unaligned*>(values);
  }
  static inline __attribute__((always_inline)) void store(const Vector& vector, A* values) {
    *reinterpret_cast<Unaligned*>(values) = vector;
  }
  // The value in every lane. As an integer: there are processors on which a broadcast of a floating-point number keeps
  // a multiplier busy.
  static inline __attribute__((always_inline)) Vector splat(const A* value) {
    typename Integer<A>::type bits;
    std::memcpy(&bits, value, sizeof bits);
    return reinterpret_cast<Vector>(Integers{} + bits);
  }
};

// out[j] = row[j * stride], in the type sums are kept in.
template <class T, class A>
inline __attribute__((always_inline)) void read_row(const T* row, int64_t stride, int64_t count, A* out) {
  if (stride == 1) {
    const A* wide = widen(row, count, out);
    for (int64_t j = 0; wide != out && j < count; ++j) {
      out[j] = wide[j];
    }
    return;
  }
  for (int64_t j = 0; j < count; ++j) {
    A buffer;
    out[j] = *widen(row + j * stride, 1, &buffer);
  }
}

template <class T, class A>
void write_row(const A* values, int64_t count, int64_t stride, T* row) {
  if (stride == 1) {
    narrow(values, count, row);
    return;
  }
  for (int64_t j = 0; j < count; ++j) {
    narrow(values + j, 1, row + j * stride);
  }
}

template <class A>
A* aligned(double* scratch) {
  constexpr uintptr_t kBytes = kConvLine * sizeof(float);
  return reinterpret_cast<A*>((reinterpret_cast<uintptr_t>(scratch) + kBytes - 1) / kBytes * kBytes);
}

// The largest of a window's four sums, or 0, and which it was: the first of equal ones, the last that is NaN.
template <class A>
struct Winners {
  typename Lanes<A>::Vector values;
  typename Lanes<A>::Bytes index;

  inline __attribute__((always_inline)) explicit Winners(const typename Lanes<A>::Vector* four) {
    using Vector = typename Lanes<A>::Vector;
    using Integers = typename Lanes<A>::Integers;
    Vector best = four[0];
    Integers winner = {};
#pragma GCC unroll 4
    for (int i = 1; i < 4; ++i) {
      const Integers wins = (four[i] > best) | (four[i] != four[i]);
      best = wins ? four[i] : best;
      winner = wins ? Integers{} + i : winner;
    }
    const Integers cut = best <= A(0);
    values = cut ? Vector{} : best;
    index = __builtin_convertvector(cut ? Integers{} + kConvCut : winner, typename Lanes<A>::Bytes);
  }
};

// A sample with a border of zeros, channel by channel.
template <class A>
struct Image {
  A* values;
  int64_t pitch, plane;  // distances of rows and of channels

  Image(const ConvReluPoolSizes& s, A* memory)
      : values(memory),
        pitch(conv_round_up(s.width + 2 * s.padding, kConvLine)),
        plane((s.height + 2 * s.padding) * pitch) {
  }

  A* row(const ConvReluPoolSizes& s, int64_t channel, int64_t y) const {
    return values + channel * plane + (y + s.padding) * pitch + s.padding;
  }

  // The border stays as it is.
  template <class T>
  void read(const ConvReluPoolSizes& s, const Strided<const void*>& x, int64_t client, int64_t sample) {
    const T* from = static_cast<const T*>(x.data) + client * x.client + sample * x.first;
    for (int64_t channel = 0; channel < s.channels; ++channel) {
      for (int64_t y = 0; y < s.height; ++y) {
        read_row(from + channel * x.second + y * x.row, x.column, s.width, row(s, channel, y));
      }
    }
  }

  template <class T>
  void write(const ConvReluPoolSizes& s, const Strided<void*>& x, int64_t client, int64_t sample) const {
    T* to = static_cast<T*>(x.data) + client * x.client + sample * x.first;
    for (int64_t channel = 0; channel < s.channels; ++channel) {
      for (int64_t y = 0; y < s.height; ++y) {
        write_row(row(s, channel, y), s.width, x.column, to + channel * x.second + y * x.row);
      }
    }
  }
};

}  // namespace
}  // namespace PFL_CAPABILITY
}  // namespace pfl
