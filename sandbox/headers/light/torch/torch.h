// A part of torch/extension.h, which has been included before.
#include <torch/extension.h>
