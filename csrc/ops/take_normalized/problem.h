// Problem struct passed from the tensor code of `take_normalized` to its raw kernels.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "cpu/capability.h"
#include "ops/take_normalized/tuning.h"

namespace pfl {

// out[b] = (images[index[b]] / 255 - mean) / std per channel, as [H, W, C] or [C, H, W].
struct TakeNormalized {
  Float dtype;
  const uint8_t* images;  // [N, H * W, C]
  int64_t count;          // N
  int64_t pixels;         // H * W
  int64_t channels;       // C
  const int64_t* index;   // [B]
  int64_t batch;          // B
  const void* mean;       // [C], double for double results, else float
  const void* std;        // [C]
  int64_t channels_last;
  void* out;  // [B, H * W, C] or [B, C, H * W]
};

constexpr int64_t kByteValues = 256;

// table [C, 256] in the result type: result for each byte value of each channel.
PFL_DECLARE_CPU_KERNEL(take_normalized_table, (const TakeNormalized& p, void* table))

// [begin, end): range of images to write. With a null table every value is computed; this path needs float or double
// results in the memory order of the images and at most kMaxChannelsInOrder channels.
PFL_DECLARE_CPU_KERNEL(take_normalized, (const TakeNormalized& p, const void* table, int64_t begin, int64_t end))

}  // namespace pfl

extern "C" int pfl_cuda_take_normalized(const pfl::TakeNormalized* problem, void* stream);
