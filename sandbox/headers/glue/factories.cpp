// What torch's factories need of torch/csrc/autograd/variable.h, compiled once instead of in every extension.
#define KERNELWRIGHT_PYBIND
#include <kernelwright/core.h>

namespace kernelwright __attribute__((visibility("hidden"))) {
at::Tensor make_variable(at::Tensor data, bool requires_grad, bool allow_tensor_metadata_change) {
  return torch::autograd::make_variable(std::move(data), requires_grad, allow_tensor_metadata_change);
}
}  // namespace kernelwright
