// Logistic noise for kernels that visit consecutive elements: a block of four Philox numbers is computed once.
#pragma once

#include "common/shares.h"
#include "cuda/common/platform.cuh"

namespace pfl {
namespace {

class LogisticRun {
 public:
  __device__ __forceinline__ explicit LogisticRun(uint64_t seed) : seed_(seed) {
  }

  // Noise of this element; consecutive elements share a Philox block.
  template <class Real>
  __device__ __forceinline__ Real at(uint64_t element) {
    if (!drawn_ || element / 4 != block_) {
      block_ = element / 4;
      bits_ = philox(seed_, block_);
      drawn_ = true;
    }
    // Comparisons instead of a dynamic index, which would move the array into local memory.
    const int word = static_cast<int>(element % 4);
    const uint32_t bits = word == 0 ? bits_.x[0] : word == 1 ? bits_.x[1] : word == 2 ? bits_.x[2] : bits_.x[3];
    return logistic_from<Real>(uniform_from(bits));
  }

 private:
  uint64_t seed_;
  uint64_t block_ = 0;
  bool drawn_ = false;
  Philox bits_ = {};
};

}  // namespace
}  // namespace pfl
