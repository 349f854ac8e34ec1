// CPU kernels of `take_normalized`, compiled once per instruction set. A byte has 256 values: each channel's results
// are computed once, by the very formula of the reference, and then looked up.
#include "take_normalized_kernel.h"

#include "convert.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

template <class T>
void fill(const TakeNormalized& p, T* table) {
  using A = accumulate_t<T>;
  const A* mean = static_cast<const A*>(p.mean);
  const A* std = static_cast<const A*>(p.std);
  for (int64_t c = 0; c < p.channels; ++c) {
    A values[kByteValues];
    for (int64_t x = 0; x < kByteValues; ++x) {
      values[x] = (static_cast<A>(x) / A(255) - mean[c]) / std[c];
    }
    narrow(values, kByteValues, table + c * kByteValues);
  }
}

template <class T>
void look_up(const uint8_t* __restrict image, int64_t count, const T* __restrict table, T* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = table[image[i]];
  }
}

template <class T>
void look_up_three(const uint8_t* __restrict image, int64_t pixels, const T* __restrict table, T* __restrict out) {
  const T *red = table, *green = table + kByteValues, *blue = table + 2 * kByteValues;
  for (int64_t i = 0; i < pixels; ++i) {
    out[3 * i] = red[image[3 * i]];
    out[3 * i + 1] = green[image[3 * i + 1]];
    out[3 * i + 2] = blue[image[3 * i + 2]];
  }
}

template <class T>
void look_up_planes(const uint8_t* __restrict image, int64_t pixels, int64_t channels, const T* __restrict table,
                    T* __restrict out) {
  for (int64_t c = 0; c < channels; ++c) {
    const T* mine = table + c * kByteValues;
    for (int64_t i = 0; i < pixels; ++i) {
      out[c * pixels + i] = mine[image[i * channels + c]];
    }
  }
}

template <class T>
void take(const TakeNormalized& p, const T* table, int64_t begin, int64_t end) {
  const int64_t numel = p.pixels * p.channels;
  for (int64_t b = begin; b < end; ++b) {
    const uint8_t* image = p.images + p.index[b] * numel;
    T* out = static_cast<T*>(p.out) + b * numel;
    if (p.channels == 1) {
      look_up(image, numel, table, out);
    } else if (!p.channels_last) {
      look_up_planes(image, p.pixels, p.channels, table, out);
    } else if (p.channels == 3) {
      look_up_three(image, p.pixels, table, out);
    } else {
      for (int64_t i = 0; i < numel; ++i) {
        out[i] = table[i % p.channels * kByteValues + image[i]];
      }
    }
  }
}

}  // namespace

void take_normalized_table(const TakeNormalized& p, void* table) {
  switch (p.dtype) {
    case Float::kDouble:
      return fill(p, static_cast<double*>(table));
    case Float::kFloat:
      return fill(p, static_cast<float*>(table));
    case Float::kBFloat16:
      return fill(p, static_cast<BFloat16*>(table));
    case Float::kHalf:
      return fill(p, static_cast<Half*>(table));
  }
}

void take_normalized(const TakeNormalized& p, const void* table, int64_t begin, int64_t end) {
  switch (p.dtype) {
    case Float::kDouble:
      return take(p, static_cast<const double*>(table), begin, end);
    case Float::kFloat:
      return take(p, static_cast<const float*>(table), begin, end);
    case Float::kBFloat16:
      return take(p, static_cast<const BFloat16*>(table), begin, end);
    case Float::kHalf:
      return take(p, static_cast<const Half*>(table), begin, end);
  }
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
