// CPU kernels of `conv_relu_pool_backward`, compiled once per instruction set into namespace PFL_CAPABILITY. Lanes of
// the weight gradient are the taps of a kernel row, never terms of a sum, so all thread counts and all instruction sets
// with FMA give the same bits.
#include "ops/conv_relu_pool/cpu_image.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// Staged gradients of a sample for a block of output channels, 0 where ReLU is inactive, with the offset in an image
// plane of the receptive field of each maximum.
template <class T>
struct Grads {
  using A = accumulate_t<T>;
  int64_t pixels;
  A* values;         // [pixels, kConvOutputs]
  int32_t* offsets;  // [pixels, kConvOutputs]

  Grads(const ConvReluPoolSizes& s, Scratch& scratch)
      : pixels(s.pooled_height * s.pooled_width),
        values(scratch.take_zeros<A>(pixels * kConvOutputs)),
        offsets(scratch.take_zeros<int32_t>(pixels * kConvOutputs)) {
  }

  // shifted_copy: offset of a second copy of the image. It is shifted by half a cache line, so a row of taps that
  // crosses a cache line in one copy does not in the other; 0 without a copy.
  void read(const ConvReluPoolBackward& p, int64_t client, int64_t sample, int64_t first, int64_t count, int64_t pitch,
            int64_t shifted_copy) {
    if (count == kConvOutputs && p.grad.second == 1 && p.index.second == 1) {  // compile-time sizes
      read_strided(p, client, sample, first, kConvOutputs, pitch, shifted_copy, 1, 1);
    } else {
      read_strided(p, client, sample, first, count, pitch, shifted_copy, p.grad.second, p.index.second);
    }
  }

  void add_to(A* totals) const {
    A sums[kConvOutputs];  // a local copy that cannot be aliased stays in registers
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
                                                          int64_t first, int64_t count, int64_t pitch,
                                                          int64_t shifted_copy, int64_t grad_stride,
                                                          int64_t index_stride) {
    const ConvReluPoolSizes& s = p.sizes;
    const Strided<const void*>& g = p.grad;
    const Strided<const uint8_t*>& w = p.index;
    const T* grads = static_cast<const T*>(g.data) + client * g.client + sample * g.first + first * grad_stride;
    const uint8_t* winners = w.data + client * w.client + sample * w.first + first * index_stride;
    for (int64_t y = 0, at = 0; y < s.pooled_height; ++y) {
      for (int64_t x = 0; x < s.pooled_width; ++x, at += kConvOutputs) {
        read_row(grads + y * g.row + x * g.column, grad_stride, count, values + at);
        const int64_t top = 2 * y * pitch, left = offset_of(2 * x, shifted_copy),
                      right = offset_of(2 * x + 1, shifted_copy);
        read_winners(winners + y * w.row + x * w.column, index_stride, count, static_cast<int32_t>(top + left),
                     static_cast<int32_t>(top + right), static_cast<int32_t>(pitch), values + at, offsets + at);
      }
    }
  }

  static int64_t offset_of(int64_t column, int64_t shifted_copy) {
    return column % kConvCacheLine > kConvCacheLine - kConvRowLanes ? column + shifted_copy : column;
  }

  static inline __attribute__((always_inline)) void read_winners(const uint8_t* winners, int64_t stride, int64_t count,
                                                                 int32_t left, int32_t right, int32_t pitch,
                                                                 A* __restrict values, int32_t* __restrict offsets) {
    for (int64_t j = 0; j < count; ++j) {
      const int32_t winner = winners[j * stride];
      values[j] = winner >= kConvInactive ? A(0) : values[j];
      offsets[j] = (winner % 2 ? right : left) + (winner / 2 % 2 ? pitch : 0);
    }
  }
};

