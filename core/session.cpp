#include "rounding.h"

#include "session.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "error.h"

namespace streamfuse {
namespace {

constexpr const char* kOffByRequest = "off by request";
constexpr const char* kNoVerify = "no verify methods in this bundle";
constexpr const char *kStop = "stop", *kLength = "length", *kContext = "context", *kStopped = "stopped";

double system_clock(void*) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t shared(const std::vector<int64_t>& a, int64_t a_size, const int64_t* b, int64_t b_size) {
  int64_t same = 0;
  while (same < std::min(a_size, b_size) && a[static_cast<size_t>(same)] == b[same]) ++same;
  return same;
}

}  // namespace

Session::Session(std::shared_ptr<const Model> model, const sf_backend& backend, const sf_sequence_options& options)
    : model_(std::move(model)),
      spec_(model_->spec),
      backend_(backend),
      clock_(options.clock != nullptr ? options.clock : system_clock),
      clock_context_(options.clock_context),
      cost_file_(options.cost_file == nullptr ? "" : options.cost_file),
      device_(options.device == nullptr ? "" : options.device),
      costs_(spec_),
      plan_(*model_, costs_),
      sampler_(spec_.vocab_size) {
  statistics_.model_load_ms = options.model_load_ms;
  const size_t rows = static_cast<size_t>(std::max(spec_.widest(), spec_.prefill_rows));
  tokens_.reserve(static_cast<size_t>(spec_.capacity) + 1);
  history_.reserve(static_cast<size_t>(spec_.capacity) + rows);
  ids_.resize(rows), positions_.resize(rows), ancestors_.resize(rows * rows);
  walk_rows_.reserve(rows + 1), walk_tokens_.reserve(rows + 1), walk_near_.reserve(rows + 1);
  rows_.reserve(rows + 1);
}

Session::~Session() {
  if (backend_.release != nullptr) backend_.release(backend_.context);
}

double Session::now() const { return clock_(clock_context_); }

double Session::lap(Phase phase) {
  const double time = now(), spent = 1000.0 * (time - mark_);
  statistics_.ms[phase] += spent;
  mark_ = time;
  return spent;
}

void Session::check(int code) const {
  if (code != SF_OK) throw Failure(code == SF_END ? SF_EXECUTION : code, engine_error());
}

// The sentence of the engine's last failure.
const char* Session::engine_error() const {
  const char* sentence = backend_.error != nullptr ? backend_.error(backend_.context) : nullptr;
  return sentence != nullptr && *sentence != 0 ? sentence : "the engine failed without a reason";
}

const char* Session::name_of(int64_t method) const {
  return method == kDecode ? "decode" : spec_.verify[static_cast<size_t>(method)].name.c_str();
}

void Session::run(const char* method, int64_t n, bool want_logits) {
  results_ = {};
  check(backend_.run(backend_.context, method, static_cast<int32_t>(n), ids_.data(), positions_.data(),
                     ancestors_.data(), want_logits, &results_));
}

void Session::truncate(int64_t length) {
  check(backend_.truncate(backend_.context, length));
  cached_ = length;
}

void Session::start(const int64_t* ids, int64_t n, const Generation& generation) {
  if (n < 1 || ids == nullptr) bad("the prompt is empty: it needs at least one token");
  if (n > spec_.capacity)
    bad("the prompt has " + std::to_string(n) + " tokens, but this bundle's context holds " +
        std::to_string(spec_.capacity));
  for (int64_t i = 0; i < n; ++i)
    if (ids[i] < 0 || ids[i] >= spec_.vocab_size)
      bad("the prompt holds token " + std::to_string(ids[i]) + ", outside this bundle's vocabulary of " +
          std::to_string(spec_.vocab_size));
  const bool drafts = generation.speculative && !spec_.verify.empty();
  if (drafts && generation.width != 0 && std::none_of(spec_.verify.begin(), spec_.verify.end(), [&](const Method& m) {
        return m.rows == generation.width && m.rows > 1;
      })) {
    std::string widths;
    for (const Method& method : spec_.verify)
      if (method.rows > 1) widths += (widths.empty() ? "" : ", ") + std::to_string(method.rows);
    bad("width must be one of " + widths + " for this bundle, not " + std::to_string(generation.width));
  }
  stop_.store(false, std::memory_order_relaxed);  // one that comes while costs are measured counts already
  finish(nullptr);
  const bool needs_costs = drafts && generation.width == 0 && planner_ == nullptr;
  const double measure_ms = needs_costs ? learn_costs() : 0.0;
  generation_ = generation;
  if (!drafts) generation_.width = 1;
  const int64_t same = shared(tokens_, static_cast<int64_t>(tokens_.size()), ids, n);
  truncate(std::min({cached_, same, n - 1}));
  tokens_.assign(ids, ids + n);
  statistics_.clear();
  statistics_.speculative = drafts;
  statistics_.fallback_reason = drafts ? nullptr : generation.speculative ? kNoVerify : kOffByRequest;
  statistics_.prompt_tokens = n;
  statistics_.measure_ms = measure_ms;
  if (needs_costs && costs_.known()) {
    for (int64_t i = 0; i < costs_.count(); ++i) {
      const bool streams = spec_.deferred && i + 1 == costs_.count();
      const int64_t method = streams ? kStreams : i - 1;
      statistics_.cost_ms.push_back(
          costs_.of(method, method >= 0 ? spec_.verify[static_cast<size_t>(method)].rows : 1));
    }
  }
  plan_.begin(tokens_, same);
  running_ = true;
  block_ = false;
  reason_ = nullptr;
  room_ = -1;  // until the prompt is read
}

// One prefill pass over the prompt's next tokens. All but the last, which is the first root, are read; the cache may
// hold some of them already. False where none is left, or a stop came.
bool Session::prefill_pass() {
  const int64_t end = static_cast<int64_t>(tokens_.size()) - 1;
  if (cached_ >= end || stop_.load(std::memory_order_relaxed)) return false;
  const int64_t n = std::min(spec_.prefill_rows, end - cached_);
  std::copy_n(tokens_.begin() + cached_, n, ids_.begin());
  std::iota(positions_.begin(), positions_.begin() + n, cached_);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) ancestors_[static_cast<size_t>(i * n + j)] = j <= i;
  run("prefill", n, false);
  rows_.resize(static_cast<size_t>(n));
  std::iota(rows_.begin(), rows_.end(), 0);
  check(backend_.commit(backend_.context, rows_.data(), static_cast<int32_t>(n)));
  cached_ += n;
  statistics_.prefilled_tokens += n;
  return true;
}

