// CPU kernels of `take_normalized`, compiled once per instruction set. Two paths with the same formula and bits as the
// reference: a table of the results of all 256 byte values of each channel, or every value computed.
#include "ops/take_normalized/problem.h"

#include "cpu/simd/convert.h"

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

// mean and std of interleaved channels, repeated to a period that gives long vector loops.
template <class A>
struct Period {
  A mean[kMaxChannelsInOrder], std[kMaxChannelsInOrder];
  int64_t length;

  explicit Period(const TakeNormalized& p) : length(p.channels) {
    while (length * 2 <= kMaxChannelsInOrder) {
      length *= 2;
    }
    for (int64_t i = 0; i < length; ++i) {
      mean[i] = static_cast<const A*>(p.mean)[i % p.channels];
      std[i] = static_cast<const A*>(p.std)[i % p.channels];
    }
  }
};

template <class A>
void normalise(const uint8_t* __restrict bytes, int64_t count, const A* __restrict mean, const A* __restrict std,
               A* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = (static_cast<A>(bytes[i]) / A(255) - mean[i]) / std[i];
  }
}

template <class A>
void normalise_images(const TakeNormalized& p, int64_t begin, int64_t end) {
  const Period<A> period(p);
  const int64_t numel = p.pixels * p.channels;
  for (int64_t b = begin; b < end; ++b) {
    const uint8_t* image = p.images + p.index[b] * numel;
    A* out = static_cast<A*>(p.out) + b * numel;
    for (int64_t i = 0; i < numel; i += period.length) {
      const int64_t count = numel - i < period.length ? numel - i : period.length;
      normalise(image + i, count, period.mean, period.std, out + i);
    }
  }
}

template <class T>
void look_up(const uint8_t* __restrict image, int64_t numel, int64_t channels, const T* __restrict table,
             T* __restrict out) {
  for (int64_t i = 0; i < numel; i += channels) {
    for (int64_t c = 0; c < channels; ++c) {
      out[i + c] = table[c * kByteValues + image[i + c]];
    }
  }
}

template <class T>
void look_up_planes(const uint8_t* __restrict image, int64_t pixels, int64_t channels, const T* __restrict table,
                    T* __restrict out) {
  for (int64_t c = 0; c < channels; ++c) {
    const T* channel_table = table + c * kByteValues;
    for (int64_t i = 0; i < pixels; ++i) {
      out[c * pixels + i] = channel_table[image[i * channels + c]];
    }
  }
}

template <class T>
void look_up_images(const TakeNormalized& p, const T* table, int64_t begin, int64_t end) {
  const int64_t numel = p.pixels * p.channels;
  for (int64_t b = begin; b < end; ++b) {
    const uint8_t* image = p.images + p.index[b] * numel;
    T* out = static_cast<T*>(p.out) + b * numel;
    if (p.channels == 1) {
      look_up(image, numel, 1, table, out);
    } else if (!p.channels_last) {
      look_up_planes(image, p.pixels, p.channels, table, out);
    } else if (p.channels == 3) {
      look_up(image, numel, 3, table, out);
    } else {
      look_up(image, numel, p.channels, table, out);
    }
  }
}

template <class T>
void take(const TakeNormalized& p, const void* table, int64_t begin, int64_t end) {
  if (table == nullptr) {
    normalise_images<accumulate_t<T>>(p, begin, end);
  } else {
    look_up_images(p, static_cast<const T*>(table), begin, end);
  }
}

}  // namespace

void take_normalized_table(const TakeNormalized& p, void* table) {
  with_type(p.dtype, [&](auto type) { fill(p, static_cast<decltype(type)*>(table)); });
}

void take_normalized(const TakeNormalized& p, const void* table, int64_t begin, int64_t end) {
  with_type(p.dtype, [&](auto type) { take<decltype(type)>(p, table, begin, end); });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
