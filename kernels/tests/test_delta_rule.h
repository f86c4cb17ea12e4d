#pragma once

#include <cstddef>
#include <functional>

// Runs the tests this many times over random shapes; returns the number of failures.
int test_delta_rule(int cases);

// Passes the bits of some fixed results to `mix`.
void delta_rule_digest(const std::function<void(const void*, size_t)>& mix);

// Prints the time per call at the sizes of Qwen3.5-0.8B.
void bench_delta_rule();
