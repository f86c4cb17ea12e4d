// Tests of gated_delta_rule, bit for bit against itself: a row's result depends on its sequence only, and states follow
// from the cached rows.
#include "test_delta_rule.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "ops/gated_delta_rule.h"
#include "ops/team.h"

namespace {

using namespace streamfuse;
using Floats = std::vector<float>;

std::mt19937 generator(7117);
int failures = 0;

int64_t any_of(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator); }

Floats normal(int64_t count, float deviation = 1.0f) {
  std::normal_distribution<float> draw(0.0f, deviation);
  Floats values(static_cast<size_t>(count));
  for (float& value : values) value = draw(generator);
  return values;
}

void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

// A layer, the rows of a text, and its cache and states; sizes are exact, so that the address sanitizer detects every
// access outside.
struct Layer {
  int64_t key_heads, value_heads, key_dim, value_dim, count, dim, kv_heads, channels;
  Floats taps, rates, bias, norm;
  std::vector<Floats> keys, values;  // of each position
  int64_t positions, rewindable;
  std::vector<uint8_t> key_cache, value_cache;
  Floats states;

  Layer(int64_t key_heads, int64_t group, int64_t key_dim, int64_t value_dim, int64_t count, int64_t dim,
        int64_t positions, int64_t rewindable)
      : key_heads(key_heads),
        value_heads(key_heads * group),
        key_dim(key_dim),
        value_dim(value_dim),
        count(count),
        dim(dim),
        channels(2 * key_heads * key_dim + value_heads * value_dim),
        taps(normal(count * channels)),
        rates(normal(value_heads)),
        bias(normal(value_heads)),
        norm(normal(value_dim)),
        positions(positions),
        rewindable(rewindable) {
    for (float& rate : rates) rate = rate * rate;
    kv_heads = (2 * kGateStride * value_heads + channels + 2 * dim - 1) / (2 * dim);
    key_cache.assign(static_cast<size_t>(shape().keys_of(kv_heads)), 0xff);
    value_cache.assign(static_cast<size_t>(shape().values_of(kv_heads)), 0xff);
    forget();
  }

  static Layer random(int64_t positions, int64_t rewindable) {
    return {any_of(1, 2), any_of(1, 3),      any_of(2, 40), any_of(1, 70),
            any_of(2, 5), 16 * any_of(1, 3), positions,     rewindable};
  }

  KvShape shape() const { return {positions, kv_heads, dim}; }
  void forget() {
    const int64_t state = kStateHeader + (count - 1) * channels + value_heads * key_dim * value_dim;
    states.assign(static_cast<size_t>(2 * state), 0.0f);
  }

  void add_rows(int64_t more) {
    for (; more > 0; --more) {
      const Floats projected = normal(2 * value_heads + channels);
      keys.emplace_back(static_cast<size_t>(kv_heads * dim));
      values.emplace_back(keys.back());
      delta_rows(projected.data(), 1, value_heads, channels, shape(), keys.back().data(), values.back().data());
    }
  }
  void commit(int64_t position) {
    store_key(shape(), keys[static_cast<size_t>(position)].data(), position % positions, key_cache.data());
    store_value(shape(), values[static_cast<size_t>(position)].data(), position % positions, value_cache.data());
  }

  // Outputs of the rows of these positions, the ancestors of each given, after `length` cached ones.
  std::vector<Floats> run(int64_t length, const std::vector<int64_t>& rows,
                          const std::vector<std::vector<int64_t>>& ancestors) {
    const int64_t n = static_cast<int64_t>(rows.size()), size = value_heads * value_dim;
    Floats key, value, out(static_cast<size_t>(n * size), -7.0f);
    for (const int64_t row : rows) {
      key.insert(key.end(), keys[static_cast<size_t>(row)].begin(), keys[static_cast<size_t>(row)].end());
      value.insert(value.end(), values[static_cast<size_t>(row)].begin(), values[static_cast<size_t>(row)].end());
    }
    const std::unique_ptr<bool[]> visible(new bool[static_cast<size_t>(n * n)]());
    for (int64_t i = 0; i < n; ++i)
      for (const int64_t j : ancestors[static_cast<size_t>(i)]) visible[static_cast<size_t>(i * n + j)] = true;
    const GatedDeltaRule args = {key.data(),       value.data(),
                                 key_cache.data(), value_cache.data(),
                                 visible.get(),    n,
                                 states.data(),    taps.data(),
                                 rates.data(),     bias.data(),
                                 norm.data(),      1e-6f,
                                 out.data(),       count,
                                 length,           n,
                                 key_heads,        value_heads,
                                 key_dim,          value_dim,
                                 rewindable,       shape()};
    expect(why_not_updatable(args) == nullptr, "the states of a sequence cannot be brought up to date");
    gated_delta_rule(args);
    std::vector<Floats> found;
    for (int64_t i = 0; i < n; ++i) found.emplace_back(out.begin() + i * size, out.begin() + (i + 1) * size);
    return found;
  }
  Floats next(int64_t position) { return run(position, {position}, {{0}})[0]; }
};

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A tree: each row's ancestors, itself included.
std::vector<std::vector<int64_t>> random_tree(int64_t rows) {
  std::vector<std::vector<int64_t>> ancestors;
  for (int64_t i = 0; i < rows; ++i) {
    std::vector<int64_t> own;
    if (i > 0 && any_of(0, 5) > 0) own = ancestors[static_cast<size_t>(any_of(0, i - 1))];
    own.push_back(i);
    ancestors.push_back(own);
  }
  return ancestors;
}

