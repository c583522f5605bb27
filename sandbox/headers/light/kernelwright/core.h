// What nearly every extension uses of torch/extension.h, without what takes g++ and nvcc most of their time: the
// operators (those that a source names are included beside this), pybind11, autograd's nodes, the JIT's values.
//
// The headers beside this file stand in for torch's of the same names while this one is read. It brings every header
// of the standard library that torch/extension.h brings: standard.h is written by headers.py, from what the compiler says;
// what is linked with extensions does without.
#ifndef KERNELWRIGHT_CORE_H
#define KERNELWRIGHT_CORE_H
#include <Python.h>
#if __has_include("standard.h")
#include "standard.h"
#endif
#define KERNELWRIGHT_INSIDE
#define AT_PER_OPERATOR_HEADERS
#include <torch/types.h>
#include <torch/utils.h>
#undef AT_PER_OPERATOR_HEADERS
#undef KERNELWRIGHT_INSIDE
#endif
