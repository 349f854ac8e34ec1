// Winograd CPU kernels of `conv_relu_pool_backward` for 5 x 5 kernels over many channels, compiled once per instruction
// set into namespace PFL_CAPABILITY: transposed transforms and products of cpu_winograd_kernel.cpp.
#include "ops/conv_relu_pool/cpu_winograd.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// Transformed gradients of a client's tiles, as [tile, output] for the outputs from `first_output` on.
template <class T>
struct WinogradGrads {
  using A = accumulate_t<T>;
  using Vector = typename Lanes<A>::Vector;
  using Integers = typename Lanes<A>::Integers;
  static constexpr int64_t kCount = Lanes<A>::kCount;
  const ConvReluPoolBackward& p;
  const Winograd<T>& winograd;
  int64_t client, first_output;

  void read(int64_t first, int64_t count, int64_t outputs, const Positions<A>& tiles) const {
    for (int64_t tile = 0; tile < count; ++tile) {
      const auto at = winograd.tile_origin(first + tile);
      for (int64_t output = 0; output < outputs; output += kCount) {
        const auto results = [&](Vector* grads) { read_tile(at, first_output + output, grads); };
        transform<ResultsToTile, A>(results, AllPositions<A>{tiles.at(tile, output), tiles.size});
      }
    }
  }

  // Gradient of one pooling window and the index of the result that receives it; inactive outside the image.
  Vector window(int64_t sample, int64_t row, int64_t column, int64_t output, Integers* winner) const {
    const ConvReluPoolSizes& s = p.sizes;
    const int64_t count = min(kCount, s.outputs - output);
    uint8_t bytes[kCount];
    std::memset(bytes, kConvInactive, sizeof bytes);
    if (row >= s.pooled_height || column >= s.pooled_width || count <= 0) {
      *winner = Integers{} + kConvInactive;
      return Vector{};
    }
    const uint8_t* index = p.index.data + client * p.index.client + sample * p.index.first + row * p.index.row +
                           column * p.index.column + output * p.index.second;
    if (p.index.second == 1 && count == kCount) {
      std::memcpy(bytes, index, kCount);
    } else {
      for (int64_t j = 0; j < count; ++j) {
        bytes[j] = index[j * p.index.second];
      }
    }
    typename Lanes<A>::Bytes packed;
    std::memcpy(&packed, bytes, sizeof packed);
    *winner = __builtin_convertvector(packed, Integers);
    const T* grads = static_cast<const T*>(p.grad.data) + client * p.grad.client + sample * p.grad.first +
                     row * p.grad.row + column * p.grad.column + output * p.grad.second;
    return Winograd<T>::read_vector(grads, p.grad.second, count);
  }

 private:
  void read_tile(const typename Winograd<T>::TileOrigin& at, int64_t output, Vector* grads) const {
    for (int64_t i = 0; i < 4; ++i) {
      Integers winner;
      const Vector value = window(at.sample, at.row / 2 + i / 2, at.column / 2 + i % 2, output, &winner);
      for (int64_t pixel = 0; pixel < 4; ++pixel) {
        const int64_t row = 2 * (i / 2) + pixel / 2, column = 2 * (i % 2) + pixel % 2;
        grads[row * kResults + column] = winner == static_cast<typename Integer<A>::type>(pixel) ? value : Vector{};
      }
    }
  }
};

// Gradients of the kernels and biases of one client for a range of output channels.
template <class T>
class WinogradWeightGradient {
 public:
  using A = accumulate_t<T>;
  using Vector = typename Lanes<A>::Vector;

  WinogradWeightGradient(const ConvReluPoolBackward& problem, int64_t outputs, Scratch& scratch)
      : p_(problem),
        winograd_(problem.sizes),
        pixels_(kConvTiles, winograd_.channels, scratch),
        grads_(kConvTiles, outputs, scratch),
        sums_(problem.sizes.channels, outputs, scratch) {
  }

