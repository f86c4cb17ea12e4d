// Tests of the packed products and of what is fused with them: against double precision, against one another, and bit
// for bit over numbers of rows and threads.
#include "test_products.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "ops/add_normed.h"
#include "ops/embedding.h"
#include "ops/gate_heads.h"
#include "ops/gated_mlp.h"
#include "ops/head.h"
#include "ops/lane_kernels.h"
#include "ops/linear.h"
#include "ops/qkv.h"
#include "ops/team.h"

namespace {

using namespace streamfuse;
using Floats = std::vector<float>;

std::mt19937 generator(7);
int failures = 0;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

int64_t any_of(int64_t low, int64_t high) { return low + static_cast<int64_t>(generator() % (high - low + 1)); }

// Computed from integers, so that they are the same with every C library.
Floats floats(int64_t count, float size = 1.0f) {
  Floats values(count);
  for (float& value : values) value = size * (static_cast<float>(any_of(-4000, 4000)) / 2000.0f);
  return values;
}

// A packed matrix of random weights; its size is exact so that the address sanitizer detects every access outside.
struct Matrix {
  int64_t outputs, inputs;
  std::vector<uint8_t> bytes;
  Packed packed;

  Matrix(int64_t outputs, int64_t inputs, bool is_q8)
      : outputs(outputs), inputs(inputs), packed{nullptr, (outputs + 15) / 16, inputs / 32, is_q8} {
    bytes.resize(packed.tiles * packed.groups * packed.group_bytes());
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(generator());
    for (int64_t at = 0; at < packed.tiles * packed.groups; ++at) {
      uint8_t* halves = bytes.data() + at * packed.group_bytes() + (is_q8 ? 512 : 256);
      for (int i = 0; i < (is_q8 ? 16 : 32); ++i) {  // scales around 0.01, minima of both signs
        const uint16_t half =
            static_cast<uint16_t>(any_of(7, 8) << 10 | any_of(0, 1023) | (i < 16 ? 0 : any_of(0, 1) << 15));
        std::memcpy(halves + 2 * i, &half, 2);
      }
    }
    packed.data = bytes.data();
  }

  const uint8_t* group(int64_t row, int64_t group) const {
    return packed.data + ((row / 16) * packed.groups + group) * packed.group_bytes();
  }
  int quant(int64_t row, int64_t column) const {
    const int64_t k = column % 32, r = row % 16;
    const uint8_t* tile = group(row, column / 32);
    if (packed.is_q8) return tile[64 * (k / 4) + 4 * r + k % 4] - 128;
    const uint8_t byte = tile[64 * (k % 16 / 4) + 4 * r + k % 4];
    return k < 16 ? byte & 15 : byte >> 4;
  }
  double scale(int64_t row, int64_t g) const {
    return lane_kernels().products->half(group(row, g) + (packed.is_q8 ? 512 : 256) + 2 * (row % 16));
  }
  double minimum(int64_t row, int64_t g) const {
    return packed.is_q8 ? 0.0 : lane_kernels().products->half(group(row, g) + 288 + 2 * (row % 16));
  }
};

// Small float16 values of both signs, including denormals.
std::vector<uint16_t> halves(int64_t count) {
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values)
    value = static_cast<uint16_t>(any_of(0, 1) << 15 | any_of(0, 11) << 10 | any_of(0, 1023));
  return values;
}

// Random adapters of `parts` projections in either dtype, for rows from a random one on, with their memory.
struct Adapter {
  bool is_int8 = any_of(0, 1);
  int64_t inputs;
  std::vector<uint8_t> down, up;
  LowRank low_rank;

  Adapter(int64_t inputs, int64_t outputs, int64_t parts, int64_t rank, int64_t first_row)
      : inputs(inputs),
        down(values(parts * rank, inputs, true)),
        up(values((outputs + 15) / 16 * rank, 16, false)),
        low_rank{down.data(), up.data(), parts, rank, first_row, is_int8} {}