// Reads the prompt: at most one pass of it, or all that is left. False once it is read, or a stop came.
bool Session::prefill(bool one_pass) {
  mark_ = now();
  bool more = prefill_pass();
  while (more && !one_pass) more = prefill_pass();
  lap(kPrefill);
  if (more) return true;
  room_ = std::min(generation_.max_new_tokens, spec_.capacity - static_cast<int64_t>(tokens_.size()));
  if (room_ == 0) reason_ = kContext;
  return false;
}

bool Session::read() {
  if (!running_ || room_ >= 0) return false;
  try {
    return prefill(true);
  } catch (...) {
    running_ = false;
    throw;
  }
}

bool Session::next(sf_token& out) {
  if (!running_) return false;
  try {
    if (room_ < 0) prefill(false);
    mark_ = now();
    while (true) {
      if (block_ && deliver(out)) return true;
      if (block_) end_block();
      if (reason_ != nullptr || stop_.load(std::memory_order_relaxed)) {
        end(reason_ != nullptr ? reason_ : kStopped);
        return false;
      }
      pass();
    }
  } catch (...) {
    running_ = block_ = false;
    throw;
  }
}

// The next token of the block; false where nothing of it is left to deliver.
bool Session::deliver(sf_token& out) {
  const size_t at = static_cast<size_t>(delivered_);
  if (reason_ != nullptr || at == walk_tokens_.size() || delivered_ == room_ || stop_.load(std::memory_order_relaxed))
    return false;
  const int64_t token = walk_tokens_[at];
  statistics_.near_ties += walk_near_[at];
  if (ends_text(token)) {
    reason_ = kStop;
    saw_end_ = true;
    return false;
  }
  tokens_.push_back(token);
  ++delivered_;
  const bool drafted = at + 1 < walk_rows_.size();
  out = {token, drafted ? (*tree_)[walk_rows_[at + 1]].source : uint8_t{SF_MODEL}, 0};
  lap(kAccept);
  if (++statistics_.generated_tokens == 1) statistics_.first_token_ms = statistics_.measure_ms + statistics_.total_ms();
  return true;
}

