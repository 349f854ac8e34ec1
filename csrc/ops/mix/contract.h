// The contract of `mix`: two sets of parameters interpolated by a choice.
//
//   local, global_  [T] tensors each, matching shapes, one floating type, one device
//   choice          with segments [T]: one tensor [*batch, S]; tensor t has shape [*batch, ...] and uses column
//                   segments[t]. Without segments: [T] tensors with the shapes of local
//   out_t           local_t + c * (global_t - local_t); exactly local_t where c is 0 and global_t where c is 1
//   hard            rounds c to 1 for c >= 0.5, else to 0; gradients are those of the soft choice (straight-through)
#pragma once

#include "common/check.h"
#include "ops/mix/problem.h"

namespace pfl {

inline void check_mix_list(const char* op, const char* name, const std::vector<Tensor>& tensors,
                           const std::vector<Tensor>& local) {
  PFL_CHECK(tensors.size() == local.size(), op, ": ", name, " must hold ", local.size(),
            " tensors, one for each of local, got ", tensors.size());
  for (size_t t = 0; t < tensors.size(); ++t) {
    const std::string tensor_name = concatenate(name, "[", t, "]"), local_name = concatenate("local[", t, "]");
    check_shape(op, tensor_name, tensors[t], local_name, local[t]);
    check_dtype(op, tensor_name, tensors[t], local_name, local[t]);
    check_device(op, tensor_name, tensors[t], local_name, local[t]);
  }
}

inline void check_mix_segments(const char* op, const std::vector<Tensor>& local, const std::vector<Tensor>& choices,
                               const std::vector<int64_t>& segments) {
  PFL_CHECK(choices.size() == 1, op, ": choice must be one tensor with segments, got ", choices.size());
  const Tensor& choice = choices[0];
  const ScalarType type = local[0].scalar_type();
  PFL_CHECK(choice.scalar_type() == type || choice.scalar_type() == accumulate_type(type), op,
            ": choice must have the dtype of local, ", type, ", or ", accumulate_type(type), ", got ",
            choice.scalar_type());
  check_device(op, "choice", choice, "local[0]", local[0]);
  PFL_CHECK(choice.dim() >= 1, op, ": choice must be [*batch, segments], got shape ", shape_of(choice));
  const int64_t batch = choice.dim() - 1;
  PFL_CHECK(segments.size() == local.size(), op, ": segments must hold ", local.size(),
            " numbers, one for each of local, got ", segments.size());
  for (size_t t = 0; t < local.size(); ++t) {
    PFL_CHECK(segments[t] >= 0 && segments[t] < choice.size(batch), op, ": segments[", t, "] must be in [0, ",
              choice.size(batch), "), the segments of choice, got ", segments[t]);
    bool fits = local[t].dim() >= batch;
    for (int64_t d = 0; fits && d < batch; ++d) {
      fits = local[t].size(d) == choice.size(d);
    }
    PFL_CHECK(fits, op, ": local[", t, "] must begin with the batch dimensions of choice ", shape_of(choice),
              ", got shape ", shape_of(local[t]));
  }
}

inline void check_mix(const char* op, const std::vector<Tensor>& local, const std::vector<Tensor>& global,
                      const std::vector<Tensor>& choice, const std::vector<int64_t>& segments) {
  for (size_t t = 0; t < local.size(); ++t) {
    const std::string name = concatenate("local[", t, "]");
    check_float(op, name, local[t]);
    check_dtype(op, name, local[t], "local[0]", local[0]);
    check_device(op, name, local[t], "local[0]", local[0]);
  }
  check_mix_list(op, "global_", global, local);
  if (segments.empty()) {
    check_mix_list(op, "choice", choice, local);
  } else {
    check_mix_segments(op, local, choice, segments);
  }
}

// Returns true and sets `stride` if dimensions `lead` and later are contiguous and the earlier ones have one stride.
inline bool has_rows(const Tensor& tensor, int64_t lead, int64_t& stride) {
  int64_t expected = 1;
  for (int64_t d = tensor.dim() - 1; d >= lead; --d) {
    if (tensor.size(d) != 1 && tensor.stride(d) != expected) {
      return false;
    }
    expected *= tensor.size(d);
  }
  stride = 0;
  bool found = false;
  for (int64_t d = lead - 1; d >= 0; --d) {
    if (tensor.size(d) == 1) {
      continue;
    }
    if (found && tensor.stride(d) != expected) {
      return false;
    }
    stride = found ? stride : tensor.stride(d);
    found = true;
    expected = tensor.stride(d) * tensor.size(d);
  }
  return true;
}

// Tensors as raw pointers and row strides; owns the memory the pointers refer to.
class MixPlan {
 public:
  MixPlan(const std::vector<Tensor>& local, const std::vector<Tensor>& global, const std::vector<Tensor>& choice,
          const std::vector<int64_t>& segments, const std::vector<Tensor>& grads, bool hard)
      : hard_(hard), segment_(segments) {
    const ScalarType type = local[0].scalar_type();
    dtype_ = kernel_type(type);
    if (!segments.empty()) {
      choice_ = torch::stable::contiguous(torch::stable::to(choice[0], accumulate_type(type)));
      segments_ = choice_.size(choice_.dim() - 1);
    }
    for (size_t t = 0; t < local.size(); ++t) {
      std::vector<Tensor> operands{local[t], global[t]};
      if (segments.empty()) {
        operands.push_back(choice[t]);
      }
      if (!grads.empty()) {
        operands.push_back(grads[t]);
      }
      const int64_t lead = segments.empty() ? leading_dimensions(operands) : choice_.dim() - 1;
      std::vector<int64_t> stride;
      for (Tensor& tensor : operands) {
        int64_t found = 0;
        if (!has_rows(tensor, lead, found)) {
          tensor = torch::stable::contiguous(tensor);
          has_rows(tensor, lead, found);
        }
        stride.push_back(found);
      }
      add(operands, lead, stride, segments.empty(), !grads.empty());
    }
  }

