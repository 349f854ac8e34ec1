// Memory layouts: tensors of one shape as strided rows of contiguous columns, and channels-last images.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <vector>

#include "check.h"

namespace pfl {

// Row r of tensor k starts at element r * stride[k]; the columns of a row are contiguous.
struct RowLayout {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<int64_t> stride;
};

// Returns true and fills `layout` if the tensors have a common row layout: contiguous tensors, tensors that share a
// permuted order such as channels_last, and slices of stacked blocks do. Dimensions are sorted by the strides of the
// first tensor and merged where all tensors allow it; at most one dimension may stay outside the contiguous columns.
inline bool find_rows(const std::vector<Tensor>& tensors, RowLayout& layout) {
  struct Dimension {
    int64_t size;
    std::vector<int64_t> stride;
  };
  std::vector<Dimension> outer_first;
  for (int64_t d = 0; d < tensors[0].dim(); ++d) {
    if (tensors[0].size(d) == 1) {
      continue;
    }
    Dimension dimension{tensors[0].size(d), {}};
    for (const Tensor& tensor : tensors) {
      dimension.stride.push_back(tensor.stride(d));
    }
    auto place = outer_first.end();
    while (place != outer_first.begin() && (place - 1)->stride[0] < dimension.stride[0]) {
      --place;
    }
    outer_first.insert(place, dimension);
  }
  std::vector<Dimension> joined;
  for (const Dimension& inner : outer_first) {
    bool joins = !joined.empty();
    for (size_t k = 0; joins && k < tensors.size(); ++k) {
      joins = joined.back().stride[k] == inner.size * inner.stride[k];
    }
    if (joins) {
      joined.back() = {joined.back().size * inner.size, inner.stride};
    } else {
      joined.push_back(inner);
    }
  }
  const std::vector<int64_t> adjacent(tensors.size(), 1);
  if (joined.empty()) {
    joined.push_back({1, adjacent});
  }
  if (joined.size() > 2 || joined.back().stride != adjacent) {
    return false;
  }
  layout.columns = joined.back().size;
  layout.rows = joined.size() == 2 ? joined[0].size : 1;
  layout.stride = joined.size() == 2 ? joined[0].stride : std::vector<int64_t>(tensors.size(), 0);
  return true;
}

// Uninitialised tensor [*batch, C, H, W] with memory order [*batch, H, W, C].
inline Tensor new_channels_last(const Tensor& like, const std::vector<int64_t>& batch, int64_t channels, int64_t height,
                                int64_t width, ScalarType dtype) {
  if (batch.size() == 1 && batch[0] * channels * height * width > 0) {  // one dispatcher call instead of three
    return torch::stable::empty({batch[0], channels, height, width}, dtype, std::nullopt, like.device(), std::nullopt,
                                torch::headeronly::MemoryFormat::ChannelsLast);
  }
  std::vector<int64_t> shape = batch;
  shape.insert(shape.end(), {height, width, channels});
  const Tensor out = torch::stable::new_empty(like, shape, dtype);
  const int64_t last = out.dim() - 1;
  // [..., H, W, C] -> [..., C, W, H] -> [..., C, H, W]: a view, the memory order stays H, W, C.
  return torch::stable::transpose(torch::stable::transpose(out, last - 2, last), last - 1, last);
}

}  // namespace pfl
