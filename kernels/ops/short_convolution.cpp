#include "rounding.h"

#include "short_convolution.h"

#include <algorithm>
#include <vector>

#include "lane_kernels.h"
#include "scratch.h"
#include "team.h"

namespace streamfuse {
namespace {

constexpr int64_t kSerialConvolution = 32;  // rows; below this, starting threads costs more than it saves

// The last rows of each row's sequence: indices into `ConvolvedHead::read`, oldest first.
struct Terms {
  std::vector<int32_t> list;  // [rows, count], of which the last ones of each row are set
  std::vector<int64_t> counts;

  void fill(const ShortConvolution& a, int64_t cached) {
    const auto* const visible = reinterpret_cast<const uint8_t*>(a.visible);  // bytes, as in tree_attention.cpp
    list.resize(static_cast<size_t>(a.rows * a.count));
    counts.resize(static_cast<size_t>(a.rows));
    for (int64_t row = 0; row < a.rows; ++row) {
      int32_t* const end = list.data() + (row + 1) * a.count;
      int64_t found = 0;
      for (int64_t j = a.rows - 1; j >= 0 && found < a.count; --j)
        if (visible[row * a.visible_stride + j]) *(end - ++found) = static_cast<int32_t>(cached + j);
      for (int64_t j = cached - 1; j >= 0 && found < a.count; --j) *(end - ++found) = static_cast<int32_t>(j);
      counts[static_cast<size_t>(row)] = found;
    }
  }
};

// One head of the keys and of the values: the last cached positions, then the new rows, after quantization.
struct ConvolvedHead {
  const ShortConvolution& a;
  int64_t cached, number;
  KvShape one;     // a cache for one row of one head at a time
  float* read;     // [cached + rows, head_dim]
  uint8_t* cache;  // of the shape `one`

  static KvShape shape(const ShortConvolution& a) { return {kCacheBlock, 1, a.cache.head_dim}; }
  static int64_t cache_bytes(const ShortConvolution& a) {
    return kCacheBlock * std::max(shape(a).key_bytes(), shape(a).value_bytes());
  }

  void convolve(bool is_value, const Terms& terms) const {
    const int64_t dim = one.head_dim;
    const auto load = is_value ? load_value : load_key;
    const auto store = is_value ? store_value : store_key;
    const uint8_t* const from = is_value ? a.value_cache : a.key_cache;
    const float* const fresh = (is_value ? a.value : a.key) + number * dim;
    std::fill_n(cache, cache_bytes(a), uint8_t{0});
    for (int64_t i = 0; i < cached; ++i)
      load(a.cache, from, number, (a.cache_length - cached + i) % a.cache.capacity, read + i * dim);
    for (int64_t row = 0; row < a.rows; ++row) {
      store(one, fresh + row * a.half(), 0, cache);
      load(one, cache, 0, 0, read + (cached + row) * dim);
    }
    const int64_t first = is_value ? a.half() + number * dim : number * dim, channels = 2 * a.half();
    for (int64_t row = 0; row < a.rows; ++row) {
      float* const out = a.out + row * channels + first;
      std::fill_n(out, dim, 0.0f);
      for (int64_t term = a.count - terms.counts[static_cast<size_t>(row)]; term < a.count; ++term) {
        const float* const taps = a.taps + term * channels + first;
        const float* const channel = read + terms.list[static_cast<size_t>(row * a.count + term)] * dim;
        for (int64_t c = 0; c < dim; ++c) out[c] += taps[c] * channel[c];
      }
      const float* const query = a.query + row * channels + first;
      for (int64_t c = 0; c < dim; ++c) out[c] *= query[c];
    }
  }
};

}  // namespace

void short_convolution(const ShortConvolution& a) {
  thread_local Terms terms_of_this_thread;
  Terms& terms = terms_of_this_thread;
  const int64_t cached = std::min(a.count - 1, a.cache_length);
  terms.fill(a, cached);
  const int64_t floats = (cached + a.rows) * a.cache.head_dim, bytes = ConvolvedHead::cache_bytes(a),
                threads = team_limit();
  const int64_t stride = static_cast<int64_t>(Scratch::size_of<float>(floats) + Scratch::size_of<uint8_t>(bytes));
  Scratch scratch(static_cast<size_t>(threads * stride));
  uint8_t* const memory = scratch.take<uint8_t>(threads * stride);
  const auto heads = [&, memory](int64_t begin, int64_t end, int thread) {
    uint8_t* const own = memory + thread * stride;
    for (int64_t number = begin; number < end; ++number) {
      const ConvolvedHead head = {a,
                                  cached,
                                  number,
                                  ConvolvedHead::shape(a),
                                  reinterpret_cast<float*>(own),
                                  own + Scratch::size_of<float>(floats)};
      head.convolve(false, terms);
      head.convolve(true, terms);
    }
  };
  if (a.rows < kSerialConvolution)
    heads(0, a.cache.kv_heads, 0);
  else
    share_out(a.cache.kv_heads, even_chunk(a.cache.kv_heads), heads);
}

}  // namespace streamfuse