  MixTensors tensors() const {
    return {dtype_,          static_cast<int64_t>(rows_.size()),
            hard_,           local_.data(),
            global_.data(),  segment_.empty() ? choices_.data() : nullptr,
            rows_.data(),    columns_.data(),
            stride_.data(),  segment_.empty() ? nullptr : choice_.const_data_ptr(),
            segment_.data(), segments_};
  }

  const void* const* grads() const {
    return grads_.data();
  }

  // [T + 1]: index of the first tile of each tensor, for tiles of this many columns.
  std::vector<int64_t> first_tiles(int64_t tile) const {
    std::vector<int64_t> first{0};
    for (size_t t = 0; t < rows_.size(); ++t) {
      first.push_back(first.back() + rows_[t] * ((columns_[t] + tile - 1) / tile));
    }
    return first;
  }

 private:
  static int64_t leading_dimensions(const std::vector<Tensor>& operands) {
    for (const Tensor& tensor : operands) {
      if (!tensor.is_contiguous()) {
        return tensor.dim() > 0 ? 1 : 0;
      }
    }
    return 0;
  }

  void add(const std::vector<Tensor>& operands, int64_t lead, const std::vector<int64_t>& stride, bool elementwise,
           bool has_grads) {
    owners_.insert(owners_.end(), operands.begin(), operands.end());
    int64_t rows = 1, columns = 1;
    for (int64_t d = 0; d < operands[0].dim(); ++d) {
      (d < lead ? rows : columns) *= operands[0].size(d);
    }
    rows_.push_back(rows);
    columns_.push_back(columns);
    local_.push_back(operands[0].const_data_ptr());
    global_.push_back(operands[1].const_data_ptr());
    stride_.insert(stride_.end(), {stride[0], stride[1], 0, 0});
    if (elementwise) {
      choices_.push_back(operands[2].const_data_ptr());
      stride_.end()[-2] = stride[2];
    }
    if (has_grads) {
      grads_.push_back(operands.back().const_data_ptr());
      stride_.end()[-1] = stride.back();
    }
  }

