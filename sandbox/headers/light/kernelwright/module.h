// The two names of pybind11 and torch that `load_inline(functions=...)` writes, by way of binding.h.
#pragma once
#include "binding.h"

namespace torch {
template <class R, class... A> constexpr auto wrap_pybind_function(R (&function)(A...)) -> R (*)(A...) {
  return &function;
}
}  // namespace torch

#define KERNELWRIGHT_TEXT_(...) #__VA_ARGS__
#define KERNELWRIGHT_TEXT(...) KERNELWRIGHT_TEXT_(__VA_ARGS__)
#define KERNELWRIGHT_INIT_(name) PyInit_##name
#define KERNELWRIGHT_INIT(name) KERNELWRIGHT_INIT_(name)
#define PYBIND11_MODULE(name, variable)                                                         \
  static void kernelwright_bind(::kernelwright::Module&);                                       \
  extern "C" __attribute__((visibility("default"))) ::_object* KERNELWRIGHT_INIT(name)() {      \
    return ::kernelwright::start({KERNELWRIGHT_TEXT(name), &kernelwright_bind});                \
  }                                                                                             \
  static void kernelwright_bind(::kernelwright::Module& variable)
