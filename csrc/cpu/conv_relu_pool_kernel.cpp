// CPU kernels of `conv_relu_pool`, compiled once per instruction set into namespace PFL_CAPABILITY. A sample is copied
// into a padded image of floats that stays in the first-level cache. The forward computes output channels side by side,
// the weight gradient the taps of a kernel's row: no sum is ever split over lanes, so that every instruction set and
// thread count gives the same bits.
#include "conv_relu_pool_kernel.h"

#include "convert.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// As much as registers hold: vectors of channels, of the widest kind, and pooling windows side by side.
#if defined(__AVX512F__)
constexpr int64_t kVectorBytes = 64;
constexpr int kWindows = 2;
#elif defined(__AVX2__)
constexpr int64_t kVectorBytes = 32;
constexpr int kWindows = 1;
#else
constexpr int64_t kVectorBytes = 16;
constexpr int kWindows = 1;
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

// A client's biases and kernels: for each tap all output channels, and zeros up to a whole number of vectors.
template <class A>
struct Weights {
  A *bias, *taps;
  int64_t pitch;  // distance of taps

  Weights(const ConvReluPoolSizes& s, A* memory)
      : bias(memory), taps(memory + conv_round_up(s.outputs, kConvOutputs)), pitch(taps - bias) {
  }

  template <class T>
  void read(const ConvReluPoolSizes& s, const Strided<const void*>& weight, const void* biases, int64_t client) {
    read_row(static_cast<const T*>(biases) + client * s.outputs, 1, s.outputs, bias);
    const T* from = static_cast<const T*>(weight.data) + client * weight.client;
    A* to = taps;
    for (int64_t channel = 0; channel < s.channels; ++channel) {
      for (int64_t y = 0; y < s.kernel; ++y) {
        for (int64_t x = 0; x < s.kernel; ++x, to += pitch) {
          read_row(from + channel * weight.second + y * weight.row + x * weight.column, weight.first, s.outputs, to);
        }
      }
    }
  }
};

// The sums of kAcross pooling windows side by side, four pixels each, for kVectors vectors of channels.
template <class A, int kVectors, int kAcross>
struct Tile {
  using Vector = typename Lanes<A>::Vector;
  static constexpr int64_t kChannels = kVectors * Lanes<A>::kCount;
  Vector sums[2][2 * kAcross][kVectors];

  inline __attribute__((always_inline)) void start(const A* bias) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const Vector value = Lanes<A>::load(bias + v * Lanes<A>::kCount);
#pragma GCC unroll 8
      for (int pixel = 0; pixel < 4 * kAcross; ++pixel) {
        sums[pixel / (2 * kAcross)][pixel % (2 * kAcross)][v] = value;
      }
    }
  }

  inline __attribute__((always_inline)) void add(const A* pixels, int64_t pitch, const A* weights) {
    Vector weight[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      weight[v] = Lanes<A>::load(weights + v * Lanes<A>::kCount);
    }
#pragma GCC unroll 2
    for (int y = 0; y < 2; ++y) {
#pragma GCC unroll 4
      for (int x = 0; x < 2 * kAcross; ++x) {
        const A pixel = pixels[y * pitch + x];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          sums[y][x][v] = sums[y][x][v] + weight[v] * pixel;
        }
      }
    }
  }

  // The largest of a window's four sums, or 0, and which it was: the first of equal ones, the last that is NaN.
  template <class T>
  inline __attribute__((always_inline)) void finish(int window, int64_t count, T* out, uint8_t* index) const {
    using Integers = typename Lanes<A>::Integers;
    using Bytes = typename Lanes<A>::Bytes;
    A values[kChannels];
    uint8_t winners[kChannels];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      Vector best = sums[0][2 * window][v];
      Integers winner = {};
#pragma GCC unroll 4
      for (int i = 1; i < 4; ++i) {
        const Vector other = sums[i / 2][2 * window + i % 2][v];
        const Integers wins = (other > best) | (other != other);
        best = wins ? other : best;
        winner = wins ? Integers{} + i : winner;
      }
      const Integers cut = best <= A(0);
      Lanes<A>::store(cut ? Vector{} : best, values + v * Lanes<A>::kCount);
      const Bytes bytes = __builtin_convertvector(cut ? Integers{} + kConvCut : winner, Bytes);
      std::memcpy(winners + v * Lanes<A>::kCount, &bytes, sizeof bytes);
    }
    if (count == kChannels) {  // a size that the compiler knows
      narrow(values, kChannels, out);
      std::memcpy(index, winners, kChannels);
    } else {
      narrow(values, count, out);
      std::memcpy(index, winners, static_cast<size_t>(count));
    }
  }
};

