// The names of torch/utils.h that need no more than is there: not the profiler's.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/types.h>

namespace torch {
using at::get_num_interop_threads;
using at::get_num_threads;
using at::init_num_threads;
using at::set_num_interop_threads;
using at::set_num_threads;
using AutoGradMode = at::AutoGradMode;
using NoGradGuard = at::NoGradGuard;
}  // namespace torch
