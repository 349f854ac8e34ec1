// The contract of `sgd_`: one in-place step of stochastic gradient descent on a list of tensors, in one pass.
//
//   params, grads, momentum_buffers, center   [T] tensors each, matching shapes, one floating type, one device
//   g   = grad + proximal * (p - center)                     only with proximal > 0
//   g   = g + weight_decay * p                               only with weight_decay > 0
//   buf = momentum * buf + (1 - dampening) * g               only with momentum > 0; buf = g if first_step
//   g   = g + momentum * buf if nesterov, else buf           only with momentum > 0
//   p   = p - lr * g
//
// `sgd_tensor_` is the same for one tensor.
//
// Each line rounds like torch's add(x, alpha): one fused multiply-add (momentum * buf is rounded first). Half types are
// computed in float and rounded once at the end.
#pragma once

#include "common/check.h"
#include "common/layout.h"
#include "ops/sgd/problem.h"

namespace pfl {

struct SgdOptions {
  double lr, momentum, dampening, weight_decay;
  bool nesterov;
  double proximal;
  bool first_step;
};

inline void check_sgd_options(const SgdOptions& o) {
  const char* op = "pfl_fast::sgd_";
  PFL_CHECK(o.lr >= 0 && std::isfinite(o.lr), op, ": lr must be finite and not negative, got ", o.lr);
  PFL_CHECK(o.momentum >= 0 && o.momentum < 1, op, ": momentum must be in [0, 1), got ", o.momentum);
  PFL_CHECK(std::isfinite(o.dampening), op, ": dampening must be finite, got ", o.dampening);
  PFL_CHECK(o.weight_decay >= 0 && std::isfinite(o.weight_decay), op,
            ": weight_decay must be finite and not negative, got ", o.weight_decay);
  PFL_CHECK(o.proximal >= 0 && std::isfinite(o.proximal), op, ": proximal must be finite and not negative, got ",
            o.proximal);
  PFL_CHECK(!o.nesterov || (o.momentum > 0 && o.dampening == 0), op,
            ": nesterov must have momentum > 0 and dampening 0, got momentum ", o.momentum, " and dampening ",
            o.dampening);
}

inline void check_like_params(const char* name, const std::vector<Tensor>& tensors, const std::vector<Tensor>& params) {
  const char* op = "pfl_fast::sgd_";
  PFL_CHECK(tensors.size() == params.size(), op, ": ", name, " must hold ", params.size(),
            " tensors, one for each of params, got ", tensors.size());
  for (size_t t = 0; t < tensors.size(); ++t) {
    const std::string tensor_name = concatenate(name, "[", t, "]"), param_name = concatenate("params[", t, "]");
    check_shape(op, tensor_name, tensors[t], param_name, params[t]);
    check_dtype(op, tensor_name, tensors[t], param_name, params[t]);
    check_device(op, tensor_name, tensors[t], param_name, params[t]);
  }
}

inline void check_writable(const char* name, const std::vector<Tensor>& tensors) {
  for (size_t t = 0; t < tensors.size(); ++t) {
    for (int64_t d = 0; d < tensors[t].dim(); ++d) {
      PFL_CHECK(tensors[t].size(d) < 2 || tensors[t].stride(d) != 0, "pfl_fast::sgd_: ", name, "[", t,
                "] must not be expanded, as it is written to, got stride 0 in dimension ", d, " of ",
                shape_of(tensors[t]));
    }
  }
}

inline void check_sgd(const std::vector<Tensor>& params, const std::vector<Tensor>& grads,
                      const std::vector<Tensor>& momentum_buffers, const std::vector<Tensor>& center,
                      const SgdOptions& options) {
  const char* op = "pfl_fast::sgd_";
  check_sgd_options(options);
  for (size_t t = 0; t < params.size(); ++t) {
    const std::string name = concatenate("params[", t, "]");
    check_float(op, name, params[t]);
    check_dtype(op, name, params[t], "params[0]", params[0]);
    check_device(op, name, params[t], "params[0]", params[0]);
  }
  check_like_params("grads", grads, params);
  check_writable("params", params);
  if (options.momentum > 0) {
    check_like_params("momentum_buffers", momentum_buffers, params);
    check_writable("momentum_buffers", momentum_buffers);
  }
  if (options.proximal > 0) {
    check_like_params("center", center, params);
  }
}

// Tensors as raw pointers and row strides. Tensors without a common row layout are copied, and results copied back.
class SgdPlan {
 public:
  SgdPlan(const std::vector<Tensor>& params, const std::vector<Tensor>& grads, const std::vector<Tensor>& momenta,
          const std::vector<Tensor>& centers) {
    for (size_t t = 0; t < params.size(); ++t) {
      std::vector<Tensor> operands{params[t], grads[t]};
      if (!momenta.empty()) {
        operands.push_back(momenta[t]);
      }
      if (!centers.empty()) {
        operands.push_back(centers[t]);
      }
      RowLayout layout;
      if (params[t].numel() > 0 && !find_rows(operands, layout)) {
        for (size_t k = 0; k < operands.size(); ++k) {
          const Tensor given = operands[k];
          operands[k] = torch::stable::contiguous(given);
          const bool written = k == 0 || (k == 2 && !momenta.empty());
          if (written && !given.is_contiguous()) {
            copied_.push_back({given, operands[k]});
          }
        }
        find_rows(operands, layout);
      }
      add(operands, layout, !momenta.empty(), !centers.empty());
    }
  }