// One pass over the model, and the path that it accepts.
void Session::pass() {
  if (planner_ != nullptr && generation_.width == 0)
    ask_planner();
  else
    step_ = plan_.step(tokens_, room_, generation_.width);
  tree_ = planner_ != nullptr && generation_.width == 0 ? &planned_ : &plan_.tree();
  const int64_t n = step_.nodes, root = static_cast<int64_t>(tokens_.size()) - 1;
  int64_t depth = 0;
  for (int64_t row = 0; row < n; ++row) {
    const Tree::Node& node = (*tree_)[row];
    depth = std::max(depth, node.depth);
    ids_[static_cast<size_t>(row)] = node.token;
    positions_[static_cast<size_t>(row)] = root + node.depth;
    uint8_t* own = ancestors_.data() + row * n;
    if (row > 0)
      std::copy_n(ancestors_.data() + node.parent * n, n, own);
    else
      std::fill_n(own, n, uint8_t{0});
    own[row] = 1;
  }
  statistics_.count_pass(step_.method, depth, n - 1, step_.reason);
  const bool want_logits = generation_.sampling.needs_logits();
  draft_ms_ = lap(kDraft);
  run(name_of(step_.method), n, want_logits);
  pass_ms_ = lap(kVerify);
  check_results(n, want_logits);
  accept();
  block_ = true;
  delivered_ = 0;
  saw_end_ = false;
}

// An engine of the caller's own may be wrong; nothing is read or written outside because of it.
void Session::check_results(int64_t n, bool want_logits) const {
  const sf_results& r = results_;
  const bool verifies = step_.method != kDecode;
  if (r.survivors < 1 || r.survivors > n || r.best == nullptr || (verifies && r.kept == nullptr) ||
      (want_logits && (r.logits == nullptr || r.vocab_size != spec_.vocab_size)))
    throw Failure(SF_EXECUTION, std::string("the engine's results of ") + name_of(step_.method) + " are incomplete");
  bool root = !verifies;
  for (int64_t i = 0; verifies && i < r.survivors; ++i) {
    if (r.kept[i] < 0 || r.kept[i] >= n)
      throw Failure(SF_EXECUTION, std::string("the engine kept a row that ") + name_of(step_.method) + " did not have");
    root = root || r.kept[i] == 0;
  }
  if (!root) throw Failure(SF_EXECUTION, std::string(name_of(step_.method)) + " did not keep its root");
}

