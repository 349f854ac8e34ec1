// Everything that tensor code includes from torch and the standard library; compiled once, as a precompiled header.
#ifndef PFL_COMMON_TORCH_H
#define PFL_COMMON_TORCH_H

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#endif
