// Every operator's header includes it, and needs nothing of it; what pybind11 converts does.
#if !defined(KERNELWRIGHT_INSIDE) || defined(KERNELWRIGHT_PYBIND)
#include_next <ATen/Context.h>
#endif
