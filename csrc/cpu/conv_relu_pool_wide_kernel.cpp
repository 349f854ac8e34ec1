// CPU kernel of `conv_relu_pool` for 5 x 5 kernels over many channels, compiled once per instruction set into namespace
// PFL_CAPABILITY: tiles of pixels and kernels are transformed, multiplied position by position and transformed back.
#include "conv_wide.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

template <class T>
class WideForward {
 public:
  using A = accumulate_t<T>;
  using Vector = typename Lanes<A>::Vector;

  WideForward(const ConvReluPool& problem, A* scratch)
      : p_(problem),
        wide_(problem.sizes),
        kernels_(scratch, problem.sizes.channels, wide_.outputs),
        pixels_(kernels_.end(), kConvTiles, wide_.channels),
        sums_(pixels_.end(), kConvTiles, wide_.outputs) {
  }

  void read_kernels(int64_t client) {
    const ConvReluPoolSizes& s = p_.sizes;
    wide_.read_kernels(p_.weight, client, s.outputs, p_.weight.first, s.channels, p_.weight.second, kernels_);
  }

  void run(int64_t client, int64_t first, int64_t count) {
    const ConvReluPoolSizes& s = p_.sizes;
    wide_.read_pixels(p_.x, client, first, count, pixels_);
    for (int position = 0; position < kPositions; ++position) {
      multiply<A>(pixels_.template matrix<const A>(position), kernels_.template matrix<const A>(position), count,
                  s.channels, wide_.outputs, sums_.matrix(position), false);
    }
    for (int64_t tile = 0; tile < count; ++tile) {
      for (int64_t output = 0; output < s.outputs; output += Lanes<A>::kCount) {
        finish(client, wide_.place(first + tile), tile, output);
      }
    }
  }

 private:
  void finish(int64_t client, const typename Wide<T>::Place& at, int64_t tile, int64_t output) const {
    const ConvReluPoolSizes& s = p_.sizes;
    const int64_t count = least(Lanes<A>::kCount, s.outputs - output);
    const T* biases = static_cast<const T*>(p_.bias) + client * s.outputs + output;
    const Vector bias = Wide<T>::read_vector(biases, 1, count);
    const auto write = [&](const Vector* results) {
      for (int64_t window = 0; window < kResults; ++window) {
        const int64_t i = window / 2, j = window % 2, row = at.row / 2 + i, column = at.column / 2 + j;
        if (row < s.pooled_height && column < s.pooled_width) {
          const Vector* corner = results + 2 * i * kResults + 2 * j;
          const Vector four[4] = {corner[0] + bias, corner[1] + bias, corner[kResults] + bias,
                                  corner[kResults + 1] + bias};
          const int64_t sample = client * s.samples + at.sample;
          const int64_t to = ((sample * s.pooled_height + row) * s.pooled_width + column) * s.outputs + output;
          const Winners<A> won(four);
          A values[Lanes<A>::kCount];
          Lanes<A>::store(won.values, values);
          narrow(values, count, static_cast<T*>(p_.out) + to);
          std::memcpy(p_.index + to, &won.index, static_cast<size_t>(count));
        }
      }
    };
    transform<TileToResults, A>(AllPositions<A>{sums_.at(tile, output), sums_.size}, write);
  }

  const ConvReluPool& p_;
  Wide<T> wide_;
  Positions<A> kernels_;  // [channel, output]
  Positions<A> pixels_;   // [tile, channel]
  Positions<A> sums_;     // [tile, output]
};

}  // namespace

void conv_relu_pool_wide(const ConvReluPool& p, int64_t begin, int64_t end, double* scratch) {
  with_type(p.sizes.dtype, [&](auto type) {
    using T = decltype(type);
    WideForward<T> forward(p, aligned<accumulate_t<T>>(scratch));
    const int64_t tiles = p.sizes.samples * conv_tiles(p.sizes), blocks = conv_tile_blocks(tiles);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % blocks * kConvTiles;
      if (i == begin || first == 0) {
        forward.read_kernels(i / blocks);
      }
      forward.run(i / blocks, first, least(kConvTiles, tiles - first));
    }
  });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
