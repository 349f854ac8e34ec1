// What tensor code and the raw kernels of `conv_relu_pool` agree on.
#pragma once

#include <cstdint>

#include "cpu/capability.h"
#include "dtype.h"

namespace pfl {

constexpr int64_t kConvMaxKernel = 7;  // rows of a kernel fit into kConvRowLanes
constexpr int64_t kConvRowLanes = 8;
constexpr int64_t kConvCacheLine = 16;                // floats in a cache line
constexpr int64_t kConvMaxValues = int64_t{1} << 24;  // in a sample, so that places in it are 32-bit numbers
constexpr int64_t kConvWinogradKernel = 5;            // with many channels in, what Winograd's tiles are made for
constexpr int64_t kConvWinogradChannels = 8;          // from how many on they pay
constexpr uint8_t kConvInactive = 4;  // index of a result that ReLU made zero; below it, row and column of the winner

// C clients, b samples each, of c channels of h x w pixels; o channels come out. A client has its own kernel.
struct ConvReluPoolSizes {
  Float dtype;
  int64_t clients;  // C
  int64_t samples;  // b
  int64_t channels;
  int64_t height, width;
  int64_t outputs;                      // o
  int64_t kernel;                       // k: rows and columns of a kernel
  int64_t padding;                      // zeros on each side
  int64_t pooled_height, pooled_width;  // of the result
};

// [C, n, m, rows, columns] with these distances between neighbours, in elements: 0 where all clients share one.
template <class Pointer>
struct Strided {
  Pointer data;
  int64_t client, first, second, row, column;
};

// out = max over 2 x 2 pixels of relu(conv(x, weight) + bias); index says which of them it was.
struct ConvReluPool {
  ConvReluPoolSizes sizes;
  Strided<const void*> x;       // [C, b, c, h, w]
  Strided<const void*> weight;  // [C, o, c, k, k]
  const void* bias;             // [C, o]
  void* out;                    // [C, b, rows, columns, o]: channels last
  uint8_t* index;               // likewise
};

struct ConvReluPoolBackward {
  ConvReluPoolSizes sizes;
  Strided<const void*> grad;      // [C, b, o, rows, columns]
  Strided<const uint8_t*> index;  // likewise
  Strided<const void*> x;         // [C, b, c, h, w]
  Strided<const void*> weight;    // [C, o, c, k, k]
  Strided<void*> grad_x;          // data is null where it is not asked for
  Strided<void*> grad_weight;     // data is null where neither it nor grad_bias is asked for
  void* grad_bias;                // [C, o]
  void* parts;                    // CUDA: [C, parts, c k k + 1, o] sums over samples_per_part samples each
  int64_t parts_per_client;
  int64_t samples_per_part;
};

constexpr int64_t kConvOutputs = 16;  // output channels whose gradients one task of the CPU computes
constexpr int64_t kConvTiles = 48;    // of Winograd's that are multiplied at once: their matrices stay in cache

namespace {  // a copy for each instruction set

inline int64_t conv_round_up(int64_t count, int64_t to) {
  return (count + to - 1) / to * to;
}

// A sample with its padding, in the type sums are kept in: whole cache lines of floats in a row, and a line more, as
// kConvRowLanes at a time are read, past the end, too.
inline int64_t conv_padded_sample(const ConvReluPoolSizes& s) {
  const int64_t pitch = conv_round_up(s.width + 2 * s.padding, kConvCacheLine);
  return s.channels * (s.height + 2 * s.padding) * pitch + kConvCacheLine;
}

// Kernels and biases of one client with output channels side by side.
inline int64_t conv_packed_weights(const ConvReluPoolSizes& s) {
  return (s.channels * s.kernel * s.kernel + 1) * conv_round_up(s.outputs, kConvOutputs);
}

// Gradients of kConvOutputs channels of one sample, and as many places in it.
inline int64_t conv_staged_grads(const ConvReluPoolSizes& s) {
  return 2 * s.pooled_height * s.pooled_width * kConvOutputs;
}

inline int64_t conv_weight_sums(const ConvReluPoolSizes& s) {
  return kConvOutputs * (s.channels * s.kernel * kConvRowLanes + 1);
}

inline int64_t conv_output_blocks(const ConvReluPoolSizes& s) {
  return conv_round_up(s.outputs, kConvOutputs) / kConvOutputs;
}

// Many channels in: Winograd's tiles of 8 x 8 pixels, each with 2 x 2 pooling windows.

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

// Samples whose pixels' gradients are computed together, and how many such groups a client has.
inline int64_t conv_winograd_samples(const ConvReluPoolSizes& s) {
  return conv_tiles(s) < kConvTiles ? kConvTiles / conv_tiles(s) : 1;
}

inline int64_t conv_winograd_groups(const ConvReluPoolSizes& s) {
  return (s.samples + conv_winograd_samples(s) - 1) / conv_winograd_samples(s);
}

// A sample's pixels with their padding and whatever tiles reach beyond them.
inline int64_t conv_winograd_width(const ConvReluPoolSizes& s) {
  const int64_t padded = s.width + 2 * s.padding, tiles = 4 * conv_tiles_across(s) + 4;
  return padded > tiles ? padded : tiles;
}

inline int64_t conv_winograd_image(const ConvReluPoolSizes& s) {
  const int64_t padded = s.height + 2 * s.padding, tiles = 4 * ((s.pooled_height + 1) / 2) + 4;
  return (padded > tiles ? padded : tiles) * conv_winograd_width(s) * conv_round_up(s.channels, kConvOutputs);
}

// Values of scratch memory: kernels, and tiles on both sides of the product, for 64 positions each.
inline int64_t conv_winograd_scratch(const ConvReluPoolSizes& s) {
  const int64_t channels = conv_round_up(s.channels, kConvOutputs), outputs = conv_round_up(s.outputs, kConvOutputs);
  return 64 * (channels * outputs + kConvTiles * (channels + outputs) + 3 * kConvCacheLine) + kConvCacheLine;
}

}  // namespace

// [begin, end): the samples to do, of all C * b.
// scratch: zeros, conv_padded_sample + conv_packed_weights + kConvCacheLine doubles.
PFL_DECLARE_CPU_KERNEL(conv_relu_pool, (const ConvReluPool& p, int64_t begin, int64_t end, double* scratch))
// [begin, end): blocks of kConvOutputs output channels, of all clients.
// scratch: zeros, 2 * conv_padded_sample + conv_staged_grads + conv_weight_sums + kConvCacheLine doubles.
PFL_DECLARE_CPU_KERNEL(conv_relu_pool_grad_weight,
                       (const ConvReluPoolBackward& p, int64_t begin, int64_t end, double* scratch))
// [begin, end): the samples to do, of all C * b.
// scratch: conv_padded_sample + conv_staged_grads + conv_packed_weights doubles.
PFL_DECLARE_CPU_KERNEL(conv_relu_pool_grad_x,
                       (const ConvReluPoolBackward& p, int64_t begin, int64_t end, double* scratch))
// The same where conv_uses_winograd; scratch: conv_winograd_scratch values of the type sums are kept in.
// [begin, end): blocks of kConvTiles tiles, of all clients.
PFL_DECLARE_CPU_KERNEL(conv_relu_pool_winograd, (const ConvReluPool& p, int64_t begin, int64_t end, double* scratch))
// [begin, end): blocks of kConvOutputs output channels, of all clients.
PFL_DECLARE_CPU_KERNEL(conv_relu_pool_winograd_grad_weight,
                       (const ConvReluPoolBackward& p, int64_t begin, int64_t end, double* scratch))
// [begin, end): groups of conv_winograd_samples samples, of all clients; scratch: as many images (conv_winograd_image)
// more.
PFL_DECLARE_CPU_KERNEL(conv_relu_pool_winograd_grad_x,
                       (const ConvReluPoolBackward& p, int64_t begin, int64_t end, double* scratch))

}  // namespace pfl

extern "C" {
int pfl_cuda_conv_relu_pool(const pfl::ConvReluPool* problem, void* stream);
int pfl_cuda_conv_relu_pool_backward(const pfl::ConvReluPoolBackward* problem, void* stream);
}