// The results of one sample for the channels from `first` on, at most kVectors vectors of them.
template <class T, int kVectors>
class Convolution {
 public:
  using A = accumulate_t<T>;

  Convolution(const ConvReluPoolSizes& sizes, const Image<A>& image, const Weights<A>& weights, int64_t first, T* out,
              uint8_t* index)
      : s_(sizes),
        image_(image),
        bias_(weights.bias + first),
        taps_(weights.taps + first),
        tap_pitch_(weights.pitch),
        count_(least(kVectors * Lanes<A>::kCount, sizes.outputs - first)),
        out_(out + first),
        index_(index + first) {
  }

  void run() const {
    for (int64_t y = 0; y < s_.pooled_height; ++y) {
      int64_t x = 0;
      for (; x + kWindows <= s_.pooled_width; x += kWindows) {
        windows<kWindows>(y, x);
      }
      for (; x < s_.pooled_width; ++x) {
        windows<1>(y, x);
      }
    }
  }

 private:
  template <int kAcross>
  void windows(int64_t y, int64_t x) const {
    Tile<A, kVectors, kAcross> tile;
    tile.start(bias_);
    const A* weights = taps_;
    for (int64_t channel = 0; channel < s_.channels; ++channel) {
      const A* row = image_.values + channel * image_.plane + 2 * y * image_.pitch + 2 * x;
      for (int64_t i = 0; i < s_.kernel; ++i, row += image_.pitch) {
        for (int64_t j = 0; j < s_.kernel; ++j, weights += tap_pitch_) {
          tile.add(row + j, image_.pitch, weights);
        }
      }
    }
#pragma GCC unroll 2
    for (int window = 0; window < kAcross; ++window) {
      const int64_t at = (y * s_.pooled_width + x + window) * s_.outputs;
      tile.finish(window, count_, out_ + at, index_ + at);
    }
  }

  const ConvReluPoolSizes& s_;
  const Image<A>& image_;
  const A *bias_, *taps_;
  int64_t tap_pitch_, count_;
  T* out_;
  uint8_t* index_;
};

template <class T>
void forward(const ConvReluPool& p, int64_t begin, int64_t end, double* scratch) {
  using A = accumulate_t<T>;
  const ConvReluPoolSizes& s = p.sizes;
  Weights<A> weights(s, aligned<A>(scratch));
  Image<A> image(s, weights.bias + conv_packed_weights(s));
  const int64_t numel = s.pooled_height * s.pooled_width * s.outputs;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t client = i / s.samples, sample = i % s.samples;
    if (i == begin || sample == 0) {
      weights.template read<T>(s, p.weight, p.bias, client);
    }
    image.template read<T>(s, p.x, client, sample);
    T* out = static_cast<T*>(p.out) + i * numel;
    uint8_t* index = p.index + i * numel;
    int64_t first = 0;
    for (; first + Lanes<A>::kCount < s.outputs; first += 2 * Lanes<A>::kCount) {
      Convolution<T, 2>(s, image, weights, first, out, index).run();
    }
    if (first < s.outputs) {
      Convolution<T, 1>(s, image, weights, first, out, index).run();
    }
  }
}

// The gradients of a sample's results in a block of output channels, 0 where ReLU cut, and the places in a channel of
// the image where their winners' windows begin.
template <class T>
struct Grads {
  using A = accumulate_t<T>;
  A* values;        // [pixels, kConvOutputs]
  int32_t* places;  // [pixels, kConvOutputs]
  int64_t pixels;

  Grads(const ConvReluPoolSizes& s, A* memory)
      : values(memory),
        places(reinterpret_cast<int32_t*>(memory + s.pooled_height * s.pooled_width * kConvOutputs)),
        pixels(s.pooled_height * s.pooled_width) {
  }

  // twin: the distance of a second image, shifted so that there a row of taps does not cross a cache line where it
  // does in the first one; 0 without.
  void read(const ConvReluPoolBackward& p, int64_t client, int64_t sample, int64_t first, int64_t count, int64_t pitch,
            int64_t twin) {
    if (count == kConvOutputs && p.grad.second == 1 && p.index.second == 1) {  // numbers that the compiler knows
      read_strided(p, client, sample, first, kConvOutputs, pitch, twin, 1, 1);
    } else {
      read_strided(p, client, sample, first, count, pitch, twin, p.grad.second, p.index.second);
    }
  }