  // Rows of `size` values; with factors, a float32 after each row of integers.
  std::vector<uint8_t> values(int64_t rows, int64_t size, bool with_factors) const {
    std::vector<uint8_t> bytes;
    const auto append = [&](const void* data, size_t count) {
      const auto* first = static_cast<const uint8_t*>(data);
      bytes.insert(bytes.end(), first, first + count);
    };
    for (int64_t row = 0; row < rows; ++row) {
      if (is_int8) {
        for (int64_t i = 0; i < size; ++i) bytes.push_back(static_cast<uint8_t>(any_of(0, 255)));
        const float factor = static_cast<float>(any_of(1, 1000)) * 1e-9f;
        if (with_factors) append(&factor, sizeof factor);
      } else {
        append(halves(size).data(), 2 * static_cast<size_t>(size));
      }
    }
    return bytes;
  }

  double at(const uint8_t* row, int64_t i) const {
    return is_int8 ? static_cast<int8_t>(row[i]) : lane_kernels().products->half(row + 2 * i);
  }
  double down_at(int64_t j, int64_t i) const {
    const uint8_t* row = low_rank.down_row(j, inputs);
    float factor = 1;
    if (is_int8) std::memcpy(&factor, row + inputs, sizeof factor);
    return at(row, i) * factor;
  }
  double up_at(int64_t n, int64_t j) const { return at(low_rank.up_tile(n / 16), j * 16 + n % 16); }
};

struct Input {
  int64_t rows, inputs;
  Floats x, norm;

  Input(int64_t rows, int64_t inputs)
      : rows(rows), inputs(inputs), x(floats(rows * inputs, 3.0f)), norm(floats(inputs)) {}

  // Rows [first, first + count) with or without the norm.
  ProductInput part(int64_t first, int64_t count, bool with_norm, LowRank adapter = {}) const {
    adapter.first_row = std::max<int64_t>(0, adapter.first_row - first);
    return {x.data() + first * inputs, with_norm ? norm.data() : nullptr, 1e-5f, count, inputs, adapter};
  }
};

bool close(double expected, float got, double tolerance) {
  return std::fabs(expected - got) <= tolerance * (1 + std::fabs(expected));
}

void linear_equals_double_precision() {
  const int64_t rows = any_of(1, 19), inputs = 32 * (any_of(0, 1) ? any_of(1, 6) : any_of(16, 35)),
                outputs = any_of(1, 70), rank = any_of(0, 5);
  const Matrix w(outputs, inputs, any_of(0, 1));
  const Input input(rows, inputs);
  const Adapter adapter(inputs, outputs, 1, rank, any_of(0, rows));
  const Floats residual = floats(rows * outputs), bias = floats(outputs, 5.0f);
  const bool with_norm = any_of(0, 1), with_residual = any_of(0, 1), with_bias = any_of(0, 1);
  Floats out(rows * outputs);
  linear({input.part(0, rows, with_norm, adapter.low_rank), w.packed, outputs, with_bias ? bias.data() : nullptr,
          with_residual ? residual.data() : nullptr, out.data()});
  bool good = true;
  for (int64_t r = 0; r < rows; ++r) {
    Floats x(input.x.begin() + r * inputs, input.x.begin() + (r + 1) * inputs);
    double squares = 0;
    for (float value : x) squares += double(value) * value;
    if (with_norm) {
      Floats normed(inputs);
      lane_kernels().products->norm(x.data(), 1, input.norm.data(), 1e-5f, inputs, normed.data());
      for (int64_t i = 0; i < inputs; ++i)
        good &= close(x[i] / std::sqrt(squares / inputs + 1e-5) * input.norm[i], normed[i], 1e-6);
      x = normed;
    }
    for (int64_t n = 0; n < outputs; ++n) {
      double sum = (with_residual ? residual[r * outputs + n] : 0.0) + (with_bias ? bias[n] : 0.0);
      for (int64_t g = 0; g < inputs / 32; ++g) {
        float largest = 0;
        for (int64_t k = 0; k < 32; ++k) largest = std::max(largest, std::fabs(x[32 * g + k]));
        const float scale = largest / 127.0f, inverse = scale == 0 ? 0 : 1.0f / scale;
        for (int64_t k = 0; k < 32; ++k)
          sum += (w.quant(n, 32 * g + k) * w.scale(n, g) + w.minimum(n, g)) * scale *
                 std::nearbyint(x[32 * g + k] * inverse);
      }
      for (int64_t j = 0; j < rank && r >= adapter.low_rank.first_row; ++j) {
        double inner = 0;
        for (int64_t i = 0; i < inputs; ++i) inner += adapter.down_at(j, i) * x[i];
        sum += inner * adapter.up_at(n, j);
      }
      good &= close(sum, out[r * outputs + n], 2e-5);
    }
  }
  expect(good, "a product differs from double precision");
}

