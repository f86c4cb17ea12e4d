// Tests of the operators without ExecuTorch programs: against a double-precision reference, and bit for bit against
// themselves. Run: test_ops [random cases]; with --bench it prints the time per call instead, with --digest a hash of
// some results.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "bench_products.h"
#include "ops/lane_kernels.h"
#include "ops/short_convolution.h"
#include "ops/team.h"
#include "test_delta_rule.h"
#include "test_products.h"

namespace {

using streamfuse::TopK;
using streamfuse::TreeAttention;

std::mt19937 generator(20240);
int failures = 0;

int64_t any_of(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator); }

std::vector<float> normal(int64_t count, float deviation = 1.0f) {
  std::normal_distribution<float> draw(0.0f, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = draw(generator);
  return values;
}

void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

// A pass of attention, or of a convolution if it has taps, with its own memory; sizes are exact so that the address
// sanitizer detects every access outside.
struct Pass {
  int64_t rows, query_heads, kv_heads, dim, capacity, length, window = 0;
  int64_t ring = 0;                                                   // positions of the cache, if it is a ring
  std::vector<float> query, key, value, key_cache, value_cache, out;  // caches before quantization
  std::vector<uint8_t> keys, values;                                  // and as they are stored
  std::vector<float> taps;                                            // [window, query_heads * dim]
  std::unique_ptr<bool[]> visible;

  Pass(int64_t rows, int64_t query_heads, int64_t kv_heads, int64_t dim, int64_t capacity, int64_t length)
      : rows(rows),
        query_heads(query_heads),
        kv_heads(kv_heads),
        dim(dim),
        capacity(capacity),
        length(length),
        query(normal(rows * query_heads * dim)),
        key(normal(rows * kv_heads * dim)),
        value(normal(rows * kv_heads * dim)),
        key_cache(normal(capacity * kv_heads * dim)),
        value_cache(normal(capacity * kv_heads * dim)),
        out(rows * query_heads * dim, -7.0f),
        visible(new bool[rows * rows]()) {}

  void random_taps(int64_t count) {
    window = count;
    taps = normal(count * query_heads * dim);
  }

  void random_tree() {
    for (int64_t i = 0; i < rows; ++i) {
      if (i > 0) {
        const int64_t parent = any_of(0, i - 1);
        for (int64_t j = 0; j < i; ++j) visible[i * rows + j] = visible[parent * rows + j];
      }
      visible[i * rows + i] = true;
    }
  }

  streamfuse::KvShape shape() const {
    if (ring > 0) return {ring, kv_heads, dim};
    const int64_t blocks = std::max<int64_t>(1, (capacity + streamfuse::kCacheBlock - 1) / streamfuse::kCacheBlock);
    return {blocks * streamfuse::kCacheBlock, kv_heads, dim};
  }
  void store() {
    // Memory that is not written may contain anything.
    keys.assign(static_cast<size_t>(shape().keys_of(kv_heads)), 0xff);
    values.assign(static_cast<size_t>(shape().values_of(kv_heads)), 0xff);
    for (int64_t t = 0; t < length; ++t) store(t, &key_cache[t * kv_heads * dim], &value_cache[t * kv_heads * dim]);
  }
  void store(int64_t t, const float* key_row, const float* value_row) {
    store_key(shape(), key_row, t % shape().capacity, keys.data());
    store_value(shape(), value_row, t % shape().capacity, values.data());
  }
  void attend() {
    if (!taps.empty())
      return streamfuse::short_convolution({query.data(), key.data(), value.data(), keys.data(), values.data(),
                                            visible.get(), rows, taps.data(), out.data(), window, length, rows,
                                            shape()});
    streamfuse::tree_attention({query.data(), key.data(), value.data(), keys.data(), values.data(), visible.get(), rows,
                                out.data(), length, rows, query_heads, shape(), 1.0f / std::sqrt(float(dim)), window});
  }
  void run() {
    store();
    attend();
  }

  std::vector<double> expected(int64_t row, int64_t head) const {
    const int64_t kv = head / (query_heads / kv_heads), stride = kv_heads * dim;
    std::vector<const float*> keys, values;
    for (int64_t t = 0; t < length; ++t) {
      keys.push_back(&key_cache[t * stride + kv * dim]);
      values.push_back(&value_cache[t * stride + kv * dim]);
    }
    for (int64_t j = 0; j < rows; ++j) {
      if (!visible[row * rows + j]) continue;
      keys.push_back(&key[j * stride + kv * dim]);
      values.push_back(&value[j * stride + kv * dim]);
    }
    const size_t seen = keys.size(), from = window > 0 && seen > size_t(window) ? seen - size_t(window) : 0;
    keys.erase(keys.begin(), keys.begin() + from);
    values.erase(values.begin(), values.begin() + from);
    std::vector<double> scores, result(dim, 0.0);
    double best = -1e300, total = 0;
    for (const float* k : keys) {
      double dot = 0;
      for (int64_t d = 0; d < dim; ++d) dot += double(query[(row * query_heads + head) * dim + d]) * k[d];
      scores.push_back(dot / std::sqrt(double(dim)));
      best = std::max(best, scores.back());
    }
    for (double& score : scores) total += score = std::exp(score - best);
    for (size_t t = 0; t < keys.size(); ++t)
      for (int64_t d = 0; d < dim; ++d) result[d] += scores[t] / total * values[t][d];
    return result;
  }
};

void attention_equals_double_reference() {
  Pass pass(any_of(1, 24), 0, 0, 0, 0, 0);
  const int64_t kv_heads = any_of(1, 3), group = any_of(1, 6);
  pass = Pass(pass.rows, kv_heads * group, kv_heads, 4 * any_of(1, 24), any_of(1, 90), 0);
  pass.length = any_of(0, pass.capacity);
  pass.window = any_of(0, 1) * any_of(1, 70);
  pass.random_tree();
  if (pass.rows > 2) std::fill_n(&pass.visible[(pass.rows - 1) * pass.rows], pass.rows, false);  // a padding row
  pass.run();
  double worst = 0;
  for (int64_t i = 0; i < pass.rows; ++i)
    for (int64_t h = 0; h < pass.query_heads; ++h) {
      const std::vector<double> expected = pass.expected(i, h);
      for (int64_t d = 0; d < pass.dim; ++d)
        worst = std::max(worst, std::fabs(expected[d] - pass.out[(i * pass.query_heads + h) * pass.dim + d]));
    }
  // The inputs are around 1 and quantized to 127 steps; tests/kernels/test_kernels_ops.py compares bits.
  expect(worst < 0.05, "attention differs from the double-precision reference");
}

// What a convolution reads of one position: key and value.
std::vector<double> read_by_convolution(const Pass& pass, const float* key, const float* value) {
  std::vector<double> read(key, key + pass.kv_heads * pass.dim);
  read.insert(read.end(), value, value + pass.kv_heads * pass.dim);
  return read;
}

void a_convolution_equals_double_reference() {
  const int64_t kv_heads = any_of(1, 3), capacity = any_of(1, 90), rows = any_of(1, 24);
  Pass pass(rows, 2 * kv_heads, kv_heads, 4 * any_of(1, 24), capacity, any_of(0, capacity));
  pass.random_taps(any_of(1, 6));
  pass.random_tree();
  pass.run();
  const int64_t stride = kv_heads * pass.dim, channels = 2 * stride;
  double worst = 0;
  for (int64_t i = 0; i < rows; ++i) {
    std::vector<std::vector<double>> sequence;
    for (int64_t t = 0; t < pass.length; ++t)
      sequence.push_back(read_by_convolution(pass, &pass.key_cache[t * stride], &pass.value_cache[t * stride]));
    for (int64_t j = 0; j < rows; ++j)
      if (pass.visible[i * rows + j])
        sequence.push_back(read_by_convolution(pass, &pass.key[j * stride], &pass.value[j * stride]));
    const int64_t seen = static_cast<int64_t>(sequence.size());
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (int64_t back = 0; back < std::min(pass.window, seen); ++back)
        sum += pass.taps[(pass.window - 1 - back) * channels + c] * sequence[seen - 1 - back][c];
      const double expected = sum * pass.query[i * channels + c];
      worst = std::max(worst, std::fabs(expected - pass.out[i * channels + c]) / (1 + std::fabs(expected)));
    }
  }
  expect(worst < 0.3, "a convolution differs from the double-precision reference");  // the quantization, times query
}

