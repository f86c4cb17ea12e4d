#pragma once

#include <cstddef>
#include <functional>

// Runs the tests that many times over random shapes; returns how many failed.
int test_products(int cases);

// Feeds the bits of some fixed results.
void products_digest(const std::function<void(const void*, size_t)>& mix);
