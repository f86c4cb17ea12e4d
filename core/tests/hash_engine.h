// An engine that computes its "model" from a hash of the text, for tests of the core by itself.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../session.h"

namespace streamfuse {
namespace {

int failures = 0;

void expect(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  ++failures;
}

constexpr int64_t kVocabulary = 32, kCapacity = 96;

// Logits after a text: a hash of its last three tokens and its length.
void logits_after(const std::vector<int64_t>& text, float* logits) {
  uint64_t hash = text.size();
  for (size_t i = text.size() < 3 ? 0 : text.size() - 3; i < text.size(); ++i)
    hash = (hash ^ static_cast<uint64_t>(text[i])) * 0x9e3779b97f4a7c15u;
  std::mt19937_64 random(hash);
  for (int64_t i = 0; i < kVocabulary; ++i) logits[i] = static_cast<float>(random() % 4000) / 500.0f;
}

int64_t best_of(const float* logits) { return std::max_element(logits, logits + kVocabulary) - logits; }

[[maybe_unused]] int64_t greedy_after(const std::vector<int64_t>& text) {
  float logits[kVocabulary];
  logits_after(text, logits);
  return best_of(logits);
}

// Keeps the cached text and the texts of the last pass's rows.
struct HashEngine {
  std::vector<int64_t> cache;
  std::vector<std::vector<int64_t>> rows;
  std::vector<float> logits;
  std::vector<int64_t> best, kept;
  int64_t fail_at = -1;           // this pass from now fails
  bool keeps_rows = false;        // `commit` and `truncate` fail
  int64_t goes_back = kCapacity;  // rows that `truncate` can drop, except for all
  size_t furthest = 0;            // the longest cache so far
  int releases = 0;
  bool idles = true;  // since the last pass

  int run(int32_t n, const int64_t* ids, const uint8_t* ancestors, sf_results* out) {
    idles = false;
    if (fail_at-- == 0) return SF_EXECUTION;
    rows.assign(static_cast<size_t>(n), cache);
    logits.resize(static_cast<size_t>(n * kVocabulary));
    best.clear();
    kept.clear();
    for (int32_t i = 0; i < n; ++i) {
      for (int32_t j = 0; j < n; ++j)
        if (ancestors[i * n + j]) rows[static_cast<size_t>(i)].push_back(ids[j]);
      logits_after(rows[static_cast<size_t>(i)], logits.data() + i * kVocabulary);
      best.push_back(best_of(logits.data() + i * kVocabulary));
      kept.push_back(i);
    }
    *out = {n, 0, kVocabulary, 0, 0, logits.data(), best.data(), kept.data(), nullptr, nullptr};
    return SF_OK;
  }
  int commit(const int32_t* committed, int32_t n) {
    if (keeps_rows) return SF_EXECUTION;
    for (int32_t i = 0; i < n; ++i) cache.push_back(rows[static_cast<size_t>(committed[i])].back());
    furthest = std::max(furthest, cache.size());
    return SF_OK;
  }
  int64_t truncatable(int64_t length) const { return length + goes_back < static_cast<int64_t>(furthest) ? 0 : length; }
  int truncate(int64_t length) {
    if (keeps_rows) return SF_EXECUTION;
    if (length != truncatable(length)) return SF_BAD_ARGUMENT;
    cache.resize(static_cast<size_t>(length));
    if (length == 0) furthest = 0;
    return SF_OK;
  }

  sf_backend table() {
    sf_backend backend = {};
    backend.size = sizeof backend;
    backend.context = this;
    backend.run = [](void* self, const char*, int32_t n, const int64_t* ids, const int64_t*, const uint8_t* ancestors,
                     int32_t, sf_results* out) { return static_cast<HashEngine*>(self)->run(n, ids, ancestors, out); };
    backend.commit = [](void* self, const int32_t* rows, int32_t n) {
      return static_cast<HashEngine*>(self)->commit(rows, n);
    };
    backend.truncate = [](void* self, int64_t length) { return static_cast<HashEngine*>(self)->truncate(length); };
    backend.truncatable = [](void* self, int64_t length, int64_t* longest) {
      *longest = static_cast<HashEngine*>(self)->truncatable(length);
      return int{SF_OK};
    };
    backend.error = [](void*) { return "no power"; };
    backend.release = [](void* self) { ++static_cast<HashEngine*>(self)->releases; };
    backend.idle = [](void* self) { static_cast<HashEngine*>(self)->idles = true; };
    return backend;
  }
};

std::shared_ptr<const Model> model() {
  static const sf_method verify[] = {{"verify_4", 4, 4, 0}, {"verify_8", 8, 8, 0}};
  sf_spec spec = {};
  spec.size = sizeof spec;
  spec.capacity = kCapacity;
  spec.vocab_size = kVocabulary;
  spec.prefill_rows = 16;
  spec.verify = verify;
  spec.verify_count = 2;
  spec.identity = "test";
  return std::make_shared<const Model>(spec, nullptr, 0);
}

std::vector<int64_t> text_of(Session& session, const std::vector<int64_t>& prompt, const Generation& generation,
                             const sf_constraint* constraint = nullptr) {
  session.start(prompt.data(), static_cast<int64_t>(prompt.size()), generation, Owned<sf_constraint>(constraint));
  sf_token token;
  while (session.next(token)) {
  }
  return session.tokens();
}

std::vector<Generation> generations() {
  Generation greedy, sampled, penalized;
  sampled.sampling = {.temperature = 1.0, .top_p = 0.9, .seed = 7};
  penalized.sampling.penalty = 1.2;
  return {greedy, sampled, penalized};
}

}  // namespace
}  // namespace streamfuse
