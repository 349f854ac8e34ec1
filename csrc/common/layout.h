// Memory layouts: contiguous tensors, tensors of one shape as strided rows of contiguous columns, and channels-last
// images.
#pragma once

#include "common/check.h"

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
    auto position = outer_first.end();
    while (position != outer_first.begin() && (position - 1)->stride[0] < dimension.stride[0]) {
      --position;
    }
    outer_first.insert(position, dimension);
  }
  std::vector<Dimension> merged;
  for (const Dimension& inner : outer_first) {
    bool merges = !merged.empty();
    for (size_t k = 0; merges && k < tensors.size(); ++k) {
      merges = merged.back().stride[k] == inner.size * inner.stride[k];
    }
    if (merges) {
      merged.back() = {merged.back().size * inner.size, inner.stride};
    } else {
      merged.push_back(inner);
    }
  }
  const std::vector<int64_t> contiguous(tensors.size(), 1);
  if (merged.empty()) {
    merged.push_back({1, contiguous});
  }
  if (merged.size() > 2 || merged.back().stride != contiguous) {
    return false;
  }
  layout.columns = merged.back().size;
  layout.rows = merged.size() == 2 ? merged[0].size : 1;
  layout.stride = merged.size() == 2 ? merged[0].stride : std::vector<int64_t>(tensors.size(), 0);
  return true;
}

// Avoids a dispatcher call for contiguous tensors: on a small batch it costs as much as the kernel.
inline Tensor as_contiguous(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
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
