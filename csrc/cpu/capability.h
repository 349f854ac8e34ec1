// CPU kernels are compiled once per instruction set; the best one that the processor supports is chosen at run time.
#pragma once

namespace pfl {

enum class Capability : int { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };

// Detected once. PFL_FAST_CPU_CAPABILITY=baseline|avx2|avx512 lowers it; values above the detected one are ignored.
Capability cpu_capability();

const char* name_of(Capability capability);

}  // namespace pfl

// PFL_DECLARE_CPU_KERNEL(f, (args)) declares f once per compiled instruction set;
// PFL_CPU_KERNEL(f) is the function for this processor.
#ifdef PFL_WITH_X86_CAPABILITIES
#define PFL_DECLARE_CPU_KERNEL(name, arguments) \
  namespace baseline {                          \
  void name arguments;                          \
  }                                             \
  namespace avx2 {                              \
  void name arguments;                          \
  }                                             \
  namespace avx512 {                            \
  void name arguments;                          \
  }
#define PFL_CPU_KERNEL(name)                                                    \
  (::pfl::cpu_capability() == ::pfl::Capability::kAvx512 ? &::pfl::avx512::name \
   : ::pfl::cpu_capability() == ::pfl::Capability::kAvx2 ? &::pfl::avx2::name   \
                                                         : &::pfl::baseline::name)
#else
#define PFL_DECLARE_CPU_KERNEL(name, arguments) \
  namespace baseline {                          \
  void name arguments;                          \
  }
#define PFL_CPU_KERNEL(name) (&::pfl::baseline::name)
#endif
