// Shared by forward and backward of `conv_relu_pool`: strided row access, the maximum of pooling windows, and the
// padded image of a sample in the accumulation type, which stays in L1.
#pragma once

#include "ops/conv_relu_pool/problem.h"

#include "cpu/simd/convert.h"
#include "cpu/simd/lanes.h"
#include "cpu/simd/scratch.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

constexpr int64_t kConvRowLanes = 8;    // values of a kernel row, which are loaded together
constexpr int64_t kConvCacheLine = 16;  // floats in a cache line

// out[j] = row[j * stride] in the accumulation type.
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

// max(0, maximum of the four sums of a window) and the index of the maximum: the first of equal sums, the last NaN.
template <class A>
struct WindowMax {
  typename Lanes<A>::Vector values;
  typename Lanes<A>::Bytes index;

  inline __attribute__((always_inline)) explicit WindowMax(const typename Lanes<A>::Vector* four) {
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
    const Integers inactive = best <= A(0);
    values = inactive ? Vector{} : best;
    index = __builtin_convertvector(inactive ? Integers{} + kConvInactive : winner, typename Lanes<A>::Bytes);
  }
};

// A zero-padded sample [channels, rows, columns]. Rows are whole cache lines of floats; one extra line at the end,
// because kernels load kConvRowLanes values at a time and may read past the last row.
template <class A>
struct Image {
  int64_t pitch, plane, size;  // strides of rows and of channels, and values of a copy
  A* values;

  Image(const ConvReluPoolSizes& s, int64_t copies, Scratch& scratch)
      : pitch(conv_round_up(s.width + 2 * s.padding, kConvCacheLine)),
        plane((s.height + 2 * s.padding) * pitch),
        size(s.channels * plane + kConvCacheLine),
        values(scratch.take_zeros<A>(copies * size)) {
  }

  A* row(const ConvReluPoolSizes& s, int64_t channel, int64_t y) const {
    return values + channel * plane + (y + s.padding) * pitch + s.padding;
  }

  // Reads a sample; does not touch the padding.
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