// Moves the path of row `row` into the cache, except its last `kept_new` rows, and expects the same bits from a smaller
// pass.
void a_pass_is_row_invariant(bool convolves) {
  const int64_t kv_heads = any_of(1, 3), group = convolves ? 2 : any_of(1, 6), dim = 4 * any_of(1, 24),
                rows = any_of(2, 40);
  const int64_t capacity = any_of(1, 90) + rows, length = any_of(0, capacity - rows), stride = kv_heads * dim;
  Pass tree(rows, kv_heads * group, kv_heads, dim, capacity, length);
  tree.window = any_of(0, 1) * any_of(1, 70);
  if (convolves) tree.random_taps(any_of(1, 6));
  tree.random_tree();
  tree.run();

  const int64_t row = any_of(0, rows - 1);
  std::vector<int64_t> path;
  for (int64_t j = 0; j <= row; ++j)
    if (tree.visible[row * rows + j]) path.push_back(j);
  const int64_t kept_new = any_of(1, static_cast<int64_t>(path.size()));
  const int64_t moved = static_cast<int64_t>(path.size()) - kept_new, noise = any_of(0, 5);
  Pass chain(kept_new + noise, tree.query_heads, kv_heads, dim, capacity + any_of(0, 9), length + moved);
  chain.window = tree.window;
  chain.taps = tree.taps;
  std::copy_n(tree.key_cache.data(), length * stride, chain.key_cache.data());
  std::copy_n(tree.value_cache.data(), length * stride, chain.value_cache.data());
  // The new rows are at random positions among other rows, in order.
  std::vector<int64_t> places(chain.rows);
  for (int64_t i = 0; i < chain.rows; ++i) places[i] = i;
  std::shuffle(places.begin(), places.end(), generator);
  places.resize(kept_new);
  std::sort(places.begin(), places.end());
  chain.random_tree();
  const int64_t last = places.back();
  std::fill_n(&chain.visible[last * chain.rows], chain.rows, false);
  for (int64_t n = 0; n < static_cast<int64_t>(path.size()); ++n) {
    const float *k = &tree.key[path[n] * stride], *v = &tree.value[path[n] * stride];
    const bool cached = n < moved;
    std::copy_n(k, stride, cached ? &chain.key_cache[(length + n) * stride] : &chain.key[places[n - moved] * stride]);
    std::copy_n(v, stride,
                cached ? &chain.value_cache[(length + n) * stride] : &chain.value[places[n - moved] * stride]);
    if (!cached) chain.visible[last * chain.rows + places[n - moved]] = true;
  }
  const int64_t width = tree.query_heads * dim;
  std::copy_n(&tree.query[row * width], width, &chain.query[last * width]);
  chain.run();
  expect(std::memcmp(&tree.out[row * width], &chain.out[last * width], width * sizeof(float)) == 0,
         "a row's bits depend on its company");
}