  void add_to(A* totals) const {
    A sums[kConvOutputs];  // a copy that no pointer can reach stays in registers
    std::memcpy(sums, totals, sizeof sums);
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {
      for (int64_t j = 0; j < kConvOutputs; ++j) {
        sums[j] = sums[j] + values[pixel * kConvOutputs + j];
      }
    }
    std::memcpy(totals, sums, sizeof sums);
  }

 private:
  inline __attribute__((always_inline)) void read_strided(const ConvReluPoolBackward& p, int64_t client, int64_t sample,
                                                          int64_t first, int64_t count, int64_t pitch, int64_t twin,
                                                          int64_t grad_stride, int64_t index_stride) {
    const ConvReluPoolSizes& s = p.sizes;
    const Strided<const void*>& g = p.grad;
    const Strided<const uint8_t*>& w = p.index;
    const T* grads = static_cast<const T*>(g.data) + client * g.client + sample * g.first + first * grad_stride;
    const uint8_t* winners = w.data + client * w.client + sample * w.first + first * index_stride;
    for (int64_t y = 0, at = 0; y < s.pooled_height; ++y) {
      for (int64_t x = 0; x < s.pooled_width; ++x, at += kConvOutputs) {
        read_row(grads + y * g.row + x * g.column, grad_stride, count, values + at);
        const int64_t top = 2 * y * pitch, left = place_of(2 * x, twin), right = place_of(2 * x + 1, twin);
        read_winners(winners + y * w.row + x * w.column, index_stride, count, static_cast<int32_t>(top + left),
                     static_cast<int32_t>(top + right), static_cast<int32_t>(pitch), values + at, places + at);
      }
    }
  }

  static int64_t place_of(int64_t column, int64_t twin) {
    return column % kConvLine > kConvLine - kConvRowLanes ? column + twin : column;
  }

  static inline __attribute__((always_inline)) void read_winners(const uint8_t* winners, int64_t stride, int64_t count,
                                                                 int32_t left, int32_t right, int32_t pitch,
                                                                 A* __restrict values, int32_t* __restrict places) {
    for (int64_t j = 0; j < count; ++j) {
      const int32_t winner = winners[j * stride];
      values[j] = winner >= kConvCut ? A(0) : values[j];
      places[j] = (winner % 2 ? right : left) + (winner / 2 % 2 ? pitch : 0);
    }
  }
};

// The sums of gradient times pixel for the k x k taps of kChannels kernels: a row of taps in the lanes of a vector, or
// of several where vectors are short.
template <class A, int kKernel, int kChannels>
class TapSums {
 public:
  // sums: [kKernel, kConvRowLanes] for each channel, `distance` apart.
  static void add(const A* image, int64_t pitch, const A* grads, const int32_t* places, int64_t pixels, A* sums,
                  int64_t distance) {
    TapSums tile;
#pragma GCC unroll 32
    for (int i = 0; i < kChannels * kPieces; ++i) {
      tile.pieces_[i / kPieces][i % kPieces] = at(sums + i / kPieces * distance + i % kPieces * kLanes);
    }
    for (int64_t pixel = 0; pixel < pixels; ++pixel, grads += kConvOutputs, places += kConvOutputs) {
#pragma GCC unroll 2
      for (int channel = 0; channel < kChannels; ++channel) {
        tile.add_pixel(channel, image + places[channel], pitch, grads[channel]);
      }
    }
#pragma GCC unroll 32
    for (int i = 0; i < kChannels * kPieces; ++i) {
      at(sums + i / kPieces * distance + i % kPieces * kLanes) = tile.pieces_[i / kPieces][i % kPieces];
    }
  }

 private:
  static constexpr int kLanes = Lanes<A>::kCount < kConvRowLanes ? Lanes<A>::kCount : kConvRowLanes;
  static constexpr int kInRow = kConvRowLanes / kLanes;
  static constexpr int kPieces = kKernel * kInRow;
  typedef A Piece __attribute__((vector_size(kLanes * sizeof(A))));
  typedef A Unaligned __attribute__((vector_size(kLanes * sizeof(A)), aligned(alignof(A)), may_alias));

