// What look-up costs: microseconds (medians) to add a token, to draft a tree, to begin a text that keeps all but the
// last 8 tokens of the previous one, and to begin another text; with an empty and with a full memory.
//
// Run: c++ -std=c++20 -O3 -I core core/tests/time_lookup.cpp $(ls core/*.cpp) -o time_lookup && ./time_lookup
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>

#include "../lookup.h"

using namespace streamfuse;

namespace {

constexpr int64_t kVocabulary = 49152, kWidth = 16, kDepth = 15, kAnswer = 128, kMemory = 65536;

// Words drawn by Zipf's law, or records of one form with a few values that change.
std::vector<int64_t> text_of(bool repetitive, size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto word = [&] {
    const double share = static_cast<double>(random() >> 11) / 9007199254740992.0;
    return static_cast<int64_t>(std::pow(static_cast<double>(kVocabulary), share)) % kVocabulary;
  };
  std::vector<int64_t> text;
  while (text.size() < size) {
    const size_t at = text.size() % 24;
    text.push_back(repetitive && at % 6 != 5 ? static_cast<int64_t>(100 + at) : word());
  }
  return text;
}

template <typename Work>
double microseconds(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void time_of(bool repetitive, size_t size, bool remembers) {
  constexpr int64_t kSteps = 500;
  const std::vector<int64_t> text = text_of(repetitive, size + kSteps, 1);
  std::shared_ptr<Memory> memory;
  if (remembers) {
    memory = std::make_shared<Memory>("", kMemory, "", kVocabulary);
    for (uint64_t seed = 2; seed < 2 + kMemory / kAnswer; ++seed) memory->add(text_of(repetitive, kAnswer, seed));
  }
  LookUp look_up(static_cast<int64_t>(text.size()), kWidth, memory);
  Guide guide;
  Tree tree;
  tree.nodes.reserve(2 * kWidth);
  guide.begin(nullptr);
  std::vector<int64_t> tokens(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size));
  std::vector<double> begin, add, draft, back;
  for (int repeat = 0; repeat < 5; ++repeat) begin.push_back(microseconds([&] { look_up.begin(tokens, 0); }));
  int64_t nodes = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    tokens.push_back(text[tokens.size()]);
    add.push_back(microseconds([&] { look_up.follow(tokens); }));
    draft.push_back(microseconds([&] {
      guide.begin_draft(kWidth);
      tree.set_root(tokens.back());
      look_up.join(kWidth, kDepth, {}, guide, tree);
    }));
    nodes += tree.size();
  }
  for (int repeat = 0; repeat < 5; ++repeat) {
    tokens.resize(tokens.size() - 8);
    back.push_back(microseconds([&] { look_up.begin(tokens, static_cast<int64_t>(tokens.size())); }));
  }
  std::printf("%-10s %6zu %-6s  add %5.2f  draft %6.2f (%4.1f nodes)  back 8 tokens %6.1f  begin %7.1f\n",
              repetitive ? "repetitive" : "words", size, remembers ? "memory" : "", median(add), median(draft),
              static_cast<double>(nodes) / kSteps, median(back), median(begin));
}

}  // namespace

int main() {
  std::printf("microseconds; a tree of at most %d nodes\n", static_cast<int>(kWidth));
  for (const bool remembers : {false, true})
    for (const bool repetitive : {false, true})
      for (const size_t size : {1000, 8000, 32000}) time_of(repetitive, size, remembers);
}