// Also after it held later positions, which were dropped again.
void a_ring_gives_the_bits_of_a_whole_cache(bool convolves) {
  const int64_t kv_heads = any_of(1, 3), group = convolves ? 2 : any_of(1, 6), block = streamfuse::kCacheBlock;
  const int64_t capacity = any_of(1, 500);
  Pass pass(any_of(1, 24), kv_heads * group, kv_heads, 4 * any_of(1, 24), capacity, any_of(0, capacity));
  pass.window = any_of(1, 90);
  if (convolves) pass.random_taps(any_of(1, 6));
  pass.random_tree();
  if (pass.rows > 2) std::fill_n(&pass.visible[(pass.rows - 1) * pass.rows], pass.rows, false);  // a padding row
  pass.run();
  const std::vector<float> expected = pass.out;
  pass.ring = ((pass.window + block - 1) / block + 1 + any_of(0, 2)) * block;
  pass.store();
  const std::vector<float> dropped = normal(kv_heads * pass.dim, 9.0f);
  for (int64_t more = any_of(0, pass.ring - pass.window); more > 0; --more)
    pass.store(pass.length + more - 1, dropped.data(), dropped.data());
  pass.attend();
  expect(pass.out == expected, "a ring gives other bits than a whole cache");
}

void a_row_that_sees_nothing_gives_zeros() {
  Pass pass(3, 4, 2, 20, 5, 0);
  pass.run();
  expect(std::all_of(pass.out.begin(), pass.out.end(), [](float x) { return x == 0.0f; }), "an empty row is not zero");
}

