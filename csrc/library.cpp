// Schemas of all pfl_fast operators. Contracts and kernels are in ops/<op>/.
#include "common/torch.h"

STABLE_TORCH_LIBRARY(pfl_fast, m) {
  m.def("aggregate(Tensor[] stacked, Tensor weights, bool count_nonfinite) -> (Tensor[], Tensor)");
  m.def("aggregate_into(Tensor(a!)[] out, Tensor[] stacked, Tensor weights, bool count_nonfinite) -> Tensor");
  m.def("aggregate_rows(Tensor[] rows, Tensor weights, bool count_nonfinite) -> (Tensor[], Tensor)");
  m.def(
      "aggregate_backward(Tensor[] grads, Tensor[] stacked, Tensor weights, bool needs_stacked, bool needs_weights)"
      " -> (Tensor[], Tensor)");
  m.def("conv_relu_pool(Tensor x, Tensor weight, Tensor bias, int padding) -> (Tensor, Tensor)");
  m.def(
      "conv_relu_pool_backward(Tensor grad, Tensor x, Tensor weight, Tensor index, int padding, bool needs_x,"
      " bool needs_weight) -> (Tensor, Tensor, Tensor)");
  m.def("mmd_rbf(Tensor x, Tensor y, float[] bandwidths) -> (Tensor, Tensor)");
  m.def(
      "mmd_rbf_backward(Tensor grad, Tensor x, Tensor y, Tensor weights, bool needs_x, bool needs_y)"
      " -> (Tensor, Tensor)");
  m.def("distill_losses(Tensor y_g, Tensor y_p, Tensor y_u, Tensor target) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "distill_losses_backward(Tensor grad_gce, Tensor grad_lce, Tensor grad_ent, Tensor grad_dis, Tensor y_g,"
      " Tensor y_p, Tensor y_u, Tensor target) -> (Tensor, Tensor, Tensor)");
  m.def(
      "gumbel_mask(Tensor z, Tensor logits, Tensor? seed, float tau, float threshold, bool hard)"
      " -> (Tensor, Tensor, Tensor)");
  m.def(
      "gumbel_mask_backward(Tensor grad_selected, Tensor grad_rest, Tensor z, Tensor noisy, float tau,"
      " float threshold, bool hard) -> (Tensor, Tensor)");
  m.def("mix(Tensor[] local, Tensor[] global_, Tensor[] choice, int[] segments, bool hard) -> Tensor[]");
  m.def(
      "mix_backward(Tensor[] grads, Tensor[] local, Tensor[] global_, Tensor[] choice, int[] segments, bool hard, "
      "bool needs_local, bool needs_global, bool needs_choice) -> (Tensor[], Tensor[], Tensor[])");
  m.def(
      "cpn_route(Tensor h, Tensor a, Tensor gamma, Tensor beta, float eps, Tensor? seed, float tau)"
      " -> (Tensor, Tensor, Tensor)");
  m.def(
      "cpn_route_backward(Tensor grad_global, Tensor grad_personal, Tensor h, Tensor a, Tensor gamma, Tensor beta,"
      " Tensor stats, Tensor? seed, float tau) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "orthogonal_project(Tensor f_g, Tensor f_p, Tensor basis_g, Tensor basis_p, float alpha, bool relu)"
      " -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "orthogonal_project_backward(Tensor? v_g, Tensor? v_p, Tensor? v_fused, Tensor? v_inner, Tensor g, Tensor p,"
      " Tensor basis_g, Tensor basis_p, float alpha, bool relu, bool needs_g, bool needs_p) -> (Tensor, Tensor)");
  m.def("philox_uniform(Tensor seed, int[] shape) -> Tensor");
  m.def(
      "sgd_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] momentum_buffers, Tensor[] center, float lr, "
      "float momentum, float dampening, float weight_decay, bool nesterov, float proximal, bool first_step) -> ()");
  m.def(
      "sgd_tensor_(Tensor(a!) param, Tensor grad, Tensor(b!)? momentum_buffer, Tensor? center, float lr, "
      "float momentum, float dampening, float weight_decay, bool nesterov, float proximal, bool first_step) -> ()");
  m.def("route(Tensor h, Tensor a, Tensor? seed, float tau) -> (Tensor, Tensor)");
  m.def(
      "route_backward(Tensor grad_global, Tensor grad_personal, Tensor h, Tensor a, Tensor? seed, float tau)"
      " -> (Tensor, Tensor)");
  m.def(
      "take_normalized(Tensor images, Tensor index, Tensor mean, Tensor std, bool channels_last, ScalarType dtype) "
      "-> Tensor");
  m.def("cpu_capability() -> str");
}
