// Included by torch/types.h, which needs nothing of it.
#ifndef KERNELWRIGHT_INSIDE
#include_next <torch/library.h>
#endif