// The results of all operators for rows [first, first + count) of a model.
struct Model {
  int64_t rows, hidden = 544, heads = 4, kv_heads = 2, dim = 32, inner = 96, vocabulary = 203;
  bool with_norms, with_biases, norms_rows, gelu;
  Matrix qkv_weight{(heads + 2 * kv_heads) * dim, hidden, false}, gate_up{2 * inner, hidden, false},
      down{hidden, inner, false}, o{hidden, hidden, false}, embedding{vocabulary, hidden, true};
  Input input;
  Floats cos, sin, q_norm = floats(heads * dim), k_norm = floats(kv_heads * dim);
  Floats qkv_bias = floats(qkv_weight.outputs, 5.0f), o_bias = floats(hidden, 5.0f);
  Adapter qkv_adapter, up_adapter, down_adapter;
  std::vector<int64_t> ids;

  explicit Model(int64_t rows)
      : rows(rows),
        with_norms(any_of(0, 1)),
        with_biases(any_of(0, 1)),
        norms_rows(with_norms && any_of(0, 1)),
        gelu(any_of(0, 1)),
        input(rows, hidden),
        cos(floats(rows * dim)),
        sin(floats(rows * dim)),
        qkv_adapter(hidden, qkv_weight.outputs, 3, 3, any_of(0, rows)),
        up_adapter(hidden, 2 * inner, 2, 2, any_of(0, rows)),
        down_adapter(inner, hidden, 1, 2, up_adapter.low_rank.first_row),
        ids(rows) {
    for (int64_t& id : ids) id = any_of(0, vocabulary - 1);
  }

