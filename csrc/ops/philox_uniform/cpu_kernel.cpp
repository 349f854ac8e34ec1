#include "ops/philox_uniform/problem.h"

#include "cpu/simd/noise.h"

namespace pfl {
namespace PFL_CAPABILITY {

void philox_uniform(const PhiloxUniform& p, int64_t begin, int64_t end) {
  while (begin < end) {
    const int64_t client = begin / p.numel;
    const int64_t element = begin % p.numel;
    const int64_t count = p.numel - element < end - begin ? p.numel - element : end - begin;
    uniforms(static_cast<uint64_t>(p.seeds[client]), static_cast<uint64_t>(element), count, p.out + begin);
    begin += count;
  }
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