  Float dtype_;
  bool hard_;
  Tensor choice_;
  int64_t segments_ = 0;
  std::vector<int64_t> segment_;
  std::vector<Tensor> owners_;  // keeps copies alive
  std::vector<const void*> local_, global_, choices_, grads_;
  std::vector<int64_t> rows_, columns_, stride_;
};

inline std::vector<Tensor> new_like(const std::vector<Tensor>& tensors, bool wanted) {
  std::vector<Tensor> results;
  for (size_t t = 0; wanted && t < tensors.size(); ++t) {
    results.push_back(torch::stable::new_empty(tensors[t], tensors[t].sizes()));
  }
  return results;
}

inline std::vector<void*> addresses_of(const std::vector<Tensor>& tensors) {
  std::vector<void*> addresses;
  for (const Tensor& tensor : tensors) {
    addresses.push_back(tensor.mutable_data_ptr());
  }
  return addresses;
}

template <class Kernel>
std::vector<Tensor> mix(std::vector<Tensor> local, std::vector<Tensor> global, std::vector<Tensor> choice,
                        std::vector<int64_t> segments, bool hard) {
  check_mix("pfl_fast::mix", local, global, choice, segments);
  const MixPlan plan(local, global, choice, segments, {}, hard);
  std::vector<Tensor> out = new_like(local, true);
  const std::vector<void*> destinations = addresses_of(out);
  Kernel(local[0]).forward(MixForward{plan.tensors(), destinations.data()}, plan);
  return out;
}

template <class Kernel>
std::tuple<std::vector<Tensor>, std::vector<Tensor>, std::vector<Tensor>> mix_backward(
    std::vector<Tensor> grads, std::vector<Tensor> local, std::vector<Tensor> global, std::vector<Tensor> choice,
    std::vector<int64_t> segments, bool hard, bool needs_local, bool needs_global, bool needs_choice) {
  const char* op = "pfl_fast::mix_backward";
  check_mix(op, local, global, choice, segments);
  check_mix_list(op, "grads", grads, local);
  const MixPlan plan(local, global, choice, segments, grads, hard);
  const bool sums = needs_choice && !segments.empty();
  std::vector<Tensor> grad_local = new_like(local, needs_local), grad_global = new_like(local, needs_global);
  std::vector<Tensor> grad_choice = new_like(local, needs_choice && !sums);
  const std::vector<void*> to_local = addresses_of(grad_local), to_global = addresses_of(grad_global);
  const std::vector<void*> to_choices = addresses_of(grad_choice);
  const std::vector<int64_t> tiles{sums ? plan.first_tiles(Kernel::kTile).back() : 0};
  const Tensor partial = torch::stable::new_empty(local[0], tiles, ScalarType::Double);
  const Tensor sum = sums ? torch::stable::new_zeros(choice[0], choice[0].sizes(), ScalarType::Double) : partial;
  const MixBackward problem{plan.tensors(),
                            plan.grads(),
                            needs_local ? to_local.data() : nullptr,
                            needs_global ? to_global.data() : nullptr,
                            needs_choice && !sums ? to_choices.data() : nullptr,
                            sums ? partial.mutable_data_ptr<double>() : nullptr,
                            sums ? sum.mutable_data_ptr<double>() : nullptr};
  Kernel(local[0]).backward(problem, plan);
  if (sums) {
    grad_choice.push_back(torch::stable::to(sum, choice[0].scalar_type()));
  }
  return {std::move(grad_local), std::move(grad_global), std::move(grad_choice)};
}

template <class Kernel, class Library>
void register_mix(Library& m) {
  m.impl("mix", TORCH_BOX(&mix<Kernel>));
  m.impl("mix_backward", TORCH_BOX(&mix_backward<Kernel>));
}

}  // namespace pfl
