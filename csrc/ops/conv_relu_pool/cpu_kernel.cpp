// CPU kernel of `conv_relu_pool`, compiled once per instruction set into namespace PFL_CAPABILITY. Lanes lie across
// output channels, never along a sum, so all thread counts and all instruction sets with FMA give the same bits.
#include "ops/conv_relu_pool/cpu_image.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// Packed biases and kernels of a client: for each tap all output channels, zero-padded to whole vectors.
template <class A>
struct Weights {
  int64_t pitch;  // stride of taps
  A *bias, *taps;

  Weights(const ConvReluPoolSizes& s, Scratch& scratch)
      : pitch(conv_round_up(s.outputs, kConvOutputs)),
        bias(scratch.take_zeros<A>(pitch)),
        taps(scratch.take_zeros<A>(s.channels * s.kernel * s.kernel * pitch)) {
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

// Sums of kTileWindows neighbouring pooling windows, four pixels each, for kVectors vectors of channels.
template <class A, int kVectors, int kTileWindows>
struct Tile {
  using Vector = typename Lanes<A>::Vector;
  static constexpr int64_t kChannels = kVectors * Lanes<A>::kCount;
  Vector sums[2][2 * kTileWindows][kVectors];

  inline __attribute__((always_inline)) void start(const A* bias) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const Vector value = Lanes<A>::load(bias + v * Lanes<A>::kCount);
#pragma GCC unroll 8
      for (int pixel = 0; pixel < 4 * kTileWindows; ++pixel) {
        sums[pixel / (2 * kTileWindows)][pixel % (2 * kTileWindows)][v] = value;
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
      for (int x = 0; x < 2 * kTileWindows; ++x) {
        const Vector pixel = Lanes<A>::broadcast(pixels + y * pitch + x);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          sums[y][x][v] = multiply_add(weight[v], pixel, sums[y][x][v]);
        }
      }
    }
  }

  template <class T>
  inline __attribute__((always_inline)) void finish(int window, int64_t count, T* out, uint8_t* index) const {
    A values[kChannels];
    uint8_t winners[kChannels];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const Vector four[4] = {sums[0][2 * window][v], sums[0][2 * window + 1][v], sums[1][2 * window][v],
                              sums[1][2 * window + 1][v]};
      const WindowMax<A> pooled(four);
      Lanes<A>::store(pooled.values, values + v * Lanes<A>::kCount);
      std::memcpy(winners + v * Lanes<A>::kCount, &pooled.index, sizeof pooled.index);
    }
    if (count == kChannels) {  // compile-time size
      narrow(values, kChannels, out);
      std::memcpy(index, winners, kChannels);
    } else {
      narrow(values, count, out);
      std::memcpy(index, winners, static_cast<size_t>(count));
    }
  }
};

// Results of one sample for at most kVectors vectors of output channels from `first` on.
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
        count_(min(kVectors * Lanes<A>::kCount, sizes.outputs - first)),
        out_(out + first),
        index_(index + first) {
  }

  void run() const {
    for (int64_t y = 0; y < s_.pooled_height; ++y) {
      int64_t x = 0;
      for (; x + kConvWindows <= s_.pooled_width; x += kConvWindows) {
        windows<kConvWindows>(y, x);
      }
      for (; x < s_.pooled_width; ++x) {
        windows<1>(y, x);
      }
    }
  }

 private:
  template <int kTileWindows>
  void windows(int64_t y, int64_t x) const {
    Tile<A, kVectors, kTileWindows> tile;
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
    for (int window = 0; window < kTileWindows; ++window) {
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

template <class A>
struct Operands {
  Weights<A> weights;
  Image<A> image;

  Operands(const ConvReluPoolSizes& s, Scratch& scratch) : weights(s, scratch), image(s, 1, scratch) {
  }
};

template <class T>
void forward(const ConvReluPool& p, int64_t begin, int64_t end) {
  using A = accumulate_t<T>;
  const ConvReluPoolSizes& s = p.sizes;
  WithScratch<Operands<A>> operands("conv_relu_pool", s);
  Weights<A>& weights = operands->weights;
  Image<A>& image = operands->image;
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

}  // namespace

void conv_relu_pool(const ConvReluPool& p, int64_t begin, int64_t end) {
  with_type(p.sizes.dtype, [&](auto type) { forward<decltype(type)>(p, begin, end); });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
