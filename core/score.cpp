#include "rounding.h"

#include "score.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "error.h"
#include "sample.h"

namespace streamfuse {
namespace {

// The widest method that keeps all of its rows.
int64_t widest_whole(const Spec& spec) {
  for (int64_t method = static_cast<int64_t>(spec.verify.size()) - 1; method >= 0; --method) {
    const Method& one = spec.verify[static_cast<size_t>(method)];
    if (one.keep == one.rows) return method;
  }
  return kDecode;
}

}  // namespace

void score(const Spec& spec, Engine& engine, std::span<const int64_t> text, int64_t from, const Scores& out,
           const std::function<bool()>& stopped) {
  const int64_t last = static_cast<int64_t>(text.size()) - 1, method = widest_whole(spec);
  const int64_t widest = method == kDecode ? 1 : spec.verify[static_cast<size_t>(method)].rows;
  Sampler sampler(spec.vocab_size);
  std::vector<sf_top_token> top;
  std::vector<int32_t> rows;
  Tree chain;
  while (engine.cached() < last) {
    if (stopped()) throw Failure(SF_CANCELLED, "the scoring was stopped");
    const int64_t start = engine.cached(), unscored = from - 1 - start;
    if (unscored > 0) {
      engine.prefill(
          text.subspan(static_cast<size_t>(start), static_cast<size_t>(std::min(spec.prefill_rows, unscored))));
      continue;
    }
    const int64_t n = std::min(widest, last - start);
    chain.set_root(text[static_cast<size_t>(start)]);
    for (int64_t row = 1; row < n; ++row) chain.add(text[static_cast<size_t>(start + row)], row - 1, 0.0, SF_MODEL);
    const sf_results& results = engine.run(method, chain, n, true);
    if (results.survivors != n) throw Failure(SF_EXECUTION, "the engine dropped rows of a method that prunes nothing");
    for (int64_t place = 0; place < n; ++place) {
      const int64_t row = method == kDecode ? 0 : results.kept[place], at = start + row + 1 - from;
      top.clear();
      out.log_probs[at] = sampler.log_prob(results.logits + place * spec.vocab_size,
                                           text[static_cast<size_t>(start + row + 1)], out.top_count, top);
      std::copy(top.begin(), top.end(), out.top + at * out.top_count);
    }
    rows.resize(static_cast<size_t>(n));
    std::iota(rows.begin(), rows.end(), 0);
    engine.commit(rows);
  }
}

}  // namespace streamfuse