// Distributed over threads like stream_top_k.
void top_k(const TopK& args) {
  streamfuse::share_out(args.rows, streamfuse::even_chunk(args.rows), [=](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) streamfuse::lane_kernels().top_k_row(args, row);
  });
}

void top_k_equals_a_full_sort() {
  const int64_t rows = any_of(1, 9), columns = any_of(1, 700), k = any_of(1, std::min<int64_t>(columns, 40));
  std::vector<float> logits = normal(rows * columns, 3.0f);
  if (any_of(0, 1))
    for (float& logit : logits) logit = std::round(logit);  // many ties
  std::vector<int64_t> ids(columns), out_ids(rows * k);
  for (int64_t c = 0; c < columns; ++c) ids[c] = 3 * c + 1;
  std::vector<float> out(rows * k);
  top_k({logits.data(), ids.data(), out_ids.data(), out.data(), rows, columns, k});
  bool same = true;
  double worst = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = &logits[r * columns];
    std::vector<int64_t> order(columns);
    for (int64_t c = 0; c < columns; ++c) order[c] = c;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return row[a] > row[b]; });
    double total = 0;
    for (int64_t c = 0; c < columns; ++c) total += std::exp(double(row[c]) - row[order[0]]);
    for (int64_t i = 0; i < k; ++i) {
      same &= out_ids[r * k + i] == ids[order[i]];
      worst = std::max(worst, std::fabs(row[order[i]] - row[order[0]] - std::log(total) - out[r * k + i]));
    }
  }
  expect(same, "top-k differs from a stable sort");
  expect(worst < 5e-6, "log-softmax differs from the double-precision reference");
}

void top_k_survives_nan_and_infinity() {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  std::vector<float> logits(40, nan), out(3);
  logits[35] = 1.0f;
  logits[36] = -inf;
  logits[3] = 0.5f;
  std::vector<int64_t> ids(40), out_ids(3);
  for (int64_t c = 0; c < 40; ++c) ids[c] = c;
  top_k({logits.data(), ids.data(), out_ids.data(), out.data(), 1, 40, 3});
  expect(out_ids[0] == 35 && out_ids[1] == 3 && out_ids[2] >= 0 && out_ids[2] < 40, "NaN disturbs top-k");
}

// FNV-1a over the bits of a few fixed passes: equal between instruction sets that fuse multiply and add.
uint64_t digest() {
  uint64_t hash = 1469598103934665603ull;
  const auto mix = [&](const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211ull;
  };
  for (int64_t dim : {64, 20, 128}) {
    Pass pass(12, 12, 2, dim, 100, 77);
    pass.random_tree();
    pass.run();
    mix(pass.out.data(), pass.out.size() * sizeof(float));
    const int64_t k = 16, columns = 12 * dim;
    std::vector<int64_t> ids(columns), out_ids(12 * k);
    std::vector<float> out(12 * k);
    for (int64_t c = 0; c < columns; ++c) ids[c] = c;
    top_k({pass.out.data(), ids.data(), out_ids.data(), out.data(), 12, columns, k});
    mix(out_ids.data(), out_ids.size() * sizeof(int64_t));
    mix(out.data(), out.size() * sizeof(float));
  }
  Pass convolution(12, 4, 2, 64, 100, 77);
  convolution.random_taps(3);
  convolution.random_tree();
  convolution.run();
  mix(convolution.out.data(), convolution.out.size() * sizeof(float));
  delta_rule_digest(mix);
  products_digest(mix);
  return hash;
}

