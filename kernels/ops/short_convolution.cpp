#include "rounding.h"

#include "short_convolution.h"

#include <algorithm>
#include <vector>

#include "lane_kernels.h"
#include "scratch.h"

namespace streamfuse {
namespace {

void load(const ShortConvolution& a, const KvShape& shape, const uint8_t* keys, const uint8_t* values, int64_t position,
          float* read) {
  load_key(shape, keys, position, read);
  load_value(shape, values, position, read + a.half());
}

}  // namespace

void short_convolution(const ShortConvolution& a) {
  const int64_t channels = 2 * a.half(), cached = std::min(a.count - 1, a.cache_length);
  const KvShape one = {kCacheBlock, a.cache.kv_heads, a.cache.head_dim};  // a cache for one row at a time
  const int64_t key_bytes = one.kv_heads * one.capacity * one.key_bytes(),
                value_bytes = one.kv_heads * one.capacity * one.value_bytes();
  Scratch scratch(Scratch::size_of<float>((cached + a.rows) * channels) + Scratch::size_of<uint8_t>(key_bytes) +
                  Scratch::size_of<uint8_t>(value_bytes));
  float* const read = scratch.take<float>((cached + a.rows) * channels);
  uint8_t* const keys = scratch.take<uint8_t>(key_bytes);
  uint8_t* const values = scratch.take<uint8_t>(value_bytes);
  std::fill_n(keys, key_bytes, uint8_t{0});
  std::fill_n(values, value_bytes, uint8_t{0});
  for (int64_t i = 0; i < cached; ++i)
    load(a, a.cache, a.key_cache, a.value_cache, (a.cache_length - cached + i) % a.cache.capacity, read + i * channels);
  float* const fresh = read + cached * channels;
  for (int64_t row = 0; row < a.rows; ++row) {
    store_key(one, a.key + row * a.half(), 0, keys);
    store_value(one, a.value + row * a.half(), 0, values);
    load(a, one, keys, values, 0, fresh + row * channels);
  }

  std::vector<const float*> sequence;  // the end of a row's
  const auto* const visible = reinterpret_cast<const uint8_t*>(a.visible);  // bytes, as in tree_attention.cpp
  for (int64_t row = 0; row < a.rows; ++row) {
    sequence.clear();
    for (int64_t i = 0; i < cached; ++i) sequence.push_back(read + i * channels);
    for (int64_t j = 0; j < a.rows; ++j)
      if (visible[row * a.visible_stride + j]) sequence.push_back(fresh + j * channels);
    const int64_t terms = std::min(a.count, static_cast<int64_t>(sequence.size()));
    float* const out = a.out + row * channels;
    std::fill_n(out, channels, 0.0f);
    for (int64_t term = 0; term < terms; ++term) {
      const float* const taps = a.taps + (a.count - terms + term) * channels;
      const float* const from = sequence[sequence.size() - static_cast<size_t>(terms - term)];
      for (int64_t c = 0; c < channels; ++c) out[c] += taps[c] * from[c];
    }
    const float* const query = a.query + row * channels;
    for (int64_t c = 0; c < channels; ++c) out[c] *= query[c];
  }
}

}  // namespace streamfuse