// Sample and match: at each node the next token is chosen as plain decoding would choose it, from the model's own
// distribution and the number that belongs to its position; where a child carries it the walk goes on. It ends where
// the text does. A choice that fails behind others ends it too: they are delivered, and the next pass fails as plain
// decoding would.
void Session::accept() {
  const sf_results& r = results_;
  const auto place_of = [&](int64_t row) {
    if (step_.method == kDecode) return int64_t{0};
    const int64_t* found = std::find(r.kept, r.kept + r.survivors, row);
    return found == r.kept + r.survivors ? int64_t{-1} : static_cast<int64_t>(found - r.kept);
  };
  const bool samples = generation_.sampling.needs_logits();
  if (samples) history_ = tokens_;
  walk_rows_.assign(1, 0);
  walk_tokens_.clear(), walk_near_.clear();
  int64_t row = 0, place = place_of(0);
  while (true) {
    int64_t token;
    try {
      token = choose(place);
    } catch (const Failure&) {
      if (walk_tokens_.empty()) throw;
      walk_rows_.pop_back();
      return;
    }
    walk_tokens_.push_back(token);
    walk_near_.push_back(samples && sampler_.near_tie);
    int64_t child = 0, rank = -1, offers = 0;
    for (int64_t other = row + 1; other < step_.nodes; ++other) {
      if ((*tree_)[other].parent != row) continue;
      if ((*tree_)[other].token == token && child == 0) child = other, rank = offers;
      ++offers;
    }
    const int64_t next = child > 0 ? place_of(child) : -1;
    statistics_.count_rank(offers, next < 0 ? -1 : rank);
    survivor_ = place;
    if (next < 0 || ends_text(token) || static_cast<int64_t>(walk_tokens_.size()) == room_) return;
    row = child, place = next;
    walk_rows_.push_back(row);
    if (samples) history_.push_back(token);
  }
}

// The token that follows a survivor of the pass; with logits, after `history_`.
int64_t Session::choose(int64_t place) {
  const sf_results& r = results_;
  if (!generation_.sampling.needs_logits()) {
    const int64_t best = r.best[place];
    if (best < 0 || best >= spec_.vocab_size)
      throw Failure(SF_EXECUTION, "the engine's best token lies outside the vocabulary");
    return best;
  }
  lap(kAccept);
  const int64_t token = sampler_.choose(generation_.sampling, r.logits + place * spec_.vocab_size, history_,
                                        static_cast<int64_t>(history_.size()));
  lap(kSample);
  return token;
}

bool Session::ends_text(int64_t token) const {
  const auto& stops = generation_.stop_ids;
  return std::find(stops.begin(), stops.end(), token) != stops.end();
}

// The block is over: commit what was delivered, learn from it, and buy streams where they pay.
void Session::end_block() {
  block_ = false;
  const int64_t chosen = static_cast<int64_t>(walk_tokens_.size()), accepted = std::min(delivered_, chosen - 1);
  lap(kAccept);
  statistics_.count_accepted(accepted, delivered_ + saw_end_);
  for (int64_t i = 1; i <= accepted; ++i)
    ++statistics_.accepted_of[(*tree_)[walk_rows_[static_cast<size_t>(i)]].source & 3];
  if (delivered_ > 0) {  // the root and every delivered token but the last, which becomes the next root
    rows_.assign(walk_rows_.begin(), walk_rows_.begin() + delivered_);
    check(backend_.commit(backend_.context, rows_.data(), static_cast<int32_t>(delivered_)));
    cached_ += delivered_;
  }
  lap(kCommit);
  room_ -= delivered_;
  if (room_ == 0 && reason_ == nullptr)
    reason_ = statistics_.generated_tokens == generation_.max_new_tokens ? kLength : kContext;
  if (observer_ != nullptr) {
    seen_tokens_.clear(), seen_parents_.clear(), seen_log_probs_.clear(), seen_sources_.clear();
    for (int64_t row = 0; row < step_.nodes; ++row) {
      const Tree::Node& node = (*tree_)[row];
      seen_tokens_.push_back(node.token), seen_parents_.push_back(node.parent);
      seen_log_probs_.push_back(node.log_prob), seen_sources_.push_back(node.source);
    }
    const sf_pass pass = {
        name_of(step_.method),
        step_.reason,
        {step_.nodes, seen_tokens_.data(), seen_parents_.data(), seen_log_probs_.data(), seen_sources_.data()},
        &results_,
        walk_rows_.data(),
        walk_tokens_.data(),
        chosen,
        delivered_,
        cached_};
    observer_(observer_context_, &pass);
  }
  const bool carries = has_streams(results_, survivor_);
  const size_t block = static_cast<size_t>(survivor_ * spec_.num_streams * spec_.top_k);
  bool asks = planned_streams_ && spec_.deferred && !plan_.streams_failed();
  if (planner_ == nullptr || generation_.width != 0)
    asks = plan_.learn(step_, walk_tokens_, carries ? results_.stream_ids + block : nullptr,
                       carries ? results_.stream_log_probs + block : nullptr, {draft_ms_, pass_ms_}, tokens_, room_,
                       generation_.width);
  if (!asks || reason_ != nullptr || delivered_ != chosen || stop_.load(std::memory_order_relaxed)) return;
  lap(kDraft);
  ++statistics_.streams_passes;
  sf_results streams = {};
  const int code = backend_.streams(backend_.context, static_cast<int32_t>(survivor_), tokens_.back(), &streams);
  const double ms = lap(kVerify);
  if (code != SF_OK)
    plan_.fail_streams(engine_error());
  else if (!has_streams(streams, 0))
    plan_.fail_streams("the engine gave no streams");
  else if (planner_ == nullptr || generation_.width != 0)
    plan_.learn_streams(streams.stream_ids, streams.stream_log_probs, ms, generation_.width);
}

