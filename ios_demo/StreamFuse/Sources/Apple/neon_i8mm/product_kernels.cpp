#include "../../../../../kernels/ops/product_kernels.cpp"
