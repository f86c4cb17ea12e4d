#include "rounding.h"

#include "lookup.h"

#include <algorithm>
#include <utility>

#include "numbers.h"

namespace streamfuse {
namespace {

constexpr double kForget = 0.98;      // per draft of one kind: about the last fifty count
constexpr double kPriorDrafts = 5.0;  // weight of the initial values

// Initial values: how often the token of each rank was right in 900 answers of SmolLM2-135M to prompts of many kinds.
// Rank 0 by length of the match and kind, the others by kind only.
constexpr double kFirst[LookUp::kLongest][4] = {
    {0.30, 0.13, 0.42, 0.66}, {0.57, 0.27, 0.72, 0.87}, {0.67, 0.27, 0.79, 0.90}, {0.73, 0.33, 0.84, 0.92},
    {0.76, 0.33, 0.86, 0.93}, {0.78, 0.38, 0.89, 0.95}, {0.81, 0.40, 0.92, 0.97}, {0.90, 0.43, 0.97, 0.99},
};
constexpr double kOthers[LookUp::kOffers - 1][4] = {{0.0, 0.17, 0.12, 0.05}, {0.0, 0.09, 0.06, 0.02}};

}  // namespace

LookUp::LookUp(int64_t capacity, int64_t widest, std::shared_ptr<const Memory> memory) : memory_(std::move(memory)) {
  size_t slots = 16;
  while (slots < 2 * static_cast<size_t>(capacity)) slots *= 2;
  slots_.assign(slots, 0);
  before_.reserve(static_cast<size_t>(capacity) + 1);
  for (int64_t length = 1; length <= kLongest; ++length) {
    for (int64_t kind = 0; kind < kKinds; ++kind) {
      for (int64_t rank = 0; rank < kOffers; ++rank) {
        const double share = rank == 0 ? kFirst[length - 1][kind] : kOthers[rank - 1][kind];
        for (const bool remembered : {false, true})
          seen({length, static_cast<Kind>(kind), remembered}, rank) = {kPriorDrafts * share, kPriorDrafts};
      }
    }
  }
  const size_t most = static_cast<size_t>(widest);
  tree_.nodes.reserve(most);
  matches_.reserve(most);
  open_.reserve(most * kOffers);
}

// The slot of a token; its value is 0 if the token has not occurred yet.
int32_t& LookUp::latest(int64_t token, const std::vector<int64_t>& tokens) {
  const uint64_t hash = (static_cast<uint64_t>(token) + 1) * 0x9E3779B97F4A7C15u;
  for (size_t at = static_cast<size_t>(hash >> 32);; ++at) {
    int32_t& place = slots_[at & (slots_.size() - 1)];
    if (place == 0 || tokens[static_cast<size_t>(place) - 1] == token) return place;
  }
}

void LookUp::follow(const std::vector<int64_t>& tokens, int64_t kept) {
  if (kept < static_cast<int64_t>(before_.size())) {
    std::fill(slots_.begin(), slots_.end(), 0);
    before_.clear();
  }
  for (size_t place = before_.size(); place < tokens.size(); ++place) {
    int32_t& last = latest(tokens[place], tokens);
    before_.push_back(last);
    last = static_cast<int32_t>(place) + 1;
  }
}

// Counts an occurrence of `same` tokens of the path, and the token after it, if none so far is longer.
void LookUp::Match::add(int64_t same, int64_t token) {
  if (same < length) return;
  if (same > length) {
    length = same;
    count = places = agree = 0;
  }
  const auto offered = next.begin() + count;
  if (std::find(next.begin(), offered, token) == offered && count < kOffers) next[static_cast<size_t>(count++)] = token;
  agree += agree == places && token == next[0];
  ++places;
}

void LookUp::Match::set_kind() { kind = places < 2 ? kAlone : agree < 2 ? kDiffer : agree < 3 ? kTwice : kThrice; }

// Finds the longest match of the path to this row in the text and in the memory, and what followed it there.
LookUp::Match LookUp::match(const std::vector<int64_t>& tokens, int64_t row) {
  std::array<int64_t, kLongest> path;  // the last token first
  size_t known = 0, size = tokens.size();
  for (; known < kLongest && row > 0; row = tree_[row].parent) path[known++] = tree_[row].token;
  for (size_t place = size; known < kLongest && place > 0; --place) path[known++] = tokens[place - 1];

  Match found;
  size_t end = static_cast<size_t>(latest(path[0], tokens));     // of a run of tokens that ends with this one
  if (end == size) end = static_cast<size_t>(before_[end - 1]);  // nothing follows it yet
  for (int64_t n = 0; end > 0 && n < kPlaces; ++n, end = static_cast<size_t>(before_[end - 1])) {
    size_t same = 1;
    while (same < std::min(known, end) && tokens[end - 1 - same] == path[same]) ++same;
    found.add(static_cast<int64_t>(same), tokens[end]);
  }
  if (memory_ != nullptr && known >= Memory::kKey) {
    const int64_t in_text = found.length;
    end = memory_->latest({path[0], path[1]});
    for (int64_t n = 0; end > 0 && n < kPlaces; ++n, end = memory_->before(end)) {
      if (memory_->owner(end) == owner_ || memory_->token(end) == Memory::kBoundary) continue;
      size_t same = Memory::kKey;
      while (same < std::min(known, end) && memory_->token(end - 1 - same) == path[same]) ++same;
      found.add(static_cast<int64_t>(same), memory_->token(end));
    }
    found.remembered = found.length > in_text;
  }
  found.set_kind();
  return found;
}

void LookUp::offer(int64_t row, Guide& guide) {
  const double log_prob = tree_[row].log_prob;
  const int32_t state = tree_[row].state;
  if (guide.forced(state) >= 0) {
    open_.add(log_prob + guide.forced_log_prob, row, 0);
    return;
  }
  Match& match = matches_[static_cast<size_t>(row)];
  std::array<uint8_t, kOffers> allowed;
  guide.allows(state, {match.next.data(), static_cast<size_t>(match.count)}, allowed.data());
  for (int64_t rank = 0; rank < match.count; ++rank) {
    const Seen& past = seen(match, rank);
    match.refused[static_cast<size_t>(rank)] = !allowed[static_cast<size_t>(rank)];
    if (allowed[static_cast<size_t>(rank)] && past.hits > 0)
      open_.add(log_prob + logarithm(past.hits / past.trials), row, rank);
  }
}

bool LookUp::join(const std::vector<int64_t>& tokens, int64_t width, int64_t depth, Guide& guide, Tree& tree) {
  std::unique_lock<std::mutex> locked;
  if (memory_ != nullptr) locked = memory_->lock();
  tree_.set_root(tokens.back());
  matches_.assign(1, match(tokens, 0));
  if (matches_[0].count == 0 && guide.forced(0) < 0) return false;
  open_.clear();
  if (depth > 0) offer(0, guide);
  while (!open_.empty() && tree_.size() < width) {
    const Candidates::One best = open_.take();
    const int32_t state = tree_[best.parent].state;
    const int64_t forced = guide.forced(state);
    const int64_t token =
        forced >= 0 ? forced : matches_[static_cast<size_t>(best.parent)].next[static_cast<size_t>(best.rank)];
    const int64_t row = tree_.add(token, best.parent, best.log_prob, forced >= 0 ? SF_GRAMMAR : SF_LOOKUP, true,
                                  guide.after(state, token));
    matches_.push_back(match(tokens, row));
    if (tree_[row].depth < depth) offer(row, guide);
  }
  joiner_.join(tree_, width, tree);
  return true;
}

void LookUp::learn(std::span<const int64_t> chosen) {
  int64_t row = 0;
  for (const int64_t token : chosen) {
    const Match& match = matches_[static_cast<size_t>(row)];
    for (int64_t rank = 0; rank < match.count; ++rank) {
      if (match.refused[static_cast<size_t>(rank)]) continue;
      Seen& past = seen(match, rank);
      past.hits = kForget * past.hits + (match.next[static_cast<size_t>(rank)] == token);
      past.trials = kForget * past.trials + 1;
    }
    row = tree_.child(row, token);
    if (row == 0) return;
  }
}

}  // namespace streamfuse