// Each row of a tree has the bits that it has after its path was decoded row by row.
void a_tree_has_the_bits_of_its_paths() {
  const int64_t length = any_of(0, 40), rows = any_of(1, 24);
  Layer layer = Layer::random(128, 128);
  layer.add_rows(length + rows);
  for (int64_t t = 0; t < length; ++t) layer.commit(t);
  std::vector<int64_t> drafted;
  for (int64_t i = 0; i < rows; ++i) drafted.push_back(length + i);
  const auto tree = random_tree(rows);
  const std::vector<Floats> found = layer.run(length, drafted, tree);
  const auto row = static_cast<size_t>(any_of(0, rows - 1));
  std::vector<Floats> keys, values;
  for (const int64_t j : tree[row]) {
    keys.push_back(layer.keys[static_cast<size_t>(length + j)]);
    values.push_back(layer.values[static_cast<size_t>(length + j)]);
  }
  std::copy(keys.begin(), keys.end(), layer.keys.begin() + length);
  std::copy(values.begin(), values.end(), layer.values.begin() + length);
  Floats last;
  for (size_t i = 0; i < keys.size(); ++i) {
    last = layer.next(length + static_cast<int64_t>(i));
    layer.commit(length + static_cast<int64_t>(i));
  }
  expect(same_bits(found[row], last), "a row of a tree differs from its path");
}

// Passes of any number of rows, rejected drafts, and truncations; the states of a ring equal those of the whole text.
void states_follow_from_the_cached_rows() {
  constexpr int64_t kRewindable = 64;
  Layer ring = Layer::random(128, kRewindable);
  Layer whole = ring;
  whole.positions = 512;
  whole.key_cache.assign(static_cast<size_t>(whole.shape().keys_of(whole.kv_heads)), 0xff);
  whole.value_cache.assign(static_cast<size_t>(whole.shape().values_of(whole.kv_heads)), 0xff);
  whole.rewindable = 512;
  int64_t length = 0, longest = 0;
  while (length < 400) {
    const int64_t rows = any_of(1, 40), accepted = any_of(0, rows);
    for (Layer* one : {&ring, &whole}) {
      one->keys.resize(static_cast<size_t>(length));
      one->values.resize(static_cast<size_t>(length));
    }
    ring.add_rows(rows);
    whole.keys = ring.keys;
    whole.values = ring.values;
    std::vector<int64_t> drafted;
    std::vector<std::vector<int64_t>> chain;
    for (int64_t i = 0; i < rows; ++i) {
      drafted.push_back(length + i);
      chain.push_back(i == 0 ? std::vector<int64_t>{} : chain.back());
      chain.back().push_back(i);
    }
    whole.forget();
    const std::vector<Floats> expected = whole.run(length, drafted, chain);
    for (int repeat = 0; repeat < 2; ++repeat)
      expect(ring.run(length, drafted, chain) == expected, "states differ from those of the whole text");
    for (int64_t i = 0; i < accepted; ++i) {
      ring.commit(length + i);
      whole.commit(length + i);
    }
    length += accepted;
    longest = std::max(longest, length);
    if (any_of(0, 9) == 0) {
      const int64_t oldest = static_cast<int64_t>(ring.states[0]);
      length = any_of(std::max(oldest, longest - ring.positions + 41), length);
    }
  }
}

}  // namespace

int test_delta_rule(int cases) {
  for (int i = 0; i < cases; ++i) a_tree_has_the_bits_of_its_paths();
  for (int i = 0; i < (cases + 9) / 10; ++i) states_follow_from_the_cached_rows();
  return failures;
}

void delta_rule_digest(const std::function<void(const void*, size_t)>& mix) {
  Layer layer(2, 2, 48, 40, 4, 32, 128, 128);
  layer.add_rows(40);
  for (int64_t t = 0; t < 28; ++t) layer.commit(t);
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < 12; ++i) rows.push_back(28 + i);
  for (const Floats& out : layer.run(28, rows, random_tree(12))) mix(out.data(), out.size() * sizeof(float));
}

void bench_delta_rule() {
  using Clock = std::chrono::steady_clock;
  Layer layer(16, 1, 128, 128, 4, 256, 384, 256);
  layer.add_rows(200);
  for (int64_t t = 0; t < 100; ++t) layer.commit(t);
  for (const int64_t rows : {1, 4, 8, 16, 64}) {
    std::vector<int64_t> drafted;
    for (int64_t i = 0; i < rows; ++i) drafted.push_back(100 + i);
    const auto tree = random_tree(rows);
    std::vector<double> times;
    for (int i = 0; i < 41; ++i) {
      layer.run(98, {98}, {{0}});  // so that the next pass has two rows to read again
      const auto start = Clock::now();
      layer.run(100, drafted, tree);
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
    std::sort(times.begin(), times.end());
    std::printf("gated_delta_rule rows %-3lld median %8.1f us   best %8.1f us\n", (long long)rows, times[20], times[0]);
  }
}
