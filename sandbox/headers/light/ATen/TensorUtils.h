// Every operator's header includes it, and needs nothing of it.
#ifndef KERNELWRIGHT_INSIDE
#include_next <ATen/TensorUtils.h>
#endif
