// Drafting tables made of any bytes, and a saved session changed at will: refused with a sentence, or drafted from. Run
// by tests/fuzz/run.py.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "streamfuse_core.h"
#include "streamfuse_low.h"

namespace {

void need_message(const char* text) {
  if (text == nullptr || *text == 0) std::abort();
}

// The fuzzer's bytes, one after the other; zeros when they are used up.
struct Bytes {
  const uint8_t* data;
  size_t left;

  uint8_t take() { return left == 0 ? 0 : (--left, *data++); }
  int64_t below(int64_t n) { return take() % n; }
};

// One table: of the shape that belongs there and in order where its first byte is even, else as the bytes come.
struct Table {
  std::string name;
  std::vector<uint8_t> bytes;  // exactly as long as the shape says, so that the sanitizer sees what lies behind
  sf_tensor tensor = {};

  Table(const char* name, int32_t dtype, std::vector<int64_t> shape, bool ascending, Bytes& from) : name(name) {
    const uint8_t way = from.take();
    const bool odd = way & 1;
    if (way & 2) shape[static_cast<size_t>(from.below(static_cast<int64_t>(shape.size())))] = from.below(9);
    if (way & 4) dtype = 1 + static_cast<int32_t>(from.below(4));
    const size_t item = dtype == SF_F16 ? 2 : dtype == SF_I64 ? 8 : 4;
    size_t count = 1;
    for (const int64_t n : shape) count *= static_cast<size_t>(n);
    bytes.resize(count * item);
    int64_t last = 0;
    for (size_t i = 0; i < count; ++i) {
      const uint8_t byte = from.take();
      uint8_t* const at = bytes.data() + i * item;
      if (odd) {
        for (size_t b = 0; b < item; ++b) at[b] = from.take();
      } else if (dtype == SF_F32) {
        const float value = static_cast<float>(byte) / 64;
        std::memcpy(at, &value, 4);
      } else if (dtype == SF_F16) {
        const uint16_t half = static_cast<uint16_t>(0xb800 + 64 * (ascending ? (last += byte & 3) : byte & 7));
        std::memcpy(at, &half, 2);
      } else {
        last = ascending ? last + byte : byte;
        std::memcpy(at, &last, item);  // little-endian, as all machines that run this
        if (!ascending) last = 0;
      }
    }
    tensor.dtype = dtype;
    tensor.rank = static_cast<int32_t>(shape.size());
    for (size_t d = 0; d < shape.size(); ++d) tensor.shape[d] = shape[d];
  }
  sf_tensor given() {
    tensor.name = name.c_str();
    tensor.data = bytes.empty() ? nullptr : bytes.data();
    return tensor;
  }
};

constexpr int64_t kVocabulary = 12, kStreams = 2, kTop = 3, kRows = 4;

// An engine that chooses by arithmetic, with streams whose ids are as good as any engine's might be.
struct Engine {
  std::vector<int64_t> best = std::vector<int64_t>(16), kept = best, ids = std::vector<int64_t>(16 * kStreams * kTop);
  std::vector<float> probs = std::vector<float>(ids.size());
  int64_t length = 0;

