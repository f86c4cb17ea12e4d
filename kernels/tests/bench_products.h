#pragma once

#include <functional>

void bench_products();
