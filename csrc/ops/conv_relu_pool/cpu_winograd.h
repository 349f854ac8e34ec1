// Shared by forward and backward of the Winograd path of `conv_relu_pool`: transforms of pixel tiles and kernels, and
// one matrix product per tile position.
#pragma once

#include "cpu/simd/tile.h"
#include "cpu/simd/transpose.h"
#include "cpu/simd/winograd.h"
#include "ops/conv_relu_pool/cpu_image.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// Matrices [rows, columns] for all tile positions, with contiguous columns. One cache line of padding between matrices
// keeps equal offsets from mapping to the same few cache sets.
template <class A>
struct Positions {
  int64_t columns, size;  // row stride and matrix stride
  A* data;

  Positions(int64_t rows, int64_t columns, Scratch& scratch)
      : columns(columns), size(rows * columns + kConvCacheLine), data(scratch.take<A>(kPositions * size)) {
  }

  A* at(int64_t row, int64_t column) const {
    return data + row * columns + column;
  }
  template <class B = A>
  Matrix<B> matrix(int position) const {
    return {data + position * size, columns, 1};
  }
  Matrix<const A> transposed(int position) const {
    return {data + position * size, 1, columns};
  }
};

// Applies a transform to rows and columns of a tile: read(vectors) loads the tile, write(vectors) stores the result.
template <class Transform, class A, class Read, class Write>
inline __attribute__((always_inline)) void transform(Read read, Write write) {
  using Vector = typename Lanes<A>::Vector;
  Vector in[Transform::kFrom * Transform::kFrom], out[Transform::kTo * Transform::kTo];
  read(in);
  apply_2d<Transform, A>(in, out);
  write(const_cast<const Vector*>(out));
}

// Loads or stores the vectors at all tile positions, one from each matrix at the same offset.
template <class A>
struct AllPositions {
  A* first;
  int64_t size;

  inline __attribute__((always_inline)) void operator()(typename Lanes<A>::Vector* tile) const {
    for (int position = 0; position < kPositions; ++position) {
      tile[position] = Lanes<A>::load(first + position * size);
    }
  }
  inline __attribute__((always_inline)) void operator()(const typename Lanes<A>::Vector* tile) const {
    for (int position = 0; position < kPositions; ++position) {
      Lanes<A>::store(tile[position], first + position * size);
    }
  }
};

// Tiling of one client's convolution, and the transforms of its pixels and kernels into matrices per tile position.
template <class T>
struct Winograd {
  using A = accumulate_t<T>;
  using Vector = typename Lanes<A>::Vector;
  static constexpr int64_t kCount = Lanes<A>::kCount;
  static constexpr int64_t kPaddedTaps = (kTaps * kTaps + kCount - 1) / kCount * kCount;

  const ConvReluPoolSizes& s;
  int64_t channels, outputs;  // rounded up to a multiple of kConvOutputs
  int64_t across, in_sample;  // tiles per row of tiles and per sample

  explicit Winograd(const ConvReluPoolSizes& sizes)
      : s(sizes),
        channels(conv_round_up(sizes.channels, kConvOutputs)),
        outputs(conv_round_up(sizes.outputs, kConvOutputs)),
        across(conv_tiles_across(sizes)),
        in_sample(conv_tiles(sizes)) {
  }

  struct TileOrigin {
    int64_t sample, row, column;  // row and column: position of the first result
  };
  TileOrigin tile_origin(int64_t tile) const {
    const int64_t inside = tile % in_sample;
    return {tile / in_sample, kResults * (inside / across), kResults * (inside % across)};
  }

  // Vector of `count` strided values, zero-padded.
  static inline __attribute__((always_inline)) Vector read_vector(const T* from, int64_t stride, int64_t count) {
    if constexpr (sizeof(T) == sizeof(A)) {
      if (stride == 1 && count >= kCount) {
        return Lanes<A>::load(from);
      }
    }
    A values[kCount] = {};
    read_row(from, stride, min(count, kCount), values);
    return Lanes<A>::load(values);
  }