// Sums of gradient * pixel for the k x k taps of kChannels kernels. A row of taps is one vector, or several short ones.
template <class A, int kKernel, int kChannels>
class TapSums {
 public:
  // sums: [kKernel, kConvRowLanes] per channel, with channel stride `stride`.
  static void add(const A* image, int64_t pitch, const A* grads, const int32_t* offsets, int64_t pixels, A* sums,
                  int64_t stride) {
    TapSums tile;
#pragma GCC unroll 32
    for (int i = 0; i < kChannels * kPieces; ++i) {
      tile.pieces_[i / kPieces][i % kPieces] = at(sums + i / kPieces * stride + i % kPieces * kLanes);
    }
    for (int64_t pixel = 0; pixel < pixels; ++pixel, grads += kConvOutputs, offsets += kConvOutputs) {
#pragma GCC unroll 2
      for (int channel = 0; channel < kChannels; ++channel) {
        tile.add_pixel(channel, image + offsets[channel], pitch, grads[channel]);
      }
    }
#pragma GCC unroll 32
    for (int i = 0; i < kChannels * kPieces; ++i) {
      at(sums + i / kPieces * stride + i % kPieces * kLanes) = tile.pieces_[i / kPieces][i % kPieces];
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
    const Piece factor = grad - Piece{};  // broadcast
#pragma GCC unroll 32
    for (int i = 0; i < kPieces; ++i) {
      const Piece pixels = *reinterpret_cast<const Unaligned*>(window + i / kInRow * pitch + i % kInRow * kLanes);
      pieces_[channel][i] = multiply_add(pixels, factor, pieces_[channel][i]);
    }
  }

  Piece pieces_[kChannels][kPieces];
};

// Calls use(Constant<kernel>) for a kernel size from 1 to kConvMaxKernel.
template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};
template <int kKernel = 1, class Use>
void with_kernel(int64_t kernel, Use use) {
  if (kernel == kKernel) {
    use(Constant<kKernel>{});
  } else if constexpr (kKernel < kConvMaxKernel) {
    with_kernel<kKernel + 1>(kernel, use);
  }
}

// Adds the sums of `count` output channels. Only this loop is compiled once per kernel size.
template <class A>
void add_taps(int64_t kernel, int64_t count, const A* plane, int64_t pitch, const A* grads, const int32_t* offsets,
              int64_t pixels, A* sums, int64_t stride) {
  with_kernel(kernel, [&](auto constant) {
    constexpr int kKernel = decltype(constant)::value;
    constexpr int kChannels = kKernel <= 5 ? kConvTapChannels : 1;
    for (int64_t j = 0; j < count; j += kChannels) {
      TapSums<A, kKernel, kChannels>::add(plane, pitch, grads + j, offsets + j, pixels, sums + j * stride, stride);
    }
  });
}

// Gradients of the weights and biases of one block of output channels of one client.
template <class T>
class WeightGradient {
 public:
  using A = accumulate_t<T>;

  WeightGradient(const ConvReluPoolBackward& problem, Scratch& scratch)
      : p_(problem),
        s_(problem.sizes),
        image_(s_, 2, scratch),
        grads_(s_, scratch),
        shifted_copy_(image_.size - kConvRowLanes),
        stride_(s_.channels * s_.kernel * kConvRowLanes),
        taps_(scratch.take<A>(kConvOutputs * stride_)),
        bias_(scratch.take<A>(kConvOutputs)) {
  }

  void run(int64_t client, int64_t first) {
    const int64_t count = min(kConvOutputs, s_.outputs - first);
    std::memset(taps_, 0, static_cast<size_t>(kConvOutputs * stride_) * sizeof(A));
    std::memset(bias_, 0, kConvOutputs * sizeof(A));
    for (int64_t sample = 0; sample < s_.samples; ++sample) {
      image_.template read<T>(s_, p_.x, client, sample);
      std::memcpy(image_.values + shifted_copy_, image_.values,
                  static_cast<size_t>(s_.channels * image_.plane) * sizeof(A));
      grads_.read(p_, client, sample, first, count, image_.pitch, shifted_copy_);
      add_sample(count);
    }
    write(client, first, count);
  }

 private:
  void add_sample(int64_t count) {
    grads_.add_to(bias_);
    for (int64_t channel = 0; channel < s_.channels; ++channel) {
      add_taps<A>(s_.kernel, count, image_.values + channel * image_.plane, image_.pitch, grads_.values, grads_.offsets,
                  grads_.pixels, taps_ + channel * s_.kernel * kConvRowLanes, stride_);
    }
  }

