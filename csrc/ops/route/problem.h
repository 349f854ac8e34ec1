// Problem structs passed from the tensor code of `route` to its raw kernels.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "cpu/capability.h"
#include "ops/route/tuning.h"

namespace pfl {

struct RouteSizes {
  Float dtype;
  int64_t clients;   // C
  int64_t rows;      // b, rows per client
  int64_t features;  // K
};

struct RouteInputs {
  const void* h;         // [C, b, K]
  const void* a;         // [C, b, 2K]
  const int64_t* seeds;  // [C], null without noise
  double tau;
};

struct RouteForward {
  RouteSizes sizes;
  RouteInputs inputs;
  void* global_part;    // [C, b, K]
  void* personal_part;  // [C, b, K]
};

struct RouteBackward {
  RouteSizes sizes;
  RouteInputs inputs;
  const void* grad_global;    // [C, b, K]
  const void* grad_personal;  // [C, b, K]
  void* grad_h;               // [C, b, K]
  void* grad_a;               // [C, b, 2K]
};

// [begin, end): range of the C * b rows.
PFL_DECLARE_CPU_KERNEL(route_forward, (const RouteForward& p, int64_t begin, int64_t end))
PFL_DECLARE_CPU_KERNEL(route_backward, (const RouteBackward& p, int64_t begin, int64_t end))

}  // namespace pfl

extern "C" {
int pfl_cuda_route(const pfl::RouteForward* problem, void* stream);
int pfl_cuda_route_backward(const pfl::RouteBackward* problem, void* stream);
}
