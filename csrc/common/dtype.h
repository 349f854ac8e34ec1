// Floating-point types supported by every operator, as an enum for kernels that do not include torch headers.
#pragma once

#include <cstdint>

namespace pfl {

enum class Float : int64_t { kDouble = 0, kFloat = 1, kBFloat16 = 2, kHalf = 3 };

}  // namespace pfl
