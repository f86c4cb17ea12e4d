#include "rounding.h"

#include "lookup.h"

#include <algorithm>
#include <cmath>
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

LookUp::LookUp(int64_t capacity, int64_t widest, std::shared_ptr<const Memory> memory)
    : text_(static_cast<size_t>(capacity)), memory_(std::move(memory)), joiner_(widest) {
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

void LookUp::begin(const std::vector<int64_t>& tokens, int64_t kept, bool in_text, bool in_memory) {
  in_text_ = in_text;
  in_memory_ = in_memory && memory_ != nullptr;
  text_.shorten(static_cast<size_t>(kept));
  follow(tokens);
  if (!in_memory_) return;
  const auto locked = memory_->lock();
  memory_->find_in(text_, own_);
}

void LookUp::follow(const std::vector<int64_t>& tokens) {
  for (size_t place = text_.size(); place < tokens.size(); ++place) text_.add(static_cast<int32_t>(tokens[place]));
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
LookUp::Match LookUp::match(int64_t row) const {
  std::array<int64_t, kLongest> path;  // the last token first
  size_t known = 0;
  for (; known < kLongest && row > 0; row = tree_[row].parent) path[known++] = tree_[row].token;
  for (size_t place = text_.size(); known < kLongest && place > 0; --place) path[known++] = text_[place - 1];

  Match found;
  SuffixIndex::Match at;
  if (in_text_) at = text_.longest({path.data(), known});
  for (int64_t n = 0; at.place > 0 && n < kPlaces; ++n, at.place = text_.before(at.length, at.place))
    found.add(static_cast<int64_t>(at.length), text_[at.place]);
  if (in_memory_) {
    const auto locked = memory_->lock();  // only here: a constraint's callback may call forget(), which takes it
    const SuffixIndex& answers = memory_->answers();
    const int64_t in_text = found.length;
    at = answers.longest({path.data(), known});
    if (at.length < Memory::kShortest || static_cast<int64_t>(at.length) < in_text) at.place = 0;
    for (int64_t n = 0; at.place > 0 && n < kPlaces; ++n, at.place = answers.before(at.length, at.place)) {
      if (!std::binary_search(own_.begin(), own_.end(), memory_->answer(at.place)))
        found.add(static_cast<int64_t>(at.length), answers[at.place]);
    }
    found.remembered = found.length > in_text;
  }
  found.set_kind();
  return found;
}

void LookUp::offer(int64_t row, const Coupling& coupling, Guide& guide) {
  const double log_prob = tree_[row].log_prob;
  const int32_t state = tree_[row].state;
  int64_t guided = 0;
  for (const Guide::Offer& offer : guide.offers(state)) open_.add(log_prob + offer.log_prob, row, --guided);
  if (guide.forces(state)) return;
  Match& match = matches_[static_cast<size_t>(row)];
  std::array<uint8_t, kOffers> allowed;
  guide.allows(state, {match.next.data(), static_cast<size_t>(match.count)}, allowed.data());
  std::array<double, kOffers> log_probs{}, noise{};
  for (int64_t rank = 0; rank < match.count; ++rank) {
    const Seen& past = seen(match, rank);
    const size_t place = static_cast<size_t>(rank);
    match.refused[place] = !allowed[place];
    log_probs[place] = past.hits > 0 ? logarithm(past.hits / past.trials) : -HUGE_VAL;
    if (coupling.active()) noise[place] = coupling.noise(tree_[row].depth, match.next[place]);
  }
  if (coupling.active()) coupling.apply(noise.data(), {log_probs.data(), static_cast<size_t>(match.count)});
  for (int64_t rank = 0; rank < match.count; ++rank)
    if (allowed[static_cast<size_t>(rank)]) open_.add(log_prob + log_probs[static_cast<size_t>(rank)], row, rank);
}

bool LookUp::join(int64_t width, int64_t depth, const Coupling& coupling, Guide& guide, Tree& tree) {
  tree_.set_root(text_[text_.size() - 1]);
  matches_.assign(1, match(0));
  if (matches_[0].count == 0 && guide.offers(0).count == 0) return false;
  open_.clear();
  if (depth > 0) offer(0, coupling, guide);
  while (!open_.empty() && tree_.size() < width) {
    const Candidates::One best = open_.take();
    const int32_t state = tree_[best.parent].state;
    const bool guided = best.rank < 0;
    const Match& match_of_parent = matches_[static_cast<size_t>(best.parent)];
    const int64_t token =
        guided ? guide.offers(state)[-1 - best.rank].token : match_of_parent.next[static_cast<size_t>(best.rank)];
    if (tree_.repeats_guided(best.parent, token, guided)) continue;
    const uint8_t source = guided ? SF_GRAMMAR : match_of_parent.remembered ? SF_MEMORY : SF_LOOKUP;
    const int64_t row = tree_.add(token, best.parent, best.log_prob, source, true, guide.after(state, token),
                                  guided && guide.forces(state));
    matches_.push_back(match(row));
    if (tree_[row].depth < depth) offer(row, coupling, guide);
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
