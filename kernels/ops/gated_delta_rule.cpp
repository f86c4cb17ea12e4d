#include "rounding.h"

#include "gated_delta_rule.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lane_kernels.h"
#include "scratch.h"
#include "team.h"

namespace streamfuse {
namespace {

constexpr float kUnitEps = 1e-6f;        // of the lengths of q and k
constexpr int64_t kSerialDeltaRows = 2;  // with fewer rows, all but the states is computed on the calling thread
// Columns of a state that are updated for all rows before the next columns, so that they stay in the L1 cache.
constexpr int64_t kColumns = 32;
constexpr int64_t kMostTokens = int64_t{1} << 24;
constexpr int64_t kBlockRows = 128;  // cached rows that are read at once

// Consecutive rows, cached or new, and what is computed from them before any state.
struct DeltaInputs {
  const GatedDeltaRule& a;
  int64_t rows;
  float* dequantized;     // [rows, row_size], after quantization
  float* qkv;             // [rows, channels]: q, k and v
  float* decay_and_beta;  // [rows, value heads, 2]: the decay e^g, and beta
  float* unit_norms;      // [2, key_dim]: of the norms of q and of k
  uint8_t* row_caches;    // for each thread, a cache of one row and head

  static KvShape row_cache_shape(const GatedDeltaRule& a) { return {kCacheBlock, 1, a.cache.head_dim}; }
  static int64_t row_cache_bytes(const GatedDeltaRule& a) {
    return kCacheBlock * std::max(row_cache_shape(a).key_bytes(), row_cache_shape(a).value_bytes());
  }
  static size_t bytes(const GatedDeltaRule& a, int64_t rows) {
    return Scratch::size_of<float>(rows * a.row_size()) + Scratch::size_of<float>(rows * a.channels()) +
           Scratch::size_of<float>(2 * rows * a.value_heads) + Scratch::size_of<float>(2 * a.key_dim) +
           team_limit() * Scratch::size_of<uint8_t>(row_cache_bytes(a));
  }
  DeltaInputs(const GatedDeltaRule& args, int64_t count, Scratch& scratch)
      : a(args),
        rows(count),
        dequantized(scratch.take<float>(count * args.row_size())),
        qkv(scratch.take<float>(count * args.channels())),
        decay_and_beta(scratch.take<float>(2 * count * args.value_heads)),
        unit_norms(scratch.take<float>(2 * args.key_dim)),
        row_caches(scratch.take<uint8_t>(team_limit() *
                                         static_cast<int64_t>(Scratch::size_of<uint8_t>(row_cache_bytes(args))))) {
    const float length = 1.0f / std::sqrt(static_cast<float>(args.key_dim));
    std::fill_n(unit_norms, args.key_dim, length * length);
    std::fill_n(unit_norms + args.key_dim, args.key_dim, length);
  }

  template <typename Body>
  void for_each_unit(int64_t units, const Body& body) const {
    if (rows < kSerialDeltaRows)
      body(0, units, 0);
    else
      share_out(units, even_chunk(units), body);
  }

  // Reads the cached rows from position `first` on.
  void load(int64_t first) const {
    const DeltaInputs* const self = this;
    for_each_unit(2 * a.cache.kv_heads, [self, first](int64_t begin, int64_t end, int) {
      const GatedDeltaRule& args = self->a;
      for (int64_t head = begin; head < end; ++head) {
        const bool is_value = head >= args.cache.kv_heads;
        const int64_t number = is_value ? head - args.cache.kv_heads : head;
        for (int64_t row = 0; row < self->rows; ++row)
          (is_value ? load_value : load_key)(args.cache, is_value ? args.value_cache : args.key_cache, number,
                                             (first + row) % args.cache.capacity,
                                             self->dequantized + row * args.row_size() + head * args.cache.head_dim);
      }
    });
  }

  // Takes the new rows, as a cache would return them.
  void quantize_new_rows() const {
    const DeltaInputs* const self = this;
    for_each_unit(2 * a.cache.kv_heads, [self](int64_t begin, int64_t end, int thread) {
      const GatedDeltaRule& args = self->a;
      const KvShape shape = row_cache_shape(args);
      const int64_t bytes = row_cache_bytes(args), dim = args.cache.head_dim, half = args.cache.kv_heads * dim;
      uint8_t* const own = self->row_caches + thread * static_cast<int64_t>(Scratch::size_of<uint8_t>(bytes));
      std::fill_n(own, bytes, uint8_t{0});
      for (int64_t head = begin; head < end; ++head) {
        const bool is_value = head >= args.cache.kv_heads;
        const float* const from = is_value ? args.value + (head - args.cache.kv_heads) * dim : args.key + head * dim;
        for (int64_t row = 0; row < self->rows; ++row) {
          (is_value ? store_value : store_key)(shape, from + row * half, 0, own);
          (is_value ? load_value : load_key)(shape, own, 0, 0, self->dequantized + row * args.row_size() + head * dim);
        }
      }
    });
  }

  // The convolution, norms and gates of all rows. `visible` null: each row continues the one before.
  void mix(const float* history, const uint8_t* visible) const {
    const DeltaInputs* const self = this;
    for_each_unit(rows, [self, history, visible](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) self->mix_row(row, history, visible);
    });
  }

