#include "ops/take_normalized/contract.h"

#include "cuda/common/launch.h"

namespace pfl {
namespace {

Tensor take_normalized_cuda(Tensor images, Tensor index, Tensor mean, Tensor std, bool channels_last,
                            ScalarType dtype) {
  const Launch launch("pfl_fast::take_normalized", images);
  return take_normalized(images, index, mean, std, channels_last, dtype,
                         [&](const TakeNormalized& problem) { launch(&pfl_cuda_take_normalized, problem); });
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CUDA, m) {
  m.impl("take_normalized", TORCH_BOX(&pfl::take_normalized_cuda));
}
