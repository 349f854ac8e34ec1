#include "cpu/capability.h"

#include "common/torch.h"

#include <cstdlib>

namespace pfl {
namespace {

Capability detect() {
#ifdef PFL_WITH_X86_CAPABILITIES
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx2 && avx512 ? Capability::kAvx512 : avx2 ? Capability::kAvx2 : Capability::kBaseline;
#else
  return Capability::kBaseline;
#endif
}

Capability limit() {
  const char* asked = std::getenv("PFL_FAST_CPU_CAPABILITY");
  const std::string name = asked ? asked : "";
  return name == "baseline" ? Capability::kBaseline : name == "avx2" ? Capability::kAvx2 : Capability::kAvx512;
}

}  // namespace

Capability cpu_capability() {
  static const Capability capability = std::min(detect(), limit());
  return capability;
}

const char* name_of(Capability capability) {
  static const char* const names[] = {"baseline", "avx2", "avx512"};
  return names[static_cast<int>(capability)];
}

}  // namespace pfl

namespace {

std::string capability_name() {
  return pfl::name_of(pfl::cpu_capability());
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CompositeExplicitAutograd, m) {
  m.impl("cpu_capability", TORCH_BOX(&capability_name));
}
