// nvcc's sources from load_inline begin with it: they get the same as with torch/extension.h.
#ifdef KERNELWRIGHT_INSIDE
#include_next <torch/types.h>
#else
#include <torch/extension.h>
#endif