  // Writes the transformed pixels of tiles [first, first + count) as [tile, channel].
  void read_pixels(const Strided<const void*>& x, int64_t client, int64_t first, int64_t count,
                   const Positions<A>& tiles) const {
    const T* from = static_cast<const T*>(x.data) + client * x.client;
    for (int64_t tile = 0; tile < count; ++tile) {
      const TileOrigin at = tile_origin(first + tile);
      const T* sample = from + at.sample * x.first;
      for (int64_t channel = 0; channel < channels; channel += kCount) {
        const auto read = [&](Vector* pixels) {
          read_tile(sample + channel * x.second, x, at, s.channels - channel, pixels);
        };
        transform<PixelsToTile, A>(read, AllPositions<A>{tiles.at(tile, channel), tiles.size});
      }
    }
  }

  // Writes the transformed kernels of one client as [other, lane]. Lanes are output channels and others input channels,
  // or vice versa.
  void read_kernels(const Strided<const void*>& w, int64_t client, int64_t lanes, int64_t lane_stride, int64_t others,
                    int64_t other_stride, const Positions<A>& kernels) const {
    const T* from = static_cast<const T*>(w.data) + client * w.client;
    for (int64_t other = 0; other < others; ++other) {
      for (int64_t lane = 0; lane < kernels.columns; lane += kCount) {
        const T* first = from + other * other_stride + lane * lane_stride;
        const int64_t count = min(kCount, lanes - lane);
        const auto read = [&](Vector* taps) { read_taps(first, w, lane_stride, count, taps); };
        transform<TapsToTile, A>(read, AllPositions<A>{kernels.at(other, lane), kernels.size});
      }
    }
  }

  // Stores the kernel taps of `count` lanes.
  static inline __attribute__((always_inline)) void write_taps(const Vector* taps, T* first, const Strided<void*>& w,
                                                               int64_t lane_stride, int64_t count) {
    A kernels[kCount][kPaddedTaps];
    for (int64_t tap = 0; tap < kPaddedTaps; tap += kCount) {
      Vector square[kCount] = {};
      for (int64_t i = 0; i < kCount && tap + i < kTaps * kTaps; ++i) {
        square[i] = taps[tap + i];
      }
      transpose<A>(square);
      for (int64_t lane = 0; lane < kCount; ++lane) {
        Lanes<A>::store(square[lane], kernels[lane] + tap);
      }
    }
    for (int64_t lane = 0; lane < count; ++lane) {
      T* kernel = first + lane * lane_stride;
      if (w.column == 1 && w.row == kTaps) {
        narrow(kernels[lane], kTaps * kTaps, kernel);
      } else {
        for (int64_t row = 0; row < kTaps; ++row) {
          write_row(kernels[lane] + row * kTaps, kTaps, w.column, kernel + row * w.row);
        }
      }
    }
  }

 private:
  inline __attribute__((always_inline)) void read_tile(const T* plane, const Strided<const void*>& x,
                                                       const TileOrigin& at, int64_t count, Vector* pixels) const {
    const int64_t top = at.row - s.padding, left = at.column - s.padding;
    for (int64_t i = 0; i < kSide; ++i) {
      for (int64_t j = 0; j < kSide; ++j) {
        const int64_t row = top + i, column = left + j;
        const bool inside = row >= 0 && row < s.height && column >= 0 && column < s.width;
        pixels[i * kSide + j] =
            inside ? read_vector(plane + row * x.row + column * x.column, x.second, count) : Vector{};
      }
    }
  }

  static inline __attribute__((always_inline)) void read_taps(const T* first, const Strided<const void*>& w,
                                                              int64_t lane_stride, int64_t count, Vector* taps) {
    A kernels[kCount][kPaddedTaps] = {};
    for (int64_t lane = 0; lane < count; ++lane) {
      const T* kernel = first + lane * lane_stride;
      if (w.column == 1 && w.row == kTaps) {  // compile-time sizes
        read_row(kernel, 1, kTaps * kTaps, kernels[lane]);
      } else {
        for (int64_t row = 0; row < kTaps; ++row) {
          read_row(kernel + row * w.row, w.column, kTaps, kernels[lane] + row * kTaps);
        }
      }
    }
    for (int64_t tap = 0; tap < kPaddedTaps; tap += kCount) {
      Vector square[kCount];
      for (int64_t lane = 0; lane < kCount; ++lane) {
        square[lane] = Lanes<A>::load(kernels[lane] + tap);
      }
      transpose<A>(square);
      for (int64_t i = 0; i < kCount && tap + i < kTaps * kTaps; ++i) {
        taps[tap + i] = square[i];
      }
    }
  }
};

}  // namespace
}  // namespace PFL_CAPABILITY
}  // namespace pfl
