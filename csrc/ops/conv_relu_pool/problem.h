// Problem structs passed from the tensor code of `conv_relu_pool` to its raw kernels.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "cpu/capability.h"
#include "ops/conv_relu_pool/tuning.h"

namespace pfl {

constexpr int64_t kConvMaxKernel = 7;
constexpr int64_t kConvMaxValues = int64_t{1} << 24;  // values per sample, so that offsets fit into 32 bits
constexpr int64_t kConvWinogradKernel = 5;            // kernel size of the Winograd path
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

namespace {  // one copy per instruction set, see cpu/simd/convert.h

inline int64_t conv_round_up(int64_t count, int64_t to) {
  return (count + to - 1) / to * to;
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

}  // namespace

// [begin, end): range of the C * b samples.
PFL_DECLARE_CPU_KERNEL(conv_relu_pool, (const ConvReluPool& p, int64_t begin, int64_t end))
PFL_DECLARE_CPU_KERNEL(conv_relu_pool_grad_x, (const ConvReluPoolBackward& p, int64_t begin, int64_t end))
// [begin, end): range of the clients' blocks of kConvOutputs output channels.
PFL_DECLARE_CPU_KERNEL(conv_relu_pool_grad_weight, (const ConvReluPoolBackward& p, int64_t begin, int64_t end))
PFL_DECLARE_CPU_KERNEL(conv_relu_pool_winograd_grad_weight, (const ConvReluPoolBackward& p, int64_t begin, int64_t end))
// [begin, end): range of the clients' blocks of kConvTiles tiles.
PFL_DECLARE_CPU_KERNEL(conv_relu_pool_winograd, (const ConvReluPool& p, int64_t begin, int64_t end))
// [begin, end): range of the clients' groups of conv_winograd_samples samples.
PFL_DECLARE_CPU_KERNEL(conv_relu_pool_winograd_grad_x, (const ConvReluPoolBackward& p, int64_t begin, int64_t end))

}  // namespace pfl

extern "C" {
int pfl_cuda_conv_relu_pool(const pfl::ConvReluPool* problem, void* stream);
int pfl_cuda_conv_relu_pool_backward(const pfl::ConvReluPoolBackward* problem, void* stream);
}
