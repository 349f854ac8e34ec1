// Winograd CPU kernel of `conv_relu_pool` for 5 x 5 kernels over many channels, compiled once per instruction set into
// namespace PFL_CAPABILITY: transforms tiles of pixels and kernels, multiplies them per position and transforms back.
#include "ops/conv_relu_pool/cpu_winograd.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

template <class T>
class WinogradForward {
 public:
  using A = accumulate_t<T>;
  using Vector = typename Lanes<A>::Vector;

  WinogradForward(const ConvReluPool& problem, Scratch& scratch)
      : p_(problem),
        winograd_(problem.sizes),
        kernels_(problem.sizes.channels, winograd_.outputs, scratch),
        pixels_(kConvTiles, winograd_.channels, scratch),
        sums_(kConvTiles, winograd_.outputs, scratch) {
  }

  void read_kernels(int64_t client) {
    const ConvReluPoolSizes& s = p_.sizes;
    winograd_.read_kernels(p_.weight, client, s.outputs, p_.weight.first, s.channels, p_.weight.second, kernels_);
  }

  void run(int64_t client, int64_t first, int64_t count) {
    const ConvReluPoolSizes& s = p_.sizes;
    winograd_.read_pixels(p_.x, client, first, count, pixels_);
    for (int position = 0; position < kPositions; ++position) {
      multiply(pixels_.template matrix<const A>(position), kernels_.template matrix<const A>(position), count,
               s.channels, winograd_.outputs, sums_.matrix(position), false);
    }
    for (int64_t tile = 0; tile < count; ++tile) {
      for (int64_t output = 0; output < s.outputs; output += Lanes<A>::kCount) {
        finish(client, winograd_.tile_origin(first + tile), tile, output);
      }
    }
  }

 private:
  void finish(int64_t client, const typename Winograd<T>::TileOrigin& at, int64_t tile, int64_t output) const {
    const ConvReluPoolSizes& s = p_.sizes;
    const int64_t count = min(Lanes<A>::kCount, s.outputs - output);
    const T* biases = static_cast<const T*>(p_.bias) + client * s.outputs + output;
    const Vector bias = Winograd<T>::read_vector(biases, 1, count);
    const auto write = [&](const Vector* results) {
      for (int64_t window = 0; window < kResults; ++window) {
        const int64_t i = window / 2, j = window % 2, row = at.row / 2 + i, column = at.column / 2 + j;
        if (row < s.pooled_height && column < s.pooled_width) {
          const Vector* corner = results + 2 * i * kResults + 2 * j;
          const Vector four[4] = {corner[0] + bias, corner[1] + bias, corner[kResults] + bias,
                                  corner[kResults + 1] + bias};
          const int64_t sample = client * s.samples + at.sample;
          const int64_t to = ((sample * s.pooled_height + row) * s.pooled_width + column) * s.outputs + output;
          const WindowMax<A> pooled(four);
          A values[Lanes<A>::kCount];
          Lanes<A>::store(pooled.values, values);
          narrow(values, count, static_cast<T*>(p_.out) + to);
          std::memcpy(p_.index + to, &pooled.index, static_cast<size_t>(count));
        }
      }
    };
    transform<TileToResults, A>(AllPositions<A>{sums_.at(tile, output), sums_.size}, write);
  }

  const ConvReluPool& p_;
  Winograd<T> winograd_;
  Positions<A> kernels_;  // [channel, output]
  Positions<A> pixels_;   // [tile, channel]
  Positions<A> sums_;     // [tile, output]
};

}  // namespace

void conv_relu_pool_winograd(const ConvReluPool& p, int64_t begin, int64_t end) {
  with_type(p.sizes.dtype, [&](auto type) {
    using T = decltype(type);
    WithScratch<WinogradForward<T>> forward("conv_relu_pool", p);
    const int64_t tiles = p.sizes.samples * conv_tiles(p.sizes), blocks = conv_tile_blocks(tiles);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % blocks * kConvTiles;
      if (i == begin || first == 0) {
        forward->read_kernels(i / blocks);
      }
      forward->run(i / blocks, first, min(kConvTiles, tiles - first));
    }
  });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
