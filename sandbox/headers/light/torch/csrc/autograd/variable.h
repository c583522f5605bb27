// What torch's factories need of it, as a function of glue/factories.cpp; where pybind11 is wanted, the real one.
#if defined(KERNELWRIGHT_INSIDE) && !defined(KERNELWRIGHT_PYBIND)
#pragma once
#include <ATen/core/Tensor.h>
namespace kernelwright __attribute__((visibility("hidden"))) {
at::Tensor make_variable(at::Tensor data, bool requires_grad = false, bool allow_tensor_metadata_change = true);
}
namespace torch::autograd {
using Variable = at::Tensor;
using kernelwright::make_variable;
}  // namespace torch::autograd
#else
#include_next <torch/csrc/autograd/variable.h>
#endif
