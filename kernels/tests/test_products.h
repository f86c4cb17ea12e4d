#pragma once

#include <cstddef>
#include <functional>

// Runs the tests this many times over random shapes; returns the number of failures.
int test_products(int cases);

// Passes the bits of some fixed results to `mix`.
void products_digest(const std::function<void(const void*, size_t)>& mix);