  // Row by row: query, key, value, query alone, linear, MLP, its branch, sum with a norm, gated heads and numbers,
  // logits, best, streams, both embeddings.
  std::vector<Floats> outputs(int64_t first, int64_t count, bool with_logits = true) const {
    const int64_t k = 5;
    Floats q(count * heads * dim), key(count * kv_heads * dim), value(key), y(count * hidden), mlp(y), branch(y),
        sum(y), embedded(y), embedded_q4(y), alone(q);
    Floats logits(count * vocabulary), log_probs(count * k);
    std::vector<int64_t> best(count), top(count * k), columns(vocabulary);
    for (int64_t c = 0; c < vocabulary; ++c) columns[c] = 2 * c;
    qkv({input.part(first, count, true, qkv_adapter.low_rank), qkv_weight.packed, &cos[first * dim], &sin[first * dim],
         with_biases ? qkv_bias.data() : nullptr, with_norms ? q_norm.data() : nullptr,
         with_norms ? k_norm.data() : nullptr, heads, kv_heads, dim, q.data(), key.data(), value.data(), norms_rows});
    qkv({input.part(first, count, true), qkv_weight.packed, &cos[first * dim], &sin[first * dim], nullptr,
         with_norms ? q_norm.data() : nullptr, nullptr, heads, 0, dim, alone.data(), nullptr, nullptr});
    linear({input.part(first, count, false), o.packed, hidden, with_biases ? o_bias.data() : nullptr,
            &input.x[first * hidden], y.data()});
    LowRank second = down_adapter.low_rank;
    second.first_row = std::max<int64_t>(0, second.first_row - first);
    gated_mlp(
        {input.part(first, count, true, up_adapter.low_rank), gate_up.packed, down.packed, second, inner, mlp.data()});
    gated_mlp({input.part(first, count, with_norms, up_adapter.low_rank), gate_up.packed, down.packed, second, inner,
               branch.data(), gelu ? Activation::kGelu : Activation::kSilu, false});
    add_normed({branch.data(), input.norm.data(), 1e-5f, &input.x[first * hidden], count, hidden, sum.data()});
    Floats gates(count * hidden / dim), gated(y);
    for (size_t i = 0; i < gates.size(); ++i) gates[i] = branch[i / (hidden / dim) * hidden + i % (hidden / dim)];
    gate_heads({y.data(), gates.data(), gated.data(), count, hidden / dim, dim});
    Floats by_number(y), by_silu(y), by_gelu(y);
    gate_heads({y.data(), branch.data(), by_number.data(), count, hidden, 1});
    silu_gate({y.data(), branch.data(), by_silu.data(), count, hidden, 1});
    gelu_gate({y.data(), branch.data(), by_gelu.data(), count, hidden, 1});
    head({input.part(first, count, true), embedding.packed, vocabulary, with_logits ? logits.data() : nullptr,
          best.data(), gelu ? 500.0f : 0.0f});
    stream_top_k({input.part(first, count, true), embedding.packed, columns.data(), vocabulary, k, top.data(),
                  log_probs.data()});
    streamfuse::embedding(embedding.packed, &ids[first], count, embedded.data());
    std::vector<int64_t> low_ids(ids.begin() + first, ids.begin() + first + count);
    for (int64_t& id : low_ids) id %= gate_up.outputs;
    streamfuse::embedding(gate_up.packed, low_ids.data(), count, embedded_q4.data());
    std::vector<Floats> found(count);
    const auto take = [&](const auto& values) {
      const int64_t size = static_cast<int64_t>(values.size()) / count;
      for (int64_t r = 0; r < count; ++r)
        found[r].insert(found[r].end(), values.begin() + r * size, values.begin() + (r + 1) * size);
    };
    take(q);
    take(key);
    take(value);
    take(alone);
    take(y);
    take(mlp);
    take(branch);
    take(sum);
    take(gated);
    take(by_number);
    take(by_silu);
    take(by_gelu);
    take(best);
    take(top);
    take(log_probs);
    take(embedded);
    take(embedded_q4);
    if (with_logits) take(logits);
    return found;
  }
};

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void rows_do_not_know_their_company() {
  const Model model(any_of(0, 3) == 0 ? any_of(32, 70) : any_of(1, 19));  // from 32 rows on, threads share them
  limit_team(1);
  const std::vector<Floats> together = model.outputs(0, model.rows);
  for (const int threads : {1, 3}) {
    limit_team(reserve_team(threads));
    const int64_t first = any_of(0, model.rows - 1), count = any_of(1, model.rows - first);
    const std::vector<Floats> some = model.outputs(first, count);
    for (int64_t r = 0; r < count; ++r)
      expect(same_bits(together[first + r], some[r]), "a row's bits depend on its company");
  }
  limit_team(1);
}

void heads_agree_with_their_logits() {
  const Model model(any_of(1, 5));
  const std::vector<Floats> with = model.outputs(0, model.rows), without = model.outputs(0, model.rows, false);
  for (int64_t r = 0; r < model.rows; ++r) {
    const int64_t at = without[r].size(), best = at - 2 * model.hidden - 5 - 5 - 1;
    const auto logits = with[r].begin() + at;
    expect(with[r][best] == std::max_element(logits, with[r].end()) - logits, "best is not the largest logit");
    expect(with[r][best + 1] == 2 * with[r][best], "the first stream candidate is not the largest logit");
    expect(same_bits(Floats(with[r].begin(), logits), without[r]), "leaving out the logits changes a result");
  }
}

