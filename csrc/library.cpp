// The operators of pfl_fast: one schema line each. Contracts stand in <op>.h, kernels in cpu/ and cuda/.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(pfl_fast, m) {
  m.def("aggregate(Tensor[] stacked, Tensor weights, bool count_nonfinite) -> (Tensor[], Tensor)");
  m.def("aggregate_into(Tensor(a!)[] out, Tensor[] stacked, Tensor weights, bool count_nonfinite) -> Tensor");
  m.def("aggregate_rows(Tensor[] rows, Tensor weights, bool count_nonfinite) -> (Tensor[], Tensor)");
  m.def(
      "aggregate_backward(Tensor[] grads, Tensor[] stacked, Tensor weights, bool needs_stacked, bool needs_weights)"
      " -> (Tensor[], Tensor)");
  m.def("distill_losses(Tensor y_g, Tensor y_p, Tensor y_u, Tensor target) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "distill_losses_backward(Tensor grad_gce, Tensor grad_lce, Tensor grad_ent, Tensor grad_dis, Tensor y_g,"
      " Tensor y_p, Tensor y_u, Tensor target) -> (Tensor, Tensor, Tensor)");
  m.def(
      "gumbel_mask(Tensor z, Tensor logits, Tensor? seed, float tau, float threshold, bool hard) -> (Tensor, Tensor)");
  m.def(
      "gumbel_mask_backward(Tensor grad_selected, Tensor grad_rest, Tensor z, Tensor logits, Tensor? seed, float tau,"
      " float threshold, bool hard) -> (Tensor, Tensor)");
  m.def("philox_uniform(Tensor seed, int[] shape) -> Tensor");
  m.def("cpu_capability() -> str");
}
