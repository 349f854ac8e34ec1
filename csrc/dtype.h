// The floating types every operator takes, as a number that crosses from tensor code into raw kernels.
#pragma once

#include <cstdint>

namespace pfl {

enum class Float : int64_t { kDouble = 0, kFloat = 1, kBFloat16 = 2, kHalf = 3 };

}  // namespace pfl