  static inline __attribute__((always_inline)) Unaligned& at(A* values) {
    return *reinterpret_cast<Unaligned*>(values);
  }

  inline __attribute__((always_inline)) void add_pixel(int channel, const A* window, int64_t pitch, A grad) {
#pragma GCC unroll 32
    for (int i = 0; i < kPieces; ++i) {
      const A* pixels = window + i / kInRow * pitch + i % kInRow * kLanes;
      pieces_[channel][i] = pieces_[channel][i] + *reinterpret_cast<const Unaligned*>(pixels) * grad;
    }
  }

  Piece pieces_[kChannels][kPieces];
};

// One block of output channels of one client.
template <class T, int kKernel>
class WeightGradient {
 public:
  using A = accumulate_t<T>;

  WeightGradient(const ConvReluPoolBackward& problem, double* scratch)
      : p_(problem),
        s_(problem.sizes),
        image_(s_, aligned<A>(scratch)),
        grads_(s_, image_.values + 2 * conv_padded_sample(s_)),
        taps_(grads_.values + conv_staged_grads(s_)),
        twin_(conv_padded_sample(s_) - kConvRowLanes),
        distance_(s_.channels * kKernel * kConvRowLanes),
        bias_(taps_ + kConvOutputs * distance_) {
  }

  void run(int64_t client, int64_t first) {
    const int64_t count = least(kConvOutputs, s_.outputs - first);
    for (int64_t i = 0; i < conv_weight_sums(s_); ++i) {
      taps_[i] = A(0);
    }
    for (int64_t sample = 0; sample < s_.samples; ++sample) {
      image_.template read<T>(s_, p_.x, client, sample);
      std::memcpy(image_.values + twin_, image_.values, static_cast<size_t>(s_.channels * image_.plane) * sizeof(A));
      grads_.read(p_, client, sample, first, count, image_.pitch, twin_);
      add_sample(count);
    }
    write(client, first, count);
  }

 private:
#if defined(__AVX2__)
  static constexpr int kChannels = kKernel <= 5 ? 2 : 1;  // whose sums fit into registers
#else
  static constexpr int kChannels = 1;
#endif

  void add_sample(int64_t count) {
    grads_.add_to(bias_);
    for (int64_t channel = 0; channel < s_.channels; ++channel) {
      const A* plane = image_.values + channel * image_.plane;
      A* sums = taps_ + channel * kKernel * kConvRowLanes;
      for (int64_t j = 0; j < count; j += kChannels) {
        TapSums<A, kKernel, kChannels>::add(plane, image_.pitch, grads_.values + j, grads_.places + j, grads_.pixels,
                                            sums + j * distance_, distance_);
      }
    }
  }

  void write(int64_t client, int64_t first, int64_t count) const {
    narrow(bias_, count, static_cast<T*>(p_.grad_bias) + client * s_.outputs + first);
    const Strided<void*>& w = p_.grad_weight;
    for (int64_t j = 0; j < count; ++j) {
      T* to = static_cast<T*>(w.data) + client * w.client + (first + j) * w.first;
      const A* row = taps_ + j * distance_;
      for (int64_t channel = 0; channel < s_.channels; ++channel) {
        for (int64_t y = 0; y < kKernel; ++y, row += kConvRowLanes) {
          write_row(row, kKernel, w.column, to + channel * w.second + y * w.row);
        }
      }
    }
  }

  const ConvReluPoolBackward& p_;
  const ConvReluPoolSizes& s_;
  Image<A> image_;
  Grads<T> grads_;
  A* taps_;       // [kConvOutputs, channels, kKernel, kConvRowLanes]
  int64_t twin_;  // half a cache line off a whole number of them
  int64_t distance_;
  A* bias_;  // [kConvOutputs]
};

template <class T, int kKernel>
void grad_weight(const ConvReluPoolBackward& p, int64_t begin, int64_t end, double* scratch) {
  WeightGradient<T, kKernel> gradient(p, scratch);
  const int64_t blocks = conv_round_up(p.sizes.outputs, kConvOutputs) / kConvOutputs;
  for (int64_t task = begin; task < end; ++task) {
    gradient.run(task / blocks, task % blocks * kConvOutputs);
  }
}

// One sample: each result's gradient times its kernel goes to the window that won.
template <class T, int kKernel>
class InputGradient {
 public:
  using A = accumulate_t<T>;