  void mix_row(int64_t row, const float* history, const uint8_t* visible) const {
    const int64_t channels = a.channels(), keys = a.key_heads * a.key_dim;
    float* const out = qkv + row * channels;
    const float* last[kMostTaps];  // oldest first
    int64_t missing = a.count;
    for (int64_t j = row; j >= 0 && missing > 0; --j)
      if (j == row || visible == nullptr || visible[row * a.visible_stride + j])
        last[--missing] = dequantized + j * a.row_size() + a.first_channel();
    for (int64_t j = a.count - 2; missing > 0; --j) last[--missing] = history + j * channels;
    const ProductKernels& kernels = *lane_kernels().products;
    kernels.convolve(last, a.taps, a.count, channels, out);
    for (int64_t part = 0; part < 2; ++part)
      kernels.norm(out + part * keys, a.key_heads, unit_norms + part * a.key_dim,
                   kUnitEps / static_cast<float>(a.key_dim), a.key_dim, out + part * keys);
    const float* const gates = dequantized + row * a.row_size();
    for (int64_t head = 0; head < a.value_heads; ++head) {
      // In double precision, so that libraries agree after rounding to float.
      const double x = static_cast<double>(gates[head * kGateStride]) + static_cast<double>(a.dt_bias[head]),
                   b = gates[(a.value_heads + head) * kGateStride],
                   softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
      float* const to = decay_and_beta + 2 * (row * a.value_heads + head);
      to[0] = static_cast<float>(std::exp(-static_cast<double>(a.rates[head]) * softplus));
      to[1] = static_cast<float>(1.0 / (1.0 + std::exp(-b)));
    }
  }

  // One step of `columns` columns of a value head's state, from column `first` on.
  void step(int64_t row, int64_t head, int64_t first, int64_t columns, const float* from, int64_t from_stride,
            float* to, int64_t to_stride, float* out) const {
    const int64_t keys = a.key_heads * a.key_dim, own = head * a.key_heads / a.value_heads * a.key_dim;
    const float *const q = qkv + row * a.channels() + own, *const v = qkv + row * a.channels() + 2 * keys +
                                                                      head * a.value_dim + first;
    const float* const factor = decay_and_beta + 2 * (row * a.value_heads + head);
    lane_kernels().products->delta_step(
        {from, to, from_stride, to_stride, q, q + keys, v, factor[0], factor[1], a.key_dim, out}, columns);
  }
};

// Rows of a tree: the slot of each row's state, and of its parent's; -1 is the state before all rows. A slot is reused
// after the last child of its row, so a chain needs one.
struct StateSlots {
  std::vector<int32_t> parent_slot, slot, parent, last_child, free;
  int32_t slots = 0;

  void fill(const uint8_t* visible, int64_t count, int64_t stride) {
    const auto rows = static_cast<size_t>(count);
    for (std::vector<int32_t>* of_rows : {&parent_slot, &slot, &parent, &last_child}) of_rows->assign(rows, -1);
    free.clear();
    free.reserve(rows + 1);
    slots = 0;
    for (size_t row = 0; row < rows; ++row)
      for (size_t j = row; j-- > 0;)
        if (visible[static_cast<int64_t>(row) * stride + static_cast<int64_t>(j)]) {
          parent[row] = static_cast<int32_t>(j);
          last_child[j] = static_cast<int32_t>(row);
          break;
        }
    for (size_t row = 0; row < rows; ++row) {
      if (parent[row] >= 0) {
        const auto above = static_cast<size_t>(parent[row]);
        parent_slot[row] = slot[above];
        if (last_child[above] == static_cast<int32_t>(row)) free.push_back(slot[above]);  // read, then overwritten
      }
      if (free.empty()) free.push_back(slots++);
      slot[row] = free.back();
      free.pop_back();
      if (last_child[row] < 0) free.push_back(slot[row]);
    }
  }
};

// Advances a state by `rows` tokens.
void advance_block(const GatedDeltaRule& a, float* state, int64_t rows) {
  const int64_t first = static_cast<int64_t>(state[0]);
  Scratch scratch(DeltaInputs::bytes(a, rows));
  const DeltaInputs inputs(a, rows, scratch);
  float *const history = state + kStateHeader, *const matrices = history + a.history_size();
  inputs.load(first);
  inputs.mix(history, nullptr);
  const DeltaInputs* const given = &inputs;
  share_out(a.value_heads, 1, [given, matrices](int64_t begin, int64_t end, int) {
    const GatedDeltaRule& args = given->a;
    float unused[kColumns];
    for (int64_t head = begin; head < end; ++head)
      for (int64_t j = 0; j < args.value_dim; j += kColumns) {
        float* const matrix = matrices + head * args.key_dim * args.value_dim + j;
        for (int64_t row = 0; row < given->rows; ++row)
          given->step(row, head, j, std::min(kColumns, args.value_dim - j), matrix, args.value_dim, matrix,
                      args.value_dim, unused);
      }
  });
  const int64_t channels = a.channels(), kept = std::max(a.count - 1 - rows, int64_t{0});
  std::copy_n(history + (a.count - 1 - kept) * channels, kept * channels, history);
  for (int64_t i = kept; i < a.count - 1; ++i)
    std::copy_n(inputs.dequantized + (rows - (a.count - 1) + i) * a.row_size() + a.first_channel(), channels,
                history + i * channels);
  state[0] = static_cast<float>(first + rows);
}

// Advances a state to `goal` tokens.
void advance(const GatedDeltaRule& a, float* state, int64_t goal) {
  for (int64_t left; (left = goal - static_cast<int64_t>(state[0])) > 0;)
    advance_block(a, state, std::min(left, kBlockRows));
}

}  // namespace

