// Times all matrix products of a model with the default model's shape, by number of rows, and the memory bandwidth.
#include "bench_products.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "ops/bandwidth.h"
#include "ops/gated_mlp.h"
#include "ops/head.h"
#include "ops/linear.h"
#include "ops/qkv.h"
#include "ops/team.h"

namespace {

using namespace streamfuse;

constexpr int64_t kLayers = 30, kHidden = 576, kInner = 1536, kHeads = 9, kKvHeads = 3, kDim = 64, kVocabulary = 49152;

// Arbitrary weights: speed does not depend on them as long as scales are small numbers.
struct Matrix {
  std::vector<uint8_t> bytes;
  Packed packed;

  Matrix(int64_t outputs, int64_t inputs, bool is_q8) : packed{nullptr, outputs / 16, inputs / 32, is_q8} {
    bytes.assign(static_cast<size_t>(packed.tiles * packed.groups * packed.group_bytes()) + 64, 0x1f);
    uint8_t* aligned = bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
    packed.data = aligned;
  }
  double size() const { return double(packed.tiles * packed.groups * packed.group_bytes()); }
  double weights() const { return double(packed.tiles * packed.groups * 512); }
};

struct Layer {
  Matrix qkv{(kHeads + 2 * kKvHeads) * kDim, kHidden, false}, o{kHidden, kHeads* kDim, false};
  Matrix gate_up{2 * kInner, kHidden, false}, down{kHidden, kInner, false};
};

double milliseconds_of(const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < 5; ++i) call();
  std::vector<double> times;
  for (int i = 0; i < 41; ++i) {
    const auto start = Clock::now();
    call();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 10];  // a low percentile, to exclude other load on the machine
}

}  // namespace

void bench_products() {
  std::vector<std::unique_ptr<Layer>> layers;
  for (int64_t i = 0; i < kLayers; ++i) layers.push_back(std::make_unique<Layer>());
  Matrix vocabulary(kVocabulary, kHidden, true);
  double bytes = vocabulary.size(), weights = vocabulary.weights();
  for (const auto& layer : layers)
    for (const Matrix* m : {&layer->qkv, &layer->o, &layer->gate_up, &layer->down}) {
      bytes += m->size();
      weights += m->weights();
    }
  const double gigabytes_per_second = read_bandwidth(int64_t{128} << 20);
  std::printf("read bandwidth %.1f GB/s, weights %.1f MB, floor %.2f ms, %d threads\n", gigabytes_per_second,
              bytes / 1e6, bytes / 1e6 / gigabytes_per_second, team_limit());
  const int64_t most = 128;
  std::vector<float> x(most * kHidden, 0.25f), y(most * kHidden), norm(kHidden, 1.0f),
      attended(most * kHeads * kDim, 0.5f);
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(i % 37) - 18.0f;
  std::vector<float> rotary(most * kDim, 0.5f), q(most * kHeads * kDim), k(most * kKvHeads * kDim), v(k);
  std::vector<int64_t> best(most);
  for (const int64_t rows : {1, 2, 4, 6, 8, 12, 16, 32, 64, 128}) {
    const double ms = milliseconds_of([&] {
      for (const auto& layer : layers) {
        const ProductInput input = {x.data(), norm.data(), 1e-5f, rows, kHidden, {}};
        qkv({input, layer->qkv.packed, rotary.data(), rotary.data(), nullptr, nullptr, nullptr, kHeads, kKvHeads, kDim,
             q.data(), k.data(), v.data()});
        linear({{attended.data(), nullptr, 0, rows, kHeads * kDim, {}},
                layer->o.packed,
                kHidden,
                nullptr,
                x.data(),
                y.data()});
        gated_mlp({input, layer->gate_up.packed, layer->down.packed, {}, kInner, y.data()});
      }
      head({{x.data(), norm.data(), 1e-5f, rows, kHidden, {}}, vocabulary.packed, kVocabulary, nullptr, best.data()});
    });
    std::printf("rows %3lld  %7.3f ms  %6.1f GB/s  %6.0f GMAC/s\n", static_cast<long long>(rows), ms, bytes / 1e6 / ms,
                weights * rows / 1e6 / ms);
  }
}