  InputGradient(const ConvReluPoolBackward& problem, double* scratch)
      : p_(problem),
        s_(problem.sizes),
        image_(s_, reinterpret_cast<A*>(scratch)),
        grads_(s_, image_.values + conv_padded_sample(s_)),
        kernels_(grads_.values + conv_staged_grads(s_)) {
  }

  void run(int64_t client, int64_t sample) {
    for (int64_t i = 0; i < conv_padded_sample(s_); ++i) {
      image_.values[i] = A(0);
    }
    for (int64_t first = 0; first < s_.outputs; first += kConvOutputs) {
      const int64_t count = least(kConvOutputs, s_.outputs - first);
      grads_.read(p_, client, sample, first, count, image_.pitch, 0);
      for (int64_t pixel = 0; pixel < grads_.pixels; ++pixel) {
        for (int64_t j = 0; j < count; ++j) {
          const int64_t at = pixel * kConvOutputs + j;
          add_kernel(first + j, image_.values + grads_.places[at], grads_.values[at]);
        }
      }
    }
    image_.template write<T>(s_, p_.grad_x, client, sample);
  }

  void read_kernels(int64_t client) {
    const Strided<const void*>& w = p_.weight;
    A* to = kernels_;
    for (int64_t output = 0; output < s_.outputs; ++output) {
      const T* from = static_cast<const T*>(w.data) + client * w.client + output * w.first;
      for (int64_t channel = 0; channel < s_.channels; ++channel) {
        for (int64_t y = 0; y < kKernel; ++y, to += kKernel) {
          read_row(from + channel * w.second + y * w.row, w.column, kKernel, to);
        }
      }
    }
  }

 private:
  void add_kernel(int64_t output, A* __restrict window, A grad) const {
    const A* __restrict kernel = kernels_ + output * s_.channels * kKernel * kKernel;
    for (int64_t channel = 0; channel < s_.channels; ++channel, window += image_.plane) {
      for (int64_t y = 0; y < kKernel; ++y, kernel += kKernel) {
        for (int64_t x = 0; x < kKernel; ++x) {
          window[y * image_.pitch + x] = window[y * image_.pitch + x] + grad * kernel[x];
        }
      }
    }
  }

  const ConvReluPoolBackward& p_;
  const ConvReluPoolSizes& s_;
  Image<A> image_;
  Grads<T> grads_;
  A* kernels_;  // [outputs, channels, kKernel, kKernel]
};

template <class T, int kKernel>
void grad_x(const ConvReluPoolBackward& p, int64_t begin, int64_t end, double* scratch) {
  InputGradient<T, kKernel> gradient(p, scratch);
  for (int64_t i = begin; i < end; ++i) {
    if (i == begin || i % p.sizes.samples == 0) {
      gradient.read_kernels(i / p.sizes.samples);
    }
    gradient.run(i / p.sizes.samples, i % p.sizes.samples);
  }
}

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

// Calls use(constant) for the size of the kernel.
template <class Use>
void with_kernel(int64_t kernel, Use use) {
  switch (kernel) {
    case 1:
      return use(Constant<1>{});
    case 2:
      return use(Constant<2>{});
    case 3:
      return use(Constant<3>{});
    case 4:
      return use(Constant<4>{});
    case 5:
      return use(Constant<5>{});
    case 6:
      return use(Constant<6>{});
    case 7:
      return use(Constant<7>{});
  }
}

}  // namespace

void conv_relu_pool(const ConvReluPool& p, int64_t begin, int64_t end, double* scratch) {
  with_type(p.sizes.dtype, [&](auto type) { forward<decltype(type)>(p, begin, end, scratch); });
}

void conv_relu_pool_grad_weight(const ConvReluPoolBackward& p, int64_t begin, int64_t end, double* scratch) {
  with_type(p.sizes.dtype, [&](auto type) {
    with_kernel(p.sizes.kernel,
                [&](auto kernel) { grad_weight<decltype(type), decltype(kernel)::value>(p, begin, end, scratch); });
  });
}

void conv_relu_pool_grad_x(const ConvReluPoolBackward& p, int64_t begin, int64_t end, double* scratch) {
  with_type(p.sizes.dtype, [&](auto type) {
    with_kernel(p.sizes.kernel,
                [&](auto kernel) { grad_x<decltype(type), decltype(kernel)::value>(p, begin, end, scratch); });
  });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