  static int run(void* context, const char*, int32_t n, const int64_t* tokens, const int64_t*, const uint8_t*, int32_t,
                 sf_results* out) {
    auto& self = *static_cast<Engine*>(context);
    for (int32_t i = 0; i < n; ++i) {
      self.best[i] = (tokens[i] * 5 + 1) % kVocabulary;
      self.kept[i] = i;
      for (int64_t j = 0; j < kStreams * kTop; ++j) {
        self.ids[i * kStreams * kTop + j] = (tokens[i] + j) % kVocabulary;
        self.probs[i * kStreams * kTop + j] = -0.5f * static_cast<float>(j % kTop + 1);
      }
    }
    *out = {n,
            n,
            kVocabulary,
            kStreams,
            kTop,
            nullptr,
            self.best.data(),
            self.kept.data(),
            self.ids.data(),
            self.probs.data()};
    return SF_OK;
  }
  static int commit(void* context, const int32_t*, int32_t n) {
    static_cast<Engine*>(context)->length += n;
    return SF_OK;
  }
  static int truncate(void* context, int64_t length) {
    static_cast<Engine*>(context)->length = length;
    return SF_OK;
  }
  static const char* error(void*) { return "no error"; }
};

void draft(sf_core_model* model, Bytes& from) {
  int64_t tokens[8], parents[8];
  double log_probs[8];
  int64_t text[6];
  for (int i = 0; i < 4; ++i) {
    for (int64_t& token : text) token = from.below(kVocabulary + 1);
    sf_grow_table(model, text, 1 + from.below(6), nullptr, 8, 4, tokens, parents, log_probs);
  }
  int64_t ids[kStreams * kTop];
  float probs[kStreams * kTop];
  for (int64_t& id : ids) id = from.below(kVocabulary);
  for (float& prob : probs) prob = -static_cast<float>(from.take()) / 32;
  sf_grow_streams(model, from.below(kVocabulary + 1), ids, probs, 1, nullptr, 8, 4, tokens, parents, log_probs);
}

void write_and_restore(sf_core_model* model, Bytes& from) {
  static Engine engines[2];
  sf_sequence* sessions[2];
  for (int i = 0; i < 2; ++i) {
    engines[i] = {};
    sf_backend backend = {};
    backend.size = sizeof backend;
    backend.context = &engines[i];
    backend.run = Engine::run;
    backend.commit = Engine::commit;
    backend.truncate = Engine::truncate;
    backend.error = Engine::error;
    if (sf_sequence_new(model, &backend, nullptr, &sessions[i]) != SF_OK) std::abort();
  }
  sf_options options;
  sf_default_options(&options);
  options.max_new_tokens = 9;
  options.width = from.take() & 1 ? kRows : 0;
  const int64_t prompt[] = {from.below(kVocabulary), from.below(kVocabulary)};
  sf_token token;
  int code = sf_sequence_start(sessions[0], prompt, 2, &options);
  for (int64_t expected = (prompt[1] * 5 + 1) % kVocabulary; code == SF_OK;
       expected = (expected * 5 + 1) % kVocabulary) {
    code = sf_sequence_next(sessions[0], &token);
    if (code == SF_OK && token.id != expected) std::abort();  // a draft changed the text
  }
  if (code != SF_END) std::abort();  // a draft ended the text

  static const std::string path = std::filesystem::temp_directory_path() / ("fuzz-session-" + std::to_string(getpid()));
  if (sf_sequence_save(sessions[0], path.c_str(), "note", 4) != SF_OK) std::abort();
  std::FILE* const file = std::fopen(path.c_str(), "r+b");
  for (int64_t changes = from.below(4); changes > 0; --changes) {
    std::fseek(file, static_cast<long>(from.take()), SEEK_SET);
    std::fputc(from.take(), file);
  }
  if (from.take() & 1) {
    std::fflush(file);
    if (ftruncate(fileno(file), from.take()) != 0) std::abort();
  }
  std::fclose(file);
  const auto read_all = [](void* sum, const void* note, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) *static_cast<size_t*>(sum) += static_cast<const unsigned char*>(note)[i];
    return static_cast<int>(SF_OK);
  };
  size_t sum = 0;
  if (sf_sequence_restore(sessions[1], path.c_str(), read_all, &sum) != SF_OK)
    need_message(sf_sequence_error(sessions[1]));
  for (sf_sequence* session : sessions) sf_sequence_free(session);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes from = {data, size};
  const sf_method verify = {"verify_4", kRows, kRows, kRows};
  sf_spec spec = {};
  spec.size = sizeof spec;
  spec.capacity = 64;
  spec.vocab_size = kVocabulary;
  spec.num_streams = kStreams;
  spec.top_k = kTop;
  spec.prefill_rows = 8;
  spec.verify = &verify;
  spec.verify_count = 1;
  spec.identity = "fuzz";
  const int64_t rank = from.below(4), slots = from.below(kVocabulary), contexts = from.below(6),
                entries = from.below(12);
  std::vector<Table> tables;
  const uint8_t which = from.take();
  if (which & 1) tables.emplace_back("calibration", SF_F32, std::vector<int64_t>{kStreams}, false, from);
  if (which & 2) {
    tables.emplace_back("parent_left", SF_F16, std::vector<int64_t>{kVocabulary, rank}, false, from);
    tables.emplace_back("parent_right", SF_F16, std::vector<int64_t>{slots, rank}, false, from);
    tables.emplace_back("gate", SF_F32, std::vector<int64_t>{kStreams, rank}, false, from);
    tables.emplace_back("stream_vocab", SF_I32, std::vector<int64_t>{slots}, true, from);
  }
  if (which & 4) {
    tables.emplace_back("ngram_keys", SF_I64, std::vector<int64_t>{contexts}, true, from);
    tables.emplace_back("ngram_starts", SF_I32, std::vector<int64_t>{contexts + 1}, true, from);
    tables.emplace_back("ngram_ids", SF_I32, std::vector<int64_t>{entries}, false, from);
    tables.emplace_back("ngram_log_probs", SF_F16, std::vector<int64_t>{entries}, true, from);
  }
  std::vector<sf_tensor> given;
  for (Table& table : tables) given.push_back(table.given());
  sf_core_model* model = nullptr;
  if (sf_core_model_open(&spec, given.data(), static_cast<int32_t>(given.size()), &model) == SF_OK) {
    draft(model, from);
    write_and_restore(model, from);
  } else {
    need_message(sf_core_model_error(model));
  }
  sf_core_model_close(model);
  return 0;
}
