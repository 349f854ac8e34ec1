// The contract of `distill_losses`: the four terms of FedPick's loss, averaged over a batch.
//
//   y_g, y_p, y_u  [*batch, b, C] logits, one shape, floating type and device; C >= 1
//   target         [*batch, b] int64 in [0, C); values are checked in host memory only, to avoid a GPU synchronisation
//   results        [*batch], float64 for float64 logits, else float32; 0 for b = 0:
//                  gce = mean -log p_g[target]        lce = mean -log p_p[target]
//                  ent = mean sum_c p_u log p_u       dis = mean KL(p_p || p_g) + KL(p_g || p_p)
#pragma once

#include "common/check.h"
#include "ops/distill_losses/problem.h"

namespace pfl {

inline void check_target(const char* op, const Tensor& target, const Tensor& y_g) {
  PFL_CHECK(target.scalar_type() == ScalarType::Long, op, ": target must be an int64 tensor, got ",
            target.scalar_type());
  check_device(op, "target", target, "y_g", y_g);
  bool fits = target.dim() == y_g.dim() - 1;
  for (int64_t d = 0; fits && d < target.dim(); ++d) {
    fits = target.size(d) == y_g.size(d);
  }
  PFL_CHECK(fits, op, ": target must have the shape of y_g without its classes, ", shape_of(y_g), ", got ",
            shape_of(target));
  if (target.is_cpu()) {
    const int64_t classes = y_g.size(y_g.dim() - 1);
    const Tensor values = torch::stable::contiguous(target);
    const int64_t* t = values.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < values.numel(); ++i) {
      PFL_CHECK(t[i] >= 0 && t[i] < classes, op, ": target must be from 0 to ", classes - 1, ", got ", t[i],
                " at flat index ", i);
    }
  }
}

inline void check_distill_losses(const char* op, const Tensor& y_g, const Tensor& y_p, const Tensor& y_u,
                                 const Tensor& target) {
  check_float(op, "y_g", y_g);
  PFL_CHECK(y_g.dim() >= 2 && y_g.size(y_g.dim() - 1) > 0, op,
            ": y_g must be [*batch, b, classes] with at least one class, got shape ", shape_of(y_g));
  for (const auto& [name, y] : {std::make_pair("y_p", &y_p), {"y_u", &y_u}}) {
    check_dtype(op, name, *y, "y_g", y_g);
    check_device(op, name, *y, "y_g", y_g);
    check_shape(op, name, *y, "y_g", y_g);
  }
  check_target(op, target, y_g);
}

// Contiguous inputs; owns the memory that `in` points to.
struct DistillPlan {
  DistillInputs in;
  std::vector<int64_t> batch;  // shape of a result
  Tensor y_g, y_p, y_u, target;

  DistillPlan(const Tensor& given_g, const Tensor& given_p, const Tensor& given_u, const Tensor& given_target)
      : y_g(torch::stable::contiguous(given_g)),
        y_p(torch::stable::contiguous(given_p)),
        y_u(torch::stable::contiguous(given_u)),
        target(torch::stable::contiguous(given_target)) {
    int64_t clients = 1;
    for (int64_t d = 0; d < given_g.dim() - 2; ++d) {
      batch.push_back(given_g.size(d));
      clients *= given_g.size(d);
    }
    in = {kernel_type(given_g.scalar_type()),
          clients,
          given_g.size(given_g.dim() - 2),
          given_g.size(given_g.dim() - 1),
          y_g.const_data_ptr(),
          y_p.const_data_ptr(),
          y_u.const_data_ptr(),
          target.const_data_ptr<int64_t>()};
  }
};

using DistillResults = std::tuple<Tensor, Tensor, Tensor, Tensor>;

template <class Run>
DistillResults distill_losses(const Tensor& y_g, const Tensor& y_p, const Tensor& y_u, const Tensor& target, Run run) {
  check_distill_losses("pfl_fast::distill_losses", y_g, y_p, y_u, target);
  const DistillPlan plan(y_g, y_p, y_u, target);
  const auto new_result = [&] {
    // Without rows the kernel writes nothing.
    return plan.in.rows > 0 ? torch::stable::new_empty(y_g, plan.batch, accumulate_type(y_g.scalar_type()))
                            : torch::stable::new_zeros(y_g, plan.batch, accumulate_type(y_g.scalar_type()));
  };
  DistillResults results{new_result(), new_result(), new_result(), new_result()};
  const std::vector<int64_t> partial_shape{plan.in.clients, distill_parts(plan.in.rows), kDistillTerms};
  const Tensor partial = torch::stable::new_empty(y_g, partial_shape, ScalarType::Double);
  if (plan.in.clients * plan.in.rows > 0) {
    run(DistillForward{plan.in,
                       partial.mutable_data_ptr<double>(),
                       {std::get<0>(results).mutable_data_ptr(), std::get<1>(results).mutable_data_ptr(),
                        std::get<2>(results).mutable_data_ptr(), std::get<3>(results).mutable_data_ptr()}});
  }
  return results;
}

template <class Run>
std::tuple<Tensor, Tensor, Tensor> distill_losses_backward(const std::vector<Tensor>& grads, const Tensor& y_g,
                                                           const Tensor& y_p, const Tensor& y_u, const Tensor& target,
                                                           Run run) {
  const char* op = "pfl_fast::distill_losses_backward";
  check_distill_losses(op, y_g, y_p, y_u, target);
  const DistillPlan plan(y_g, y_p, y_u, target);
  DistillBackward problem{plan.in, {}, nullptr, nullptr, nullptr};
  std::vector<Tensor> contiguous;
  for (size_t i = 0; i < grads.size(); ++i) {
    const std::string name = concatenate("grads[", i, "]");
    PFL_CHECK(grads[i].scalar_type() == accumulate_type(y_g.scalar_type()), op, ": ", name, " must be ",
              accumulate_type(y_g.scalar_type()), ", got ", grads[i].scalar_type());
    check_device(op, name, grads[i], "y_g", y_g);
    const auto sizes = grads[i].sizes();
    PFL_CHECK(std::vector<int64_t>(sizes.begin(), sizes.end()) == plan.batch, op, ": ", name,
              " must have the leading dimensions of y_g, ", shape_of(y_g), ", got shape ", shape_of(grads[i]));
    contiguous.push_back(torch::stable::contiguous(grads[i]));
    problem.grads[i] = contiguous.back().const_data_ptr();
  }
  Tensor grad_g = torch::stable::new_empty(y_g, y_g.sizes());
  Tensor grad_p = torch::stable::new_empty(y_g, y_g.sizes());
  Tensor grad_u = torch::stable::new_empty(y_g, y_g.sizes());
  problem.grad_g = grad_g.mutable_data_ptr();
  problem.grad_p = grad_p.mutable_data_ptr();
  problem.grad_u = grad_u.mutable_data_ptr();
  if (plan.in.clients * plan.in.rows > 0) {
    run(problem);
  }
  return {std::move(grad_g), std::move(grad_p), std::move(grad_u)};
}

}  // namespace pfl