// Tiles with the same weights give the same 16 logits, so the largest occurs in each of them.
void equal_logits_give_the_smallest_id() {
  const int64_t tiles = any_of(200, 400), inputs = 32, rows = any_of(1, 3), first = any_of(0, tiles - 100);
  Matrix w(16 * tiles, inputs, true);
  const size_t tile_bytes = w.bytes.size() / tiles;
  const std::vector<uint8_t> equal(w.bytes.begin() + first * tile_bytes, w.bytes.begin() + (first + 1) * tile_bytes);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    uint8_t* const here = w.bytes.data() + tile * tile_bytes;
    if (tile < first)
      std::memset(here + 512, 0, 32);  // scales of zero: logits of zero
    else if (tile == first || any_of(0, 3) != 0)
      std::memcpy(here, equal.data(), tile_bytes);
    else
      std::memset(here + 512, 0, 32);
  }
  const Input input(rows, inputs);
  Floats logits(rows * 16 * tiles);
  std::vector<int64_t> best(rows), expected(rows);
  limit_team(1);
  head({input.part(0, rows, true), w.packed, 16 * tiles, logits.data(), best.data()});
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = logits.begin() + r * 16 * tiles;
    expected[r] = std::max_element(row, row + 16 * tiles) - row;
  }
  expect(best == expected, "best is not the first of equal logits");
  limit_team(reserve_team(4));
  for (int i = 0; i < 20; ++i) {
    head({input.part(0, rows, true), w.packed, 16 * tiles, nullptr, best.data()});
    expect(best == expected, "which of equal logits is best depends on the threads");
  }
  limit_team(1);

  // A random order, as work stealing can produce.
  std::vector<int64_t> order(tiles);
  for (int64_t tile = 0; tile < tiles; ++tile) order[tile] = tile;
  std::shuffle(order.begin(), order.end(), generator);
  Best kept = {-std::numeric_limits<float>::infinity(), std::numeric_limits<int64_t>::max()};
  for (const int64_t tile : order) lane_kernels().products->keep_best(&logits[16 * tile], 16, 16 * tile, &kept);
  expect(kept.id == expected[0], "which of equal logits is best depends on the order of the tiles");
}

// The gate in double precision may round differently, so the tolerance is large.
void the_mlp_is_its_parts(bool gelu) {
  const Model model(3);
  Floats both(model.rows * 2 * model.inner), gated(model.rows * model.inner), expected(model.rows * model.hidden),
      out(expected);
  linear({model.input.part(0, 3, true), model.gate_up.packed, 2 * model.inner, nullptr, nullptr, both.data()});
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t i = 0; i < model.inner; ++i) {
      const float* block = &both[r * 2 * model.inner + i / 16 * 32 + i % 16];
      const double x = block[0], silu = x / (1 + std::exp(-x));
      const double tanh = x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) / 2;
      gated[r * model.inner + i] = static_cast<float>((gelu ? tanh : silu) * block[16]);
    }
  linear({{gated.data(), nullptr, 0, 3, model.inner, {}},
          model.down.packed,
          model.hidden,
          nullptr,
          gelu ? nullptr : model.input.x.data(),
          expected.data()});
  gated_mlp({model.input.part(0, 3, true),
             model.gate_up.packed,
             model.down.packed,
             {},
             model.inner,
             out.data(),
             gelu ? Activation::kGelu : Activation::kSilu,
             !gelu});
  double worst = 0, largest = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    worst = std::max(worst, std::fabs(double(out[i]) - expected[i]));
    largest = std::max(largest, std::fabs(double(out[i])));
  }
  expect(worst < 1e-3 * largest, "the MLP differs from its parts");
}

}  // namespace

int test_products(int cases) {
  for (int i = 0; i < cases; ++i) {
    linear_equals_double_precision();
    rows_do_not_know_their_company();
    heads_agree_with_their_logits();
    equal_logits_give_the_smallest_id();
    the_mlp_is_its_parts(i % 2 != 0);
  }
  return failures;
}

void products_digest(const std::function<void(const void*, size_t)>& mix) {
  generator.seed(99);
  for (const int64_t rows : {1, 2, 7, 16})
    for (const Floats& row : Model(rows).outputs(0, rows)) mix(row.data(), row.size() * sizeof(float));
}