// Whether a survivor has streams that can be drafted from.
bool Session::has_streams(const sf_results& r, int64_t index) {
  if (r.stream_ids == nullptr || index >= r.carrying || plan_.streams_failed()) return false;
  if (r.stream_log_probs != nullptr && r.num_streams == spec_.num_streams && r.top_k == spec_.top_k) return true;
  plan_.fail_streams("the engine's streams are not of the shape that the bundle says");
  return false;
}

void Session::ask_planner() {
  const size_t widest = static_cast<size_t>(spec_.widest());
  seen_tokens_.assign(widest, 0), seen_parents_.assign(widest, -1);
  sf_step wish = {-1, 1, seen_tokens_.data(), seen_parents_.data(), 0};
  planner_(planner_context_, tokens_.data(), static_cast<int64_t>(tokens_.size()), room_, &wish);
  planned_streams_ = wish.streams != 0;
  planned_.set_root(tokens_.back());
  step_ = {};
  if (wish.method < 0) return;
  const auto& places = spec_.given_places;
  const auto found = std::find(places.begin(), places.end(), wish.method);
  if (found == places.end()) bad("the planner named a method that there is not");
  step_.method = found - places.begin();
  if (wish.n < 1 || wish.n > spec_.verify[static_cast<size_t>(step_.method)].rows)
    bad("the planner's tree does not fit its method");
  for (int32_t row = 1; row < wish.n; ++row) {
    const int64_t parent = seen_parents_[static_cast<size_t>(row)], token = seen_tokens_[static_cast<size_t>(row)];
    if (parent < 0 || parent >= row || token < 0 || token >= spec_.vocab_size) bad("the planner's tree is no tree");
    planned_.add(token, parent, 0.0, SF_STREAMS);
    if (static_cast<int64_t>(tokens_.size()) - 1 + planned_[row].depth >= spec_.capacity)
      bad("the planner's tree is too deep for the context");
  }
  step_.nodes = wish.n;
}

void Session::end(const char* reason) {
  running_ = false;
  statistics_.finish_reason = reason;
  if (backend_.idle != nullptr) backend_.idle(backend_.context);
}

void Session::finish(const char* reason) {
  if (!running_) return;
  const std::string why = reason != nullptr ? reason : reason_ != nullptr ? reason_ : kStopped;
  running_ = false;
  if (block_) {
    if (reason_ == nullptr) reason_ = kStopped;  // so that no streams are bought
    mark_ = now();
    end_block();
  }
  end(why.c_str());
}

void Session::reset() {
  finish(nullptr);
  truncate(0);
  tokens_.clear();
}

}  // namespace streamfuse
