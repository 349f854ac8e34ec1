// Problem structs passed from the tensor code of `orthogonal_project` to its raw kernels.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "cpu/capability.h"
#include "ops/orthogonal_project/tuning.h"

namespace pfl {

// One of the two subspaces: an orthonormal basis and scratch memory for the coordinates of every sample.
struct Subspace {
  const void* basis;    // [C, d, rank], or [d, rank] shared by all clients
  int64_t rank;         // r
  int64_t stride;       // client stride of the basis in elements, 0 if shared
  void* coordinates;    // [C, b, padded_rank] in the accumulation type, overwritten
  int64_t padded_rank;  // r rounded up to a multiple of kProjectLanes
};

struct ProjectSizes {
  Float dtype;
  int64_t clients;   // C
  int64_t samples;   // b
  int64_t features;  // d
  double alpha;
  int64_t relu;  // 0 or 1
};

// g = (f_g A_g) A_g^T, p = (f_p A_p) A_p^T, each max(0, .) with relu; fused = alpha g + (1 - alpha) p; inner = g . p
struct OrthogonalProject {
  ProjectSizes sizes;
  Subspace of_g, of_p;
  const void *f_g, *f_p;  // [C, b, d]
  void *g, *p, *fused;    // [C, b, d]
  void* inner;            // [C, b]
};

// u_g = v_g + alpha v_fused + v_inner p, with relu 0 where g <= 0; grad_g = (u_g A_g) A_g^T. Likewise for p with
// 1 - alpha. Null output gradients v_* count as zero; null grad_* are not computed.
struct OrthogonalProjectBackward {
  ProjectSizes sizes;
  Subspace of_g, of_p;
  const void *g, *p;                          // [C, b, d]
  const void *v_g, *v_p, *v_fused, *v_inner;  // [C, b, d]; v_inner is [C, b]
  void *grad_g, *grad_p;                      // [C, b, d]
};

constexpr int64_t kProjectLanes = 16;  // padding of the rank

namespace {  // one copy per instruction set, see cpu/simd/convert.h
inline int64_t project_row_blocks(int64_t samples) {
  return (samples + kProjectRows - 1) / kProjectRows;
}
}  // namespace

// [begin, end): range of the C * project_row_blocks(b) blocks of samples.
PFL_DECLARE_CPU_KERNEL(orthogonal_project, (const OrthogonalProject& p, int64_t begin, int64_t end))
PFL_DECLARE_CPU_KERNEL(orthogonal_project_backward, (const OrthogonalProjectBackward& p, int64_t begin, int64_t end))

}  // namespace pfl

extern "C" {
int pfl_cuda_orthogonal_project(const pfl::OrthogonalProject* problem, void* stream);
int pfl_cuda_orthogonal_project_backward(const pfl::OrthogonalProjectBackward* problem, void* stream);
}
