#include "rounding.h"

#include "statistics.h"

#include <numeric>

#include "json_writer.h"

namespace streamfuse {
namespace {

constexpr const char* kPhaseNames[] = {"prefill", "draft", "verify", "accept", "commit", "sample"};
constexpr const char* kSourceNames[] = {"model", "streams", "lookup", "table", "grammar", "memory"};

// With an entry per depth or rank of a draft.
constexpr std::vector<int64_t> Statistics::* kLists[] = {&Statistics::depth_proposed, &Statistics::depth_accepted,
                                                         &Statistics::rank_offered, &Statistics::rank_accepted};
constexpr size_t kMostReasons = 8;  // more than one text can have

void add_to_first(std::vector<int64_t>& counts, int64_t depth) {
  if (static_cast<int64_t>(counts.size()) < depth) counts.resize(static_cast<size_t>(depth), 0);
  for (int64_t i = 0; i < depth; ++i) ++counts[static_cast<size_t>(i)];
}

double ratio(double part, double whole) { return whole != 0.0 ? part / whole : 0.0; }

void shares(JsonWriter& out, const char* name, const std::vector<int64_t>& parts, const std::vector<int64_t>& wholes) {
  out.key(name);
  out.open('[');
  for (size_t i = 0; i < wholes.size(); ++i)
    out.value(ratio(i < parts.size() ? static_cast<double>(parts[i]) : 0.0, static_cast<double>(wholes[i])));
  out.close(']');
}

}  // namespace

void Statistics::reserve(const Spec& spec) {
  for (auto list : kLists) (this->*list).reserve(static_cast<size_t>(spec.widest()));
  widths.reserve(spec.verify.size() + 2);
  fallback_reasons.reserve(kMostReasons);
}

// Keeps the capacity of lists, so that a new text does not allocate.
void Statistics::clear() {
  Statistics fresh;
  fresh.model_load_ms = model_load_ms;
  const auto keep = [&](auto list) {
    (this->*list).clear();
    std::swap(fresh.*list, this->*list);
  };
  for (auto list : kLists) keep(list);
  keep(&Statistics::widths);
  keep(&Statistics::fallback_reasons);
  *this = std::move(fresh);
}

void Statistics::count_pass(int64_t method, const Tree& tree, int64_t nodes, const char* reason) {
  if (reason != nullptr) {
    size_t i = 0;
    while (i < fallback_reasons.size() && fallback_reasons[i].first != reason) ++i;
    if (i == fallback_reasons.size()) fallback_reasons.push_back({reason, 0});
    ++fallback_reasons[i].second;
  }
  const size_t place = static_cast<size_t>(method + 1);
  if (widths.size() <= place) widths.resize(place + 1, 0);
  ++widths[place];
  ++passes;
  rounds += method != kDecode;
  proposed += nodes - 1;
  for (int64_t row = 1; row < nodes; ++row) forced += tree[row].forced;
  add_to_first(depth_proposed, tree.depth(nodes));
}

void Statistics::count_accepted(int64_t count, int64_t emitted) {
  accepted += count;
  emitted_tokens += emitted;
  add_to_first(depth_accepted, count);
}

void Statistics::count_rank(int64_t offers, int64_t rank) {
  add_to_first(rank_offered, offers);
  if (rank < 0) return;
  if (static_cast<int64_t>(rank_accepted.size()) <= rank) rank_accepted.resize(static_cast<size_t>(rank) + 1, 0);
  ++rank_accepted[static_cast<size_t>(rank)];
}

double Statistics::total_ms() const { return std::accumulate(ms.begin(), ms.end(), 0.0); }

std::string Statistics::json(const Spec& spec) const {
  const char* main_reason = fallback_reason;
  int64_t most = 0;
  for (const auto& [reason, count] : fallback_reasons)
    if (fallback_reason == nullptr && count > most) {
      main_reason = reason;
      most = count;
    }
  const auto name_of = [&](size_t place) {
    return place == 0 ? "decode" : place <= spec.verify.size() ? spec.verify[place - 1].name.c_str() : "streams";
  };
  JsonWriter out;
  out.open('{');
  out.member("prompt_tokens", prompt_tokens);
  out.member("generated_tokens", generated_tokens);
  out.member("model_load_ms", model_load_ms);
  out.member("measure_ms", measure_ms);
  out.member("prefill_ms", ms[kPrefill]);
  out.member("first_token_ms", first_token_ms);
  out.member("decode_token_per_sec", ratio(1000.0 * static_cast<double>(generated_tokens), total_ms() - ms[kPrefill]));
  out.member("prefill_token_per_sec", ratio(1000.0 * static_cast<double>(prefilled_tokens), ms[kPrefill]));
  out.member("rounds", rounds);
  out.member("target_forward_passes", passes);
  out.member("draft_tokens_proposed", proposed);
  out.member("draft_tokens_accepted", accepted);
  out.member("acceptance_rate", ratio(static_cast<double>(accepted), static_cast<double>(proposed)));
  shares(out, "acceptance_per_depth", depth_accepted, depth_proposed);
  out.member("mean_accepted_tokens", ratio(static_cast<double>(emitted_tokens), static_cast<double>(passes)));
  out.key("time_ms");
  out.open('{');
  for (int phase = 0; phase < kPhases; ++phase) out.member(kPhaseNames[phase], ms[static_cast<size_t>(phase)]);
  out.close('}');
  out.key("widths");
  out.open('{');
  for (size_t i = 0; i < widths.size(); ++i)
    if (widths[i] > 0) out.member(name_of(i), widths[i]);
  out.close('}');
  out.member("speculative", speculative);
  out.member("fallback_reason", main_reason);
  out.member("finish_reason", finish_reason.c_str());
  shares(out, "acceptance_per_rank", rank_accepted, rank_offered);
  out.key("fallback_reasons");
  out.open('{');
  for (const auto& [reason, count] : fallback_reasons) out.member(reason, count);
  out.close('}');
  out.key("cost_ms");
  out.open('{');
  for (size_t i = 0; i < cost_ms.size(); ++i) out.member(name_of(i), cost_ms[i]);
  out.close('}');
  out.key("accepted_by_source");
  out.open('{');
  for (size_t source = SF_STREAMS; source < accepted_of.size(); ++source)
    out.member(kSourceNames[source], accepted_of[source]);
  out.close('}');
  out.member("prefilled_tokens", prefilled_tokens);
  out.member("streams_passes", streams_passes);
  out.member("near_ties", near_ties);
  out.member("forced_tokens", forced);
  out.member("refused_drafts", refused);
  out.member("mask_ms", mask_ms);
  out.member("dropped_turns", dropped_turns);
  out.member("reread_tokens", reread_tokens);
  out.member("prefix_tokens", prefix_tokens);
  out.member("prefix_refused", prefix_refused.empty() ? nullptr : prefix_refused.c_str());
  out.close('}');
  return out.done();
}

}  // namespace streamfuse
