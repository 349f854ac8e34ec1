// Problem structs passed from the tensor code of `conv_relu_pool` to its raw kernels, and sizes of scratch memory.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "cpu/capability.h"

namespace pfl {

constexpr int64_t kConvMaxKernel = 7;  // a kernel row fits into kConvRowLanes
constexpr int64_t kConvRowLanes = 8;
constexpr int64_t kConvCacheLine = 16;                // floats in a cache line
constexpr int64_t kConvMaxValues = int64_t{1} << 24;  // values per sample, so that offsets fit into 32 bits
constexpr int64_t kConvWinogradKernel = 5;            // kernel size of the Winograd path
constexpr int64_t kConvWinogradChannels = 8;          // fewest input channels of the Winograd path
constexpr uint8_t kConvInactive = 4;                  // index where ReLU returned 0; 0 to 3 are positions in the window

// C clients with b samples each: c input channels of h x w pixels, o output channels. Each client has its own kernels.
struct ConvReluPoolSizes {
  Float dtype;
  int64_t clients;  // C
  int64_t samples;  // b
  int64_t channels;
  int64_t height, width;
  int64_t outputs;                      // o
  int64_t kernel;                       // k: kernel height and width
  int64_t padding;                      // zeros on each side of an image
  int64_t pooled_height, pooled_width;  // of the result
};

// Pointer and strides, in elements, of [C, n, m, rows, columns]; the client stride is 0 if all clients share the data.
template <class Pointer>
struct Strided {
  Pointer data;
  int64_t client, first, second, row, column;
};

// out = 2 x 2 max pooling of relu(conv(x, weight) + bias); index = position of each maximum in its window.
struct ConvReluPool {
  ConvReluPoolSizes sizes;
  Strided<const void*> x;       // [C, b, c, h, w]
  Strided<const void*> weight;  // [C, o, c, k, k]
  const void* bias;             // [C, o]
  void* out;                    // [C, b, pooled_height, pooled_width, o]: channels last
  uint8_t* index;               // [C, b, pooled_height, pooled_width, o]
};

struct ConvReluPoolBackward {
  ConvReluPoolSizes sizes;
  Strided<const void*> grad;      // [C, b, o, pooled_height, pooled_width]
  Strided<const uint8_t*> index;  // [C, b, o, pooled_height, pooled_width]
  Strided<const void*> x;         // [C, b, c, h, w]
  Strided<const void*> weight;    // [C, o, c, k, k]
  Strided<void*> grad_x;          // data is null if not required
  Strided<void*> grad_weight;     // data is null if neither it nor grad_bias is required
  void* grad_bias;                // [C, o]
  void* parts;                    // CUDA: [C, parts, c k k + 1, o] partial sums over samples_per_part samples each
  int64_t parts_per_client;
  int64_t samples_per_part;
};

constexpr int64_t kConvOutputs = 16;  // output channels per CPU task of grad_weight
constexpr int64_t kConvTiles = 48;    // Winograd tiles multiplied at once: their matrices stay in cache

namespace {  // one copy per instruction set, see cpu/simd/convert.h

inline int64_t conv_round_up(int64_t count, int64_t to) {
  return (count + to - 1) / to * to;
}

// Size of a padded sample in the accumulation type. Rows are whole cache lines of floats; one extra line at the end,
// because kernels load kConvRowLanes values at a time and may read past the last row.
inline int64_t conv_padded_sample(const ConvReluPoolSizes& s) {
  const int64_t pitch = conv_round_up(s.width + 2 * s.padding, kConvCacheLine);
  return s.channels * (s.height + 2 * s.padding) * pitch + kConvCacheLine;
}

// Size of the packed kernels and biases of one client: output channels are contiguous and padded.
inline int64_t conv_packed_weights(const ConvReluPoolSizes& s) {
  return (s.channels * s.kernel * s.kernel + 1) * conv_round_up(s.outputs, kConvOutputs);
}

// Size of the staged gradients of kConvOutputs channels of one sample, with an offset for each.
inline int64_t conv_staged_grads(const ConvReluPoolSizes& s) {
  return 2 * s.pooled_height * s.pooled_width * kConvOutputs;
}

inline int64_t conv_weight_sums(const ConvReluPoolSizes& s) {
  return kConvOutputs * (s.channels * s.kernel * kConvRowLanes + 1);
}

inline int64_t conv_output_blocks(const ConvReluPoolSizes& s) {
  return conv_round_up(s.outputs, kConvOutputs) / kConvOutputs;
}

// Winograd path, for many input channels: tiles of 8 x 8 pixels, each with 2 x 2 pooling windows.

inline bool conv_uses_winograd(const ConvReluPoolSizes& s) {
  return s.kernel == kConvWinogradKernel && s.channels >= kConvWinogradChannels;
}

inline int64_t conv_tiles_across(const ConvReluPoolSizes& s) {
  return (s.pooled_width + 1) / 2;
}

inline int64_t conv_tiles(const ConvReluPoolSizes& s) {
  return (s.pooled_height + 1) / 2 * conv_tiles_across(s);
}

inline int64_t conv_tile_blocks(int64_t tiles) {
  return (tiles + kConvTiles - 1) / kConvTiles;
}

// Samples per task of grad_x, and number of such groups of samples per client.
inline int64_t conv_winograd_samples(const ConvReluPoolSizes& s) {
  return conv_tiles(s) < kConvTiles ? kConvTiles / conv_tiles(s) : 1;
}

inline int64_t conv_winograd_groups(const ConvReluPoolSizes& s) {
  return (s.samples + conv_winograd_samples(s) - 1) / conv_winograd_samples(s);
}

// Image size of a sample, with padding and with the pixels that tiles cover beyond it.
inline int64_t conv_winograd_width(const ConvReluPoolSizes& s) {
  const int64_t padded = s.width + 2 * s.padding, tiles = 4 * conv_tiles_across(s) + 4;
  return padded > tiles ? padded : tiles;
}

inline int64_t conv_winograd_image(const ConvReluPoolSizes& s) {
  const int64_t padded = s.height + 2 * s.padding, tiles = 4 * ((s.pooled_height + 1) / 2) + 4;
  return (padded > tiles ? padded : tiles) * conv_winograd_width(s) * conv_round_up(s.channels, kConvOutputs);
}

// Scratch values: for each of 64 positions the kernel matrix and the tile matrices on both sides of the product.
inline int64_t conv_winograd_scratch(const ConvReluPoolSizes& s) {
  const int64_t channels = conv_round_up(s.channels, kConvOutputs), outputs = conv_round_up(s.outputs, kConvOutputs);
  return 64 * (channels * outputs + kConvTiles * (channels + outputs) + 3 * kConvCacheLine) + kConvCacheLine;
}

}  // namespace

// [begin, end): range of the C * b samples.
// scratch: zeros, conv_padded_sample + conv_packed_weights + kConvCacheLine doubles.
PFL_DECLARE_CPU_KERNEL(conv_relu_pool, (const ConvReluPool& p, int64_t begin, int64_t end, double* scratch))
// [begin, end): range of the clients' blocks of kConvOutputs output channels.
// scratch: zeros, 2 * conv_padded_sample + conv_staged_grads + conv_weight_sums + kConvCacheLine doubles.
PFL_DECLARE_CPU_KERNEL(conv_relu_pool_grad_weight,
                       (const ConvReluPoolBackward& p, int64_t begin, int64_t end, double* scratch))
// [begin, end): range of the C * b samples.
// scratch: conv_padded_sample + conv_staged_grads + conv_packed_weights doubles.
PFL_DECLARE_CPU_KERNEL(conv_relu_pool_grad_x,
                       (const ConvReluPoolBackward& p, int64_t begin, int64_t end, double* scratch))
// Kernels of the Winograd path; scratch: conv_winograd_scratch values of the accumulation type.
// [begin, end): range of the clients' blocks of kConvTiles tiles.
PFL_DECLARE_CPU_KERNEL(conv_relu_pool_winograd, (const ConvReluPool& p, int64_t begin, int64_t end, double* scratch))
// [begin, end): range of the clients' blocks of kConvOutputs output channels.
PFL_DECLARE_CPU_KERNEL(conv_relu_pool_winograd_grad_weight,
                       (const ConvReluPoolBackward& p, int64_t begin, int64_t end, double* scratch))
// [begin, end): range of the clients' groups of conv_winograd_samples samples; scratch: conv_winograd_image more values
// per sample of a group.
PFL_DECLARE_CPU_KERNEL(conv_relu_pool_winograd_grad_x,
                       (const ConvReluPoolBackward& p, int64_t begin, int64_t end, double* scratch))

}  // namespace pfl

extern "C" {
int pfl_cuda_conv_relu_pool(const pfl::ConvReluPool* problem, void* stream);
int pfl_cuda_conv_relu_pool_backward(const pfl::ConvReluPoolBackward* problem, void* stream);
}