  void write(int64_t client, int64_t first, int64_t count) const {
    narrow(bias_, count, static_cast<T*>(p_.grad_bias) + client * s_.outputs + first);
    const Strided<void*>& w = p_.grad_weight;
    for (int64_t j = 0; j < count; ++j) {
      T* to = static_cast<T*>(w.data) + client * w.client + (first + j) * w.first;
      const A* row = taps_ + j * stride_;
      for (int64_t channel = 0; channel < s_.channels; ++channel) {
        for (int64_t y = 0; y < s_.kernel; ++y, row += kConvRowLanes) {
          write_row(row, s_.kernel, w.column, to + channel * w.second + y * w.row);
        }
      }
    }
  }

  const ConvReluPoolBackward& p_;
  const ConvReluPoolSizes& s_;
  Image<A> image_;
  Grads<T> grads_;
  int64_t shifted_copy_;  // offset of the shifted copy: half a cache line off a multiple of a line
  int64_t stride_;
  A* taps_;  // [kConvOutputs, channels, kernel, kConvRowLanes]
  A* bias_;  // [kConvOutputs]
};

template <class T>
void grad_weight(const ConvReluPoolBackward& p, int64_t begin, int64_t end) {
  WithScratch<WeightGradient<T>> gradient("conv_relu_pool_backward", p);
  const int64_t blocks = conv_output_blocks(p.sizes);
  for (int64_t task = begin; task < end; ++task) {
    gradient->run(task / blocks, task % blocks * kConvOutputs);
  }
}

// Gradient of one sample: adds gradient * kernel at the receptive field of each maximum.
template <class T>
class InputGradient {
 public:
  using A = accumulate_t<T>;

  InputGradient(const ConvReluPoolBackward& problem, Scratch& scratch)
      : p_(problem),
        s_(problem.sizes),
        image_(s_, 1, scratch),
        grads_(s_, scratch),
        kernels_(scratch.take<A>(s_.outputs * s_.channels * s_.kernel * s_.kernel)) {
  }

  void run(int64_t client, int64_t sample) {
    std::memset(image_.values, 0, static_cast<size_t>(image_.size) * sizeof(A));
    for (int64_t first = 0; first < s_.outputs; first += kConvOutputs) {
      const int64_t count = min(kConvOutputs, s_.outputs - first);
      grads_.read(p_, client, sample, first, count, image_.pitch, 0);
      for (int64_t pixel = 0; pixel < grads_.pixels; ++pixel) {
        for (int64_t j = 0; j < count; ++j) {
          const int64_t at = pixel * kConvOutputs + j;
          add_kernel(first + j, image_.values + grads_.offsets[at], grads_.values[at]);
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
        for (int64_t y = 0; y < s_.kernel; ++y, to += s_.kernel) {
          read_row(from + channel * w.second + y * w.row, w.column, s_.kernel, to);
        }
      }
    }
  }

 private:
  void add_kernel(int64_t output, A* __restrict window, A grad) const {
    const A* __restrict kernel = kernels_ + output * s_.channels * s_.kernel * s_.kernel;
    for (int64_t channel = 0; channel < s_.channels; ++channel, window += image_.plane) {
      for (int64_t y = 0; y < s_.kernel; ++y, kernel += s_.kernel) {
        for (int64_t x = 0; x < s_.kernel; ++x) {
          window[y * image_.pitch + x] = window[y * image_.pitch + x] + grad * kernel[x];
        }
      }
    }
  }

  const ConvReluPoolBackward& p_;
  const ConvReluPoolSizes& s_;
  Image<A> image_;
  Grads<T> grads_;
  A* kernels_;  // [outputs, channels, kernel, kernel]
};

template <class T>
void grad_x(const ConvReluPoolBackward& p, int64_t begin, int64_t end) {
  WithScratch<InputGradient<T>> gradient("conv_relu_pool_backward", p);
  for (int64_t i = begin; i < end; ++i) {
    if (i == begin || i % p.sizes.samples == 0) {
      gradient->read_kernels(i / p.sizes.samples);
    }
    gradient->run(i / p.sizes.samples, i % p.sizes.samples);
  }
}

}  // namespace

void conv_relu_pool_grad_weight(const ConvReluPoolBackward& p, int64_t begin, int64_t end) {
  with_type(p.sizes.dtype, [&](auto type) { grad_weight<decltype(type)>(p, begin, end); });
}

void conv_relu_pool_grad_x(const ConvReluPoolBackward& p, int64_t begin, int64_t end) {
  with_type(p.sizes.dtype, [&](auto type) { grad_x<decltype(type)>(p, begin, end); });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