  Sgd problem(Float dtype, const SgdOptions& o) const {
    return {dtype,           static_cast<int64_t>(rows_.size()),
            params_.data(),  grads_.data(),
            momenta_.data(), centers_.data(),
            rows_.data(),    columns_.data(),
            stride_.data(),  o.lr,
            o.momentum,      o.dampening,
            o.weight_decay,  o.proximal,
            o.nesterov,      o.first_step};
  }

  void copy_back() {
    for (Copied& copied : copied_) {
      torch::stable::copy_(copied.given, copied.contiguous);
    }
  }

 private:
  struct Copied {
    Tensor given, contiguous;
  };

  void add(const std::vector<Tensor>& operands, const RowLayout& layout, bool momentum, bool center) {
    const auto stride_of = [&](size_t k) { return layout.stride.empty() ? 0 : layout.stride[k]; };
    owners_.insert(owners_.end(), operands.begin(), operands.end());
    params_.push_back(operands[0].mutable_data_ptr());
    grads_.push_back(operands[1].const_data_ptr());
    rows_.push_back(layout.rows);
    columns_.push_back(layout.columns);
    stride_.insert(stride_.end(), {stride_of(0), stride_of(1), 0, 0});
    if (momentum) {
      momenta_.push_back(operands[2].mutable_data_ptr());
      stride_.end()[-2] = stride_of(2);
    }
    if (center) {
      centers_.push_back(operands.back().const_data_ptr());
      stride_.end()[-1] = stride_of(operands.size() - 1);
    }
  }

  std::vector<Tensor> owners_;  // keeps copies alive
  std::vector<Copied> copied_;
  std::vector<void*> params_, momenta_;
  std::vector<const void*> grads_, centers_;
  std::vector<int64_t> rows_, columns_, stride_;
};

template <class Run>
void sgd(const std::vector<Tensor>& params, const std::vector<Tensor>& grads, const std::vector<Tensor>& momenta,
         const std::vector<Tensor>& center, const SgdOptions& options, Run run) {
  check_sgd(params, grads, momenta, center, options);
  if (params.empty()) {
    return;
  }
  const std::vector<Tensor> none;
  SgdPlan plan(params, grads, options.momentum > 0 ? momenta : none, options.proximal > 0 ? center : none);
  run(plan.problem(kernel_type(params[0].scalar_type()), options));
  plan.copy_back();
}

inline std::vector<Tensor> as_list(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? std::vector<Tensor>{*tensor} : std::vector<Tensor>{};
}

}  // namespace pfl