  void run(int64_t client, int64_t first_output, int64_t outputs) {
    const ConvReluPoolSizes& s = p_.sizes;
    const WinogradGrads<T> grads{p_, winograd_, client, first_output};
    const int64_t tiles = s.samples * winograd_.in_sample;
    // Runs once without samples, which gives zero gradients.
    for (int64_t first = 0; first == 0 || first < tiles; first += kConvTiles) {
      const int64_t count = min(kConvTiles, tiles - first);
      winograd_.read_pixels(p_.x, client, first, count, pixels_);
      grads.read(first, count, outputs, grads_);
      for (int position = 0; position < kPositions; ++position) {
        multiply(pixels_.transposed(position), grads_.template matrix<const A>(position), s.channels, count, outputs,
                 sums_.matrix(position), first > 0);
      }
    }
    for (int64_t output = 0; output < outputs; output += Lanes<A>::kCount) {
      write_bias(grads, first_output + output);
      for (int64_t channel = 0; channel < s.channels; ++channel) {
        write_taps(client, channel, first_output, output);
      }
    }
  }

 private:
  void write_bias(const WinogradGrads<T>& grads, int64_t output) const {
    const ConvReluPoolSizes& s = p_.sizes;
    if (output >= s.outputs) {
      return;
    }
    Vector sum = {};
    for (int64_t sample = 0; sample < s.samples; ++sample) {
      for (int64_t i = 0; i < s.pooled_height * s.pooled_width; ++i) {
        typename Lanes<A>::Integers winner;
        const Vector value = grads.window(sample, i / s.pooled_width, i % s.pooled_width, output, &winner);
        sum = sum + (winner < kConvInactive ? value : Vector{});
      }
    }
    A values[Lanes<A>::kCount];
    Lanes<A>::store(sum, values);
    T* to = static_cast<T*>(p_.grad_bias) + grads.client * s.outputs + output;
    narrow(values, min(Lanes<A>::kCount, s.outputs - output), to);
  }

  void write_taps(int64_t client, int64_t channel, int64_t first_output, int64_t output) const {
    const Strided<void*>& w = p_.grad_weight;
    const int64_t count = min(Lanes<A>::kCount, p_.sizes.outputs - first_output - output);
    T* first = static_cast<T*>(w.data) + client * w.client + (first_output + output) * w.first + channel * w.second;
    const auto write = [&](const Vector* taps) { Winograd<T>::write_taps(taps, first, w, w.first, count); };
    transform<TileToTaps, A>(AllPositions<A>{sums_.at(channel, output), sums_.size}, write);
  }

  const ConvReluPoolBackward& p_;
  Winograd<T> winograd_;
  Positions<A> pixels_;  // [tile, channel]
  Positions<A> grads_;   // [tile, output]
  Positions<A> sums_;    // [channel, output]
};

// Gradients of the pixels of a group of samples of one client.
template <class T>
class WinogradInputGradient {
 public:
  using A = accumulate_t<T>;
  using Vector = typename Lanes<A>::Vector;

  WinogradInputGradient(const ConvReluPoolBackward& problem, Scratch& scratch)
      : p_(problem),
        winograd_(problem.sizes),
        kernels_(problem.sizes.outputs, winograd_.channels, scratch),
        grads_(kConvTiles, winograd_.outputs, scratch),
        tiles_(kConvTiles, winograd_.channels, scratch),
        width_(padded_side(problem.sizes.width, problem.sizes.pooled_width)),
        image_size_(padded_side(problem.sizes.height, problem.sizes.pooled_height) * width_ * winograd_.channels),
        images_(scratch.take<A>(conv_winograd_samples(problem.sizes) * image_size_)) {
  }

  void read_kernels(int64_t client) {
    const ConvReluPoolSizes& s = p_.sizes;
    winograd_.read_kernels(p_.weight, client, s.channels, p_.weight.second, s.outputs, p_.weight.first, kernels_);
  }

