#include "../../../../../kernels/ops/lane_kernels.cpp"
