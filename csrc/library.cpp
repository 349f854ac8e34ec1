// The operators of pfl_fast: one schema line each. Contracts stand in <op>.h, kernels in cpu/ and cuda/.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(pfl_fast, m) {
  m.def("aggregate(Tensor[] stacked, Tensor weights, bool count_nonfinite) -> (Tensor[], Tensor)");
  m.def("aggregate_into(Tensor(a!)[] out, Tensor[] stacked, Tensor weights, bool count_nonfinite) -> Tensor");
  m.def("aggregate_rows(Tensor[] rows, Tensor weights, bool count_nonfinite) -> (Tensor[], Tensor)");
  m.def(
      "aggregate_backward(Tensor[] grads, Tensor[] stacked, Tensor weights, bool needs_stacked, bool needs_weights)"
      " -> (Tensor[], Tensor)");
  m.def(
      "cpn_route(Tensor h, Tensor a, Tensor gamma, Tensor beta, float eps, Tensor? seed, float tau)"
      " -> (Tensor, Tensor)");
  m.def(
      "cpn_route_backward(Tensor grad_global, Tensor grad_personal, Tensor h, Tensor a, Tensor gamma, Tensor beta,"
      " float eps, Tensor? seed, float tau) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def("philox_uniform(Tensor seed, int[] shape) -> Tensor");
  m.def("route(Tensor h, Tensor a, Tensor? seed, float tau) -> (Tensor, Tensor)");
  m.def(
      "route_backward(Tensor grad_global, Tensor grad_personal, Tensor h, Tensor a, Tensor? seed, float tau)"
      " -> (Tensor, Tensor)");
  m.def("cpu_capability() -> str");
}