template <typename Call>
void report(const char* name, Call call) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < 20; ++i) call();
  std::vector<double> times;
  for (int i = 0; i < 201; ++i) {
    const auto start = Clock::now();
    call();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  std::printf("%-44s median %8.1f us   best %8.1f us\n", name, times[100], times[0]);
}

// As in a pass of a model: the inputs of a layer's attention are no longer in the caches, since 3 MB of weights were
// read.
void bench_layers(int64_t rows, int64_t length) {
  using Clock = std::chrono::steady_clock;
  std::vector<Pass> layers;
  for (int64_t layer = 0; layer < 30; ++layer) {
    layers.emplace_back(rows, 9, 3, 64, 1024, length);
    layers.back().random_tree();
    layers.back().store();
  }
  std::vector<char> weights(97 << 20, 1);
  const int64_t pieces = 128, size = static_cast<int64_t>(weights.size()) / 30 / pieces;
  std::vector<double> times;
  for (int pass = 0; pass < 12; ++pass) {
    double total = 0;
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      const char* const own = weights.data() + static_cast<int64_t>(layer) * pieces * size;
      streamfuse::share_out(pieces, 4, [=](int64_t begin, int64_t end, int) {
        streamfuse::lane_kernels().products->read(own + begin * size, static_cast<size_t>((end - begin) * size));
      });
      const auto start = Clock::now();
      layers[layer].attend();
      total += std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    }
    times.push_back(total / 30);
  }
  std::sort(times.begin(), times.end());
  std::printf("tree_attention rows %lld context %lld, cold   median %8.1f us   best %8.1f us\n", (long long)rows,
              (long long)length, times[6], times[0]);
}

void bench() {
  bench_delta_rule();
  char name[96];
  for (int64_t length : {64, 300, 900})
    for (int64_t rows : {1, 4, 8, 16}) bench_layers(rows, length);
  for (int64_t length : {64, 256, 1024})
    for (int64_t rows : {1, 4, 8, 16, 40, 128}) {
      Pass pass(rows, 9, 3, 64, 2048, length);
      pass.random_tree();
      pass.store();
      std::snprintf(name, sizeof name, "tree_attention rows %lld context %lld", (long long)rows, (long long)length);
      report(name, [&] { pass.attend(); });
    }
  for (int64_t rows : {3, 24, 48}) {
    const int64_t columns = 8192, k = 32;
    std::vector<float> logits = normal(rows * columns, 3.0f), out(rows * k);
    std::vector<int64_t> ids(columns), out_ids(rows * k);
    std::snprintf(name, sizeof name, "top_k rows %lld columns 8192 k 32", (long long)rows);
    report(name, [&] { top_k({logits.data(), ids.data(), out_ids.data(), out.data(), rows, columns, k}); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  streamfuse::limit_team(
      streamfuse::reserve_team(std::getenv("STREAMFUSE_THREADS") ? std::atoi(std::getenv("STREAMFUSE_THREADS")) : 0));
  std::printf("instruction set: %s, %d threads\n", streamfuse::lane_kernels().name, streamfuse::team_limit());
  const std::string_view option = argc > 1 ? argv[1] : "";
  if (option == "--bench-products") {
    bench_products();
    return 0;
  }
  if (option == "--bench") {
    bench();
    return 0;
  }
  if (option == "--digest") {
    std::printf("digest: %016llx\n", static_cast<unsigned long long>(digest()));
    return 0;
  }
  const int cases = argc > 1 ? std::atoi(argv[1]) : 300;
  for (int i = 0; i < cases; ++i) {
    attention_equals_double_reference();
    a_convolution_equals_double_reference();
    for (const bool convolves : {false, true}) {
      a_pass_is_row_invariant(convolves);
      a_ring_gives_the_bits_of_a_whole_cache(convolves);
    }
    top_k_equals_a_full_sort();
  }
  a_row_that_sees_nothing_gives_zeros();
  top_k_survives_nan_and_infinity();
  failures += test_delta_rule(cases);
  failures += test_products(std::max(1, cases / 10));
  std::printf(failures == 0 ? "ok\n" : "failing: %d\n", failures);
  return failures != 0;
}
