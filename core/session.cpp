#include "rounding.h"

#include "session.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "error.h"
#include "file_paths.h"
#include "saved.h"

namespace streamfuse {
namespace {

constexpr const char* kOffByRequest = "off by request";
constexpr const char* kNoVerify = "no verify methods in this bundle";
constexpr const char *kStop = "stop", *kLength = "length", *kContext = "context", *kIncomplete = "incomplete",
                     *kStopped = "stopped";

int64_t common_prefix(const std::vector<int64_t>& a, const int64_t* b, int64_t b_size) {
  const auto end = a.begin() + std::min(static_cast<int64_t>(a.size()), b_size);
  return std::mismatch(a.begin(), end, b).first - a.begin();
}

}  // namespace

Session::Session(std::shared_ptr<const Model> model, Backend backend, const sf_sequence_options& options,
                 std::shared_ptr<Memory> memory, std::shared_ptr<const Prefixes> prefixes)
    : model_(std::move(model)),
      memory_(std::move(memory)),
      prefixes_(std::move(prefixes)),
      spec_(model_->spec),
      engine_(spec_, std::move(backend)),
      cost_source_{absolute_path(options.cost_folder == nullptr ? "" : options.cost_folder),
                   options.device == nullptr ? "" : options.device},
      costs_(spec_),
      planner_(*model_, costs_, memory_),
      acceptor_(spec_.vocab_size, static_cast<size_t>(spec_.capacity + spec_.widest())),
      watch_(options.clock, options.clock_context) {
  statistics_.model_load_ms = options.model_load_ms;
  statistics_.reserve(spec_);
  tokens_.reserve(static_cast<size_t>(spec_.capacity) + 1);
  block_.path.reserve(static_cast<size_t>(spec_.widest()) + 1);
}

template <typename Body>
auto Session::or_end(const Body& body) {
  try {
    return body();
  } catch (...) {
    running_ = block_.open = false;
    constraint_.reset();
    count_reread();
    engine_.idle();
    throw;
  }
}

void Session::check_prompt(const int64_t* ids, int64_t n) const {
  if (n < 1 || ids == nullptr) bad("the prompt is empty: it needs at least one token");
  if (n > spec_.capacity)
    bad("the prompt has " + std::to_string(n) + " tokens, but this bundle's context holds " +
        std::to_string(spec_.capacity));
  for (int64_t i = 0; i < n; ++i)
    if (ids[i] < 0 || ids[i] >= spec_.vocab_size)
      bad("the prompt holds token " + std::to_string(ids[i]) + ", outside this bundle's vocabulary of " +
          std::to_string(spec_.vocab_size));
}

void Session::check_width(int64_t width) const {
  std::string widths;
  for (const Method& method : spec_.verify) {
    if (method.rows < 2) continue;
    if (method.rows == width) return;
    widths += (widths.empty() ? "" : ", ") + std::to_string(method.rows);
  }
  bad("width must be one of " + widths + " for this bundle, not " + std::to_string(width));
}

void Session::start(const int64_t* ids, int64_t n, const Generation& generation, Owned<sf_constraint> grammar) {
  const uint32_t stops = stops_;  // a stop during this call counts
  const bool drafts = generation.speculative && !spec_.verify.empty();
  check_prompt(ids, n);
  if (drafts && generation.width != 0) check_width(generation.width);
  std::optional<Constraint> constrained;
  if (grammar->size > 0) constrained.emplace(std::move(grammar), spec_.vocab_size, generation.stop_ids);
  past_stops_ = stops;  // not before: if the arguments are refused, a stop of the running text still ends it
  finish(nullptr);
  const int64_t same = common_prefix(tokens_, ids, n);
  const int64_t leaves_cache = engine_.cached() - same;  // before costs are measured, which may empty the cache
  const bool needs_costs = drafts && generation.width == 0;
  const double measure_ms = needs_costs ? learn_costs() : 0.0;
  generation_ = generation;
  top_ = {};
  if (!drafts) generation_.width = 1;
  or_end([&] {
    if (constrained) constraint_.emplace(std::move(*constrained));
    const int64_t known = std::min({engine_.cached(), same, n - 1});
    engine_.rewind(known);
    tokens_.assign(ids, ids + n);
    planner_.begin(tokens_, same, constraint(), generation);
    statistics_.clear();
    statistics_.speculative = drafts;
    statistics_.fallback_reason = drafts ? nullptr : generation.speculative ? kNoVerify : kOffByRequest;
    statistics_.prompt_tokens = n;
    statistics_.dropped_turns = generation.dropped_turns;
    statistics_.measure_ms = measure_ms;
    load_prefix();
    int64_t reread = std::max(int64_t{0}, known - engine_.cached());
    if (generation.dropped_turns > 0) reread += std::max(int64_t{0}, leaves_cache - generation.dropped_tokens);
    // The remaining turns are encoded again, perhaps to fewer tokens than the cache had.
    statistics_.reread_tokens = std::min(reread, n - 1 - engine_.cached());
    if (needs_costs && costs_.known()) statistics_.cost_ms = costs_.of_full_passes();
  });
  running_ = true;
  block_.open = false;
  certain_.clear();
  reason_ = nullptr;
  room_ = -1;
}

// Replaces the cache by a stored prefix of the prompt, if that has more of the prompt's tokens. A prefix that cannot be
// used is not an error, since the prompt can be processed without it.
void Session::load_prefix() {
  if (prefixes_ == nullptr) return;
  statistics_.prefix_refused = prefixes_->refused();
  const Prefix* prefix = prefixes_->longest(tokens_, engine_.cached());
  if (prefix == nullptr) return;
  const int64_t last = static_cast<int64_t>(tokens_.size()) - 1;  // the first root
  bool loaded = true;
  watch_.start();
  try {
    streamfuse::load_prefix(*prefix, spec_, engine_);
  } catch (const Failure& failure) {
    loaded = false;
    statistics_.prefix_refused = failure.what();
  }
  if (!loaded && engine_.cached() == 0) engine_.truncate(0);  // if it could not be emptied, the text fails here
  if (loaded) {
    engine_.rewind(std::min(engine_.cached(), last));
    statistics_.prefix_tokens = engine_.cached();
  }
  watch_.lap(statistics_.ms[kPrefill]);
}

// One prefill pass over the next tokens of the prompt, up to its last token, which is the first root. The cache may
// already contain some of them. False: none is left, or the text was stopped.
bool Session::prefill_pass() {
  const int64_t left = static_cast<int64_t>(tokens_.size()) - 1 - engine_.cached();
  if (left <= 0 || stopped()) return false;
  const int64_t n = std::min(spec_.prefill_rows, left);
  engine_.prefill({tokens_.data() + engine_.cached(), static_cast<size_t>(n)});
  statistics_.prefilled_tokens += n;
  return true;
}

// Processes the prompt: at most one pass, or all that is left. False once it is done, or the text was stopped.
bool Session::prefill(bool one_pass) {
  watch_.start();
  bool more = prefill_pass();
  while (more && !one_pass) more = prefill_pass();
  watch_.lap(statistics_.ms[kPrefill]);
  if (more) return true;
  if (engine_.cached() + 1 < static_cast<int64_t>(tokens_.size())) return false;  // stopped
  room_ = std::min(generation_.max_new_tokens, spec_.capacity - static_cast<int64_t>(tokens_.size()));
  if (constraint_ && constraint_->must_end())
    reason_ = kStop;
  else if (room_ == 0)
    reason_ = at_limit(kContext);
  return false;
}

bool Session::read() {
  if (!running_ || room_ >= 0) return false;
  return or_end([&] { return prefill(true); });
}

bool Session::next(sf_token& out) {
  if (!running_) return false;
  return or_end([&] {
    if (room_ < 0) prefill(false);
    watch_.start();
    while (true) {
      if (block_.open && deliver(out)) return true;
      if (block_.open) end_block();
      if (deliver_certain(out)) return true;
      if (reason_ != nullptr || stopped()) {
        end(reason_ != nullptr ? reason_ : kStopped);
        return false;
      }
      pass();
    }
  });
}

// One pass over the model, and the path that it accepts.
void Session::pass() {
  const Step step = planner_.next(tokens_, room_, generation_.width);
  const Tree& tree = planner_.tree();
  statistics_.count_pass(step.method, tree, step.nodes, step.reason);
  block_.step = step;
  block_.ms.draft = watch_.lap(statistics_.ms[kDraft]);
  const bool needs_logits = generation_.sampling.needs_logits() || constraint_ || generation_.log_probs;
  block_.results = &engine_.run(step.method, tree, step.nodes, needs_logits);
  block_.ms.pass = watch_.lap(statistics_.ms[kVerify]);
  top_ = {};
  acceptor_.accept(tree, step.nodes, *block_.results, generation_, constraint(), tokens_, room_, statistics_, watch_,
                   block_.path);
  block_.open = true;
  block_.delivered = 0;
  block_.saw_stop = false;
}

// The next token of the block; false if all of it is delivered.
bool Session::deliver(sf_token& out) {
  const Path& path = block_.path;
  const size_t at = static_cast<size_t>(block_.delivered);
  if (reason_ != nullptr || at == path.tokens.size() || block_.delivered == room_ || stopped()) return false;
  const int64_t token = path.tokens[at];
  statistics_.near_ties += path.near_ties[at];
  if (generation_.ends_text(token)) {
    reason_ = kStop;
    block_.saw_stop = true;
    return false;
  }
  ++block_.delivered;
  const bool drafted = at + 1 < path.rows.size();
  emit(token, drafted ? planner_.tree()[path.rows[at + 1]].source : uint8_t{SF_MODEL}, out);
  if (generation_.log_probs) {
    const size_t count = path.top.size() / path.log_probs.size();
    out.log_prob = path.log_probs[at];
    top_ = std::span(path.top).subspan(at * count, count);
  }
  return true;
}

// The next of the tokens that end the text because the constraint allows no others; false if there are none.
bool Session::deliver_certain(sf_token& out) {
  if (reason_ != nullptr || stopped()) return false;
  if (certain_.empty() && constraint_ && !generation_.log_probs) {  // no pass computes their probabilities
    certain_ = constraint_->take_certain_end(room_);
    std::reverse(certain_.begin(), certain_.end());
  }
  if (certain_.empty()) return false;
  const int64_t token = certain_.back();
  certain_.pop_back();
  --room_;
  if (certain_.empty()) reason_ = kStop;
  if (statistics_.speculative) {
    ++statistics_.forced;
    ++statistics_.accepted_of[SF_GRAMMAR];
  }
  emit(token, statistics_.speculative ? uint8_t{SF_GRAMMAR} : uint8_t{SF_MODEL}, out);
  return true;
}

void Session::emit(int64_t token, uint8_t source, sf_token& out) {
  tokens_.push_back(token);
  out = {token, source, std::numeric_limits<float>::quiet_NaN()};
  watch_.lap(statistics_.ms[kAccept]);
  if (++statistics_.generated_tokens == 1) statistics_.first_token_ms = statistics_.measure_ms + statistics_.total_ms();
}

// Ends the block: commits what was delivered, and updates the planner.
void Session::end_block() {
  block_.open = false;
  const Path& path = block_.path;
  const int64_t delivered = block_.delivered;
  const int64_t accepted = std::min(delivered, static_cast<int64_t>(path.tokens.size()) - 1);
  watch_.lap(statistics_.ms[kAccept]);
  statistics_.count_accepted(accepted, delivered + block_.saw_stop);
  for (int64_t i = 1; i <= accepted; ++i)
    ++statistics_.accepted_of[planner_.tree()[path.rows[static_cast<size_t>(i)]].source];
  // The root and every delivered token but the last, which becomes the next root.
  if (delivered > 0) engine_.commit({path.rows.data(), static_cast<size_t>(delivered)});
  watch_.lap(statistics_.ms[kCommit]);
  room_ -= delivered;
  if (reason_ == nullptr && path.complete && delivered == static_cast<int64_t>(path.tokens.size())) reason_ = kStop;
  if (room_ == 0 && reason_ == nullptr)
    reason_ = at_limit(statistics_.generated_tokens == generation_.max_new_tokens ? kLength : kContext);
  observer_.see(engine_.name_of(block_.step.method), block_.step, planner_.tree(), *block_.results, path, delivered,
                engine_.cached());
  learn();
  statistics_.refused = planner_.refused();
}

// Updates the planner with the pass, and runs a pass of streams if it pays.
void Session::learn() {
  const Path& path = block_.path;
  Streams streams;
  try {
    streams = engine_.streams_of(*block_.results, path.survivor);
  } catch (const Failure& failure) {
    planner_.fail_streams(failure.what());
  }
  planner_.learn(block_.step, path.tokens, streams, block_.ms, room_, generation_.width);
  const bool goes_on = reason_ == nullptr && block_.delivered == static_cast<int64_t>(path.tokens.size()) && !stopped();
  if (!goes_on || !planner_.buys_streams(tokens_, room_, generation_.width)) return;
  watch_.lap(statistics_.ms[kDraft]);
  ++statistics_.streams_passes;
  std::string failed;
  try {
    streams = engine_.streams(path.survivor, tokens_.back());
  } catch (const Failure& failure) {
    failed = failure.what();
  }
  const double ms = watch_.lap(statistics_.ms[kVerify]);
  if (failed.empty())
    planner_.learn_streams(streams, ms, generation_.width);
  else
    planner_.fail_streams(failed);
}

// Why the text ends at a limit: a constraint may not be complete.
const char* Session::at_limit(const char* reason) const {
  return constraint_ && !constraint_->is_complete() ? kIncomplete : reason;
}

void Session::end(const char* reason) {
  running_ = false;
  constraint_.reset();
  statistics_.finish_reason = reason;
  count_reread();
  remember();
  engine_.idle();
}

// Until the text ends, the statistics have what its whole prompt takes. It may end before all of that is prefilled.
void Session::count_reread() {
  statistics_.reread_tokens = std::min(statistics_.reread_tokens, statistics_.prefilled_tokens);
}

// Adds the answer to the memory. A text never fails because of it.
void Session::remember() {
  if (memory_ == nullptr || statistics_.generated_tokens == 0) return;
  const size_t before = static_cast<size_t>(std::max(int64_t{0}, statistics_.prompt_tokens - Memory::kContext));
  try {
    memory_->add(std::span(tokens_).subspan(before));
  } catch (const std::bad_alloc&) {
  }
}

void Session::score(const int64_t* ids, int64_t n, int64_t from, const Scores& out) {
  const uint32_t stops = stops_;  // as in `start`
  check_prompt(ids, n);
  if (from < 1 || from >= n)
    bad("the first token to score must be one of 1 to " + std::to_string(n - 1) + ", not " + std::to_string(from));
  if (out.top_count < 0 || out.top_count > std::min<int64_t>(SF_TOP_LOG_PROBS, spec_.vocab_size))
    bad("the number of most probable tokens must be 0 to " + std::to_string(int{SF_TOP_LOG_PROBS}) +
        " and at most the vocabulary's size, not " + std::to_string(out.top_count));
  past_stops_ = stops;
  finish(nullptr);
  const int64_t same = common_prefix(tokens_, ids, n);
  or_end([&] {
    engine_.rewind(std::min({engine_.cached(), same, from - 1}));
    tokens_.assign(ids, ids + n);
    planner_.begin(tokens_, same, nullptr, {});
    streamfuse::score(spec_, engine_, tokens_, from, out, [this] { return stopped(); });
    engine_.idle();
  });
}

void Session::finish(const char* reason) {
  if (!running_) return;
  const std::string why = reason != nullptr ? reason : reason_ != nullptr ? reason_ : kStopped;
  running_ = false;
  or_end([&] {
    if (block_.open) {
      if (reason_ == nullptr) reason_ = kStopped;  // so that no streams are bought
      watch_.start();
      end_block();
    }
    end(why.c_str());
  });
}

void Session::discard() {
  finish(nullptr);
  engine_.truncate(0);
  tokens_.clear();
  planner_.forget_choices();
}

void Session::reset() { discard(); }

// ---- between texts ----

void Session::prepare() {
  past_stops_ = stops_;
  finish(nullptr);
  learn_costs();
  engine_.idle();
}

// After `finish`. Returns its duration in milliseconds.
double Session::learn_costs() {
  if (costs_.known() || spec_.verify.empty()) return 0.0;
  // Passes run after the cached tokens, for example of a restored session, if there is room for them.
  if (engine_.cached() + spec_.widest() > spec_.capacity) engine_.truncate(0);
  return or_end([&] {
    return measure_costs(*model_, cost_source_, engine_, planner_, costs_, watch_, [this] { return stopped(); });
  });
}

void Session::trim() {
  finish(nullptr);
  engine_.truncate(0);
  engine_.trim();
}

void Session::set_costs(const double* first, const double* last, int32_t count, bool frozen) {
  if (count != costs_.count() || first == nullptr || last == nullptr)
    throw Failure(SF_BAD_ARGUMENT,
                  "costs are asked for " + std::to_string(costs_.count()) + " methods, not " + std::to_string(count));
  std::vector<double> ordered[2];
  for (int end = 0; end < 2; ++end) {
    const double* given = end == 0 ? first : last;
    ordered[end].push_back(given[0]);
    for (const int32_t place : spec_.given_places) ordered[end].push_back(given[1 + place]);
    if (spec_.deferred) ordered[end].push_back(given[count - 1]);
  }
  costs_.set(ordered[0].data(), ordered[1].data(), count, frozen);
}

void Session::save(const std::string& path, const std::string& note) {
  finish(nullptr);
  save_session(path, spec_, tokens_, engine_, note);
}

void Session::restore(const std::string& path, const std::function<int(const std::string&)>& take) {
  const std::vector<int64_t> restored = restore_session(path, spec_, engine_, take, [this] { discard(); });
  tokens_.assign(restored.begin(), restored.end());  // keeps the memory that is reserved for the longest text
  statistics_.clear();
  planner_.begin(tokens_, 0, nullptr, {});
}

}  // namespace streamfuse