const char* why_not_updatable(const GatedDeltaRule& a) {
  if (a.cache_length == 0) return nullptr;
  if (a.cache_length > kMostTokens) return "the sequence is too long for the states";  // their lengths are floats
  if (!(a.older()[0] >= 0.0f && a.older()[0] <= a.newer()[0] && a.newer()[0] <= 0x1p24f))
    return "the states are damaged";
  const auto length = static_cast<float>(a.cache_length);
  if (length < a.older()[0]) return "the sequence was truncated further than its states go back";
  if (a.cache_length - static_cast<int64_t>(a.older()[0]) > a.cache.capacity)
    return "the cache has lost rows that the states have not seen";
  return nullptr;
}

void gated_delta_rule(const GatedDeltaRule& a) {
  float *const older = a.older(), *const newer = a.newer();
  const int64_t state_floats = kStateHeader + a.state_size();
  if (a.cache_length == 0) std::fill_n(older, 2 * state_floats, 0.0f);
  if (static_cast<float>(a.cache_length) < newer[0]) std::copy_n(older, state_floats, newer);
  advance(a, newer, a.cache_length);
  advance(a, older, a.cache_length - a.rewindable);

  const auto* const visible = reinterpret_cast<const uint8_t*>(a.visible);  // bytes, as in tree_attention.cpp
  thread_local StateSlots slots_of_this_thread;
  StateSlots& slots = slots_of_this_thread;
  slots.fill(visible, a.rows, a.visible_stride);
  const int64_t slot_floats = static_cast<int64_t>(Scratch::size_of<float>(a.key_dim * kColumns)) / sizeof(float),
                own_floats = slots.slots * slot_floats, threads = team_limit();
  Scratch scratch(DeltaInputs::bytes(a, a.rows) + Scratch::size_of<float>(threads * own_floats));
  const DeltaInputs inputs(a, a.rows, scratch);
  float* const memory = scratch.take<float>(threads * own_floats);
  inputs.quantize_new_rows();
  inputs.mix(newer + kStateHeader, visible);
  const DeltaInputs* const given = &inputs;
  const StateSlots* const where = &slots;
  const float* const before = newer + kStateHeader + a.history_size();
  share_out(a.value_heads, 1,
            [given, where, before, memory, own_floats, slot_floats](int64_t begin, int64_t end, int thread) {
              const GatedDeltaRule& args = given->a;
              float* const own = memory + thread * own_floats;
              for (int64_t head = begin; head < end; ++head) {
                const float* const first = before + head * args.key_dim * args.value_dim;
                for (int64_t j = 0; j < args.value_dim; j += kColumns)
                  for (int64_t row = 0; row < given->rows; ++row) {
                    const int32_t parent = where->parent_slot[static_cast<size_t>(row)];
                    float* const out = args.out + (row * args.value_heads + head) * args.value_dim + j;
                    given->step(row, head, j, std::min(kColumns, args.value_dim - j),
                                parent < 0 ? first + j : own + parent * slot_floats,
                                parent < 0 ? args.value_dim : kColumns,
                                own + where->slot[static_cast<size_t>(row)] * slot_floats, kColumns, out);
                  }
                for (int64_t row = 0; row < given->rows; ++row) {
                  float* const out = args.out + (row * args.value_heads + head) * args.value_dim;
                  lane_kernels().products->norm(out, 1, args.norm, args.eps, args.value_dim, out);
                }
              }
            });
}

void delta_rows(const float* projected, int64_t rows, int64_t value_heads, int64_t channels, const KvShape& cache,
                float* key, float* value) {
  const int64_t half = cache.kv_heads * cache.head_dim, gates = 2 * value_heads, wide = gates * kGateStride;
  for (int64_t row = 0; row < rows; ++row) {
    const float* const from = projected + row * (gates + channels);
    float *const first = key + row * half, *const second = value + row * half;
    std::fill_n(first, half, 0.0f);
    std::fill_n(second, half, 0.0f);
    const auto copy = [&](const float* source, int64_t at, int64_t size) {
      const int64_t here = std::clamp(half - at, int64_t{0}, size);
      if (here > 0) std::copy_n(source, here, first + at);
      if (here < size) std::copy_n(source + here, size - here, second + std::max(at - half, int64_t{0}));
    };
    for (int64_t gate = 0; gate < gates; ++gate) copy(from + gate, gate * kGateStride, 1);
    copy(from + gates, wide, channels);
  }
}

}  // namespace streamfuse