  void run(int64_t client, int64_t first_sample, int64_t samples) {
    const WinogradGrads<T> grads{p_, winograd_, client, 0};
    std::memset(images_, 0, static_cast<size_t>(samples * image_size_) * sizeof(A));
    const int64_t begin = first_sample * winograd_.in_sample, end = begin + samples * winograd_.in_sample;
    for (int64_t first = begin; first < end; first += kConvTiles) {
      const int64_t count = min(kConvTiles, end - first);
      grads.read(first, count, winograd_.outputs, grads_);
      for (int position = 0; position < kPositions; ++position) {
        multiply(grads_.template matrix<const A>(position), kernels_.template matrix<const A>(position), count,
                 p_.sizes.outputs, winograd_.channels, tiles_.matrix(position), false);
      }
      for (int64_t tile = 0; tile < count; ++tile) {
        const auto at = winograd_.tile_origin(first + tile);
        add_tile(tile, images_ + (at.sample - first_sample) * image_size_ +
                           (at.row * width_ + at.column) * winograd_.channels);
      }
    }
    for (int64_t sample = 0; sample < samples; ++sample) {
      write(client, first_sample + sample, images_ + sample * image_size_);
    }
  }

 private:
  // Height or width of an image, with padding and with the pixels that tiles cover beyond it.
  int64_t padded_side(int64_t side, int64_t pooled) const {
    const int64_t padded = side + 2 * p_.sizes.padding, tiles = kResults * ((pooled + 1) / 2) + kSide - kResults;
    return padded > tiles ? padded : tiles;
  }

  // Tiles overlap; their gradients are added in the order of the tiles.
  void add_tile(int64_t tile, A* corner) const {
    for (int64_t channel = 0; channel < winograd_.channels; channel += Lanes<A>::kCount) {
      const auto add = [&](const Vector* pixels) {
        for (int64_t i = 0; i < kPositions; ++i) {
          A* to = corner + (i / kSide * width_ + i % kSide) * winograd_.channels + channel;
          Lanes<A>::store(Lanes<A>::load(to) + pixels[i], to);
        }
      };
      transform<TileToPixels, A>(AllPositions<A>{tiles_.at(tile, channel), tiles_.size}, add);
    }
  }

  void write(int64_t client, int64_t sample, const A* image) const {
    const ConvReluPoolSizes& s = p_.sizes;
    const Strided<void*>& x = p_.grad_x;
    T* to = static_cast<T*>(x.data) + client * x.client + sample * x.first;
    for (int64_t row = 0; row < s.height; ++row) {
      for (int64_t column = 0; column < s.width; ++column) {
        const A* values = image + ((row + s.padding) * width_ + column + s.padding) * winograd_.channels;
        write_row(values, s.channels, x.second, to + row * x.row + column * x.column);
      }
    }
  }

  const ConvReluPoolBackward& p_;
  Winograd<T> winograd_;
  Positions<A> kernels_;  // [output, channel]
  Positions<A> grads_;    // [tile, output]
  Positions<A> tiles_;    // [tile, channel]
  int64_t width_, image_size_;
  A* images_;  // [sample, row, column, channel], padded to whole tiles
};

}  // namespace

void conv_relu_pool_winograd_grad_weight(const ConvReluPoolBackward& p, int64_t begin, int64_t end) {
  with_type(p.sizes.dtype, [&](auto type) {
    using T = decltype(type);
    // All consecutive blocks of one client share the transform of its pixels.
    const int64_t blocks = conv_output_blocks(p.sizes), most = min(end - begin, blocks);
    WithScratch<WinogradWeightGradient<T>> gradient("conv_relu_pool_backward", p, most * kConvOutputs);
    for (int64_t i = begin; i < end;) {
      const int64_t count = min(end - i, blocks - i % blocks);
      gradient->run(i / blocks, i % blocks * kConvOutputs, count * kConvOutputs);
      i += count;
    }
  });
}

void conv_relu_pool_winograd_grad_x(const ConvReluPoolBackward& p, int64_t begin, int64_t end) {
  with_type(p.sizes.dtype, [&](auto type) {
    using T = decltype(type);
    WithScratch<WinogradInputGradient<T>> gradient("conv_relu_pool_backward", p);
    const int64_t count = conv_winograd_samples(p.sizes), groups = conv_winograd_groups(p.sizes);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % groups * count;
      if (i == begin || first == 0) {
        gradient->read_kernels(i / groups);
      }
      gradient->run(i / groups, first, min(count, p.sizes.samples - first));
    }
  });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
