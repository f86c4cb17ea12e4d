// Greedy generation through the C interface: the five verbs in C++, for the programs of this folder and for tests.
// Drafts are one chain, the best candidate of each stream.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/streamfuse_engine.h"

namespace streamfuse::greedy {

inline void check(int code) {
  if (code != SF_OK) throw std::runtime_error(sf_last_error());
}

inline sf_results read(sf_session* session) {
  sf_results results;
  check(sf_read(session, &results));
  return results;
}

// The rows of a method, read from the engine's description; 0 where there is no such method.
inline int64_t rows_of(const std::string& description, const std::string& method) {
  const size_t at = description.find("\"" + method + "\":");
  if (at == std::string::npos) return 0;
  const char* rows = std::strstr(description.c_str() + at, "\"rows\":");
  return rows == nullptr ? 0 : std::atoll(rows + 7);
}

// A pass over a chain of tokens that follow what is committed.
inline void run_chain(sf_session* session, const std::string& method, const std::vector<int64_t>& tokens,
                      bool want_logits = false) {
  const size_t n = tokens.size();
  int64_t length;
  check(sf_length(session, &length));
  std::vector<int64_t> positions(n);
  std::vector<uint8_t> ancestors(n * n);
  for (size_t i = 0; i < n; ++i) {
    positions[i] = length + static_cast<int64_t>(i);
    std::fill_n(&ancestors[i * n], i + 1, 1);
  }
  check(sf_run(session, method.c_str(), static_cast<int>(n), tokens.data(), positions.data(), ancestors.data(),
               want_logits));
}

inline void commit_first(sf_session* session, size_t n) {
  std::vector<int32_t> rows(n);
  for (size_t i = 0; i < n; ++i) rows[i] = static_cast<int32_t>(i);
  check(sf_commit(session, rows.data(), static_cast<int>(n)));
}

inline void prefill(sf_session* session, const std::vector<int64_t>& prompt, size_t rows) {
  for (size_t start = 0; start + 1 < prompt.size(); start += rows) {
    const size_t end = std::min(start + rows, prompt.size() - 1);
    run_chain(session, "prefill", {prompt.begin() + start, prompt.begin() + end});
    commit_first(session, end - start);
  }
}

// Which places of the chain survived in the last pass: place -> index among the survivors, or -1.
inline std::vector<int> survivors(sf_session* session, size_t n) {
  const sf_results results = read(session);
  std::vector<int> index(n, -1);
  for (int64_t i = 0; i < results.survivors; ++i) index[results.kept[i]] = static_cast<int>(i);
  return index;
}

// Extends the prompt by `count` tokens and returns them; *passes counts the passes.
inline std::vector<int64_t> generate(sf_session* session, const std::string& method, size_t width, int64_t last,
                                     size_t count, int* passes) {
  std::vector<int64_t> chain = {last}, generated;
  const bool drafts = width > 1;
  for (*passes = 0; generated.size() < count; ++*passes) {
    chain.resize(std::min({chain.size(), width, count - generated.size()}));
    run_chain(session, method, chain);
    const std::vector<int> index = survivors(session, chain.size());
    const int64_t* const best = read(session).best;
    size_t accepted = 1;
    while (accepted < chain.size() && index[accepted] >= 0 && chain[accepted] == best[index[accepted - 1]]) ++accepted;
    for (size_t i = 0; i < accepted; ++i) generated.push_back(best[index[i]]);
    const int64_t node = index[accepted - 1];
    chain = {generated.back()};
    commit_first(session, accepted);
    if (!drafts) continue;
    const bool deferred = read(session).stream_ids == nullptr;
    if (deferred) check(sf_streams(session, static_cast<int>(node)));  // a pass of its own for the accepted node
    const sf_results streams = read(session);
    const int64_t row = deferred ? 0 : node;
    if (row >= streams.carrying) continue;
    for (int64_t j = 0; j < streams.num_streams; ++j)
      chain.push_back(streams.stream_ids[(row * streams.num_streams + j) * streams.top_k]);
  }
  return generated;
}

}  // namespace streamfuse::greedy
