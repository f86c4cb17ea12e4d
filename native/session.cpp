#include "session.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "guard.h"

namespace streamfuse::native {
namespace {

// The model, or the adapter that the options name.
std::shared_ptr<const Model> model_of(std::shared_ptr<const Model> model, const sf_session_options& options) {
  if (model == nullptr) bad("a session needs a model that was loaded");
  if (options.adapter == nullptr) return model;
  if (options.backend != nullptr || !model->has_engine())
    bad("adapter needs the native engine: load a bundle for ExecuTorch with own_engine 0, and leave backend out");
  return model->adapter(options.adapter);
}

// In front of text that continues other text (sf_text_render_cut): U+FDD0.
constexpr std::string_view kCut = "\xef\xb7\x90";

std::string_view choice_of(const sf_answer_options& options) {
  return options.tool_choice == nullptr ? std::string_view() : options.tool_choice;
}

}  // namespace

Session::Session(std::shared_ptr<const Model> model, bool chat, const sf_session_options& options, Backend own)
    : model_(model_of(std::move(model), options)), chat_(chat), context_policy_(options.context_policy) {
  if (chat_ && !model_->can_chat()) bad(model_->folder() + " has no chat template; use a completion for plain text");
  if (!chat_ && (options.system != nullptr || options.history != nullptr))
    bad("a completion has no turns; system and history are options of a chat");
  if (!chat_ && (options.tools != nullptr || options.template_variables != nullptr))
    bad("a completion has no chat template; tools and template_variables are options of a chat");
  if (!chat_ && context_policy_ != SF_CONTEXT_FAIL)
    bad("a completion has no turns; context_policy is an option of a chat");
  int code = sf_new_text(model_->bundle(), Made(text_));
  text_needs(code);
  const bool has_tools = options.tools != nullptr && options.tools_bytes > 0;
  text_needs(sf_text_set_tools(text_.get(), has_tools ? options.tools : nullptr, options.tools_bytes));
  text_needs(sf_text_set_variables(text_.get(), options.template_variables, options.template_variables_bytes));
  text_needs(sf_text_set_limit(text_.get(), model_->spec().capacity, 0, context_policy_));  // now, to refuse others
  text_needs(
      sf_text_set_first(text_.get(), options.system, options.system_bytes, options.history, options.history_bytes));

  const bool is_own = options.backend != nullptr;
  const std::string device = model_->device(!is_own                     ? nullptr
                                            : options.device == nullptr ? "own engine"
                                                                        : options.device);
  sf_sequence_options wanted{};
  wanted.size = sizeof wanted;
  wanted.cost_folder = model_->cost_folder().c_str();
  wanted.device = device.c_str();
  wanted.model_load_ms = model_->load_ms() + options.engine_load_ms;
  const sf_backend backend = is_own ? own.take() : model_->make_engine();
  code = sf_sequence_new(model_->core(), &backend, &wanted, Made(sequence_));
  need(code);
}

void Session::need(int code) const { check(code, sf_sequence_error(sequence_.get())); }

void Session::text_needs(int code) const { check(code, sf_text_error(text_.get())); }

void Session::prepare() {
  finish();
  need(sf_sequence_prepare(sequence_.get()));
}

void Session::start(const char* text, size_t bytes, const sf_answer_options& options, Owned<sf_constraint> own) {
  start_turn(options, std::move(own), [&](const int64_t** ids, int64_t* n) {
    return chat_ ? sf_text_ask(text_.get(), text, bytes, ids, n) : sf_text_encode(text_.get(), text, bytes, 1, ids, n);
  });
}

void Session::start_tool_results(const char* results, size_t bytes, const sf_answer_options& options,
                                 Owned<sf_constraint> own) {
  start_turn(options, std::move(own),
             [&](const int64_t** ids, int64_t* n) { return sf_text_ask_results(text_.get(), results, bytes, ids, n); });
}

template <typename Ask>
void Session::start_turn(const sf_answer_options& options, Owned<sf_constraint> own, Ask ask) {
  const uint32_t stops = stops_;
  finish();
  const int64_t* ids = nullptr;
  int64_t n = 0;
  if (chat_) {
    const int64_t most = sampling_of(options).max_new_tokens;
    text_needs(sf_text_set_limit(text_.get(), model_->spec().capacity, std::max(int64_t{0}, most), context_policy_));
  }
  text_needs(ask(&ids, &n));
  const std::vector<int64_t> context(ids, ids + n);  // the ids are the text's until its next call
  begin(context.data(), n, options, std::move(own), stops);
}

void Session::start_tokens(const int64_t* ids, int64_t n, const sf_answer_options& options, Owned<sf_constraint> own) {
  const uint32_t stops = stops_;
  if (chat_) bad("a chat is asked in words; a completion takes token ids");
  finish();
  begin(ids, n, options, std::move(own), stops);
}

std::vector<int64_t> Session::encoded(std::string_view text, bool marks) {
  const int64_t* ids = nullptr;
  int64_t n = 0;
  text_needs(sf_text_encode(text_.get(), text.data(), text.size(), marks ? 1 : 0, &ids, &n));
  return {ids, ids + n};
}

const std::vector<float>& Session::score(std::string_view text, std::string_view answer) {
  const uint32_t stops = stops_;
  finish();
  std::vector<int64_t> ids;
  size_t from = 0;
  if (chat_) {
    const std::vector<int64_t> scored = encoded(std::string(kCut).append(answer), false);
    const int64_t* context = nullptr;
    int64_t n = 0;
    text_needs(
        sf_text_set_limit(text_.get(), model_->spec().capacity, static_cast<int64_t>(scored.size()), context_policy_));
    text_needs(sf_text_ask(text_.get(), text.data(), text.size(), &context, &n));
    ids.assign(context, context + n);
    from = ids.size();
    ids.insert(ids.end(), scored.begin(), scored.end());
    text_needs(sf_text_take_back(text_.get()));
  } else {
    const std::vector<int64_t> prompt = encoded(text, true);
    ids = encoded(std::string(text).append(answer), true);
    const auto differs = std::mismatch(prompt.begin(), prompt.end(), ids.begin(), ids.end());
    from = static_cast<size_t>(differs.first - prompt.begin());
    if (from == 0) bad("the first token has text of both the prompt and the answer; give a longer prompt");
  }
  if (from == ids.size()) bad("the answer to score is empty: it needs at least one token");
  scores_.resize(ids.size() - from);
  if (stops_ != stops) throw Failure(SF_CANCELLED, "the scoring was stopped before it began");
  need(sf_sequence_score(sequence_.get(), ids.data(), static_cast<int64_t>(ids.size()), static_cast<int64_t>(from), 0,
                         scores_.data(), nullptr));
  return scores_;
}

// Those of the caller, or the bundle's defaults.
sf_options Session::sampling_of(const sf_answer_options& options) const {
  sf_options sampling{};
  sampling.size = sizeof sampling;
  check(sf_bundle_defaults(model_->bundle(), &sampling), "the bundle's defaults cannot be read");
  if (options.sampling != nullptr) sampling = known_part(options.sampling, sampling);
  sampling.size = sizeof sampling;
  return sampling;
}

// `stops`: how often `stop` had been called when the start was.
void Session::begin(const int64_t* ids, int64_t n, const sf_answer_options& options, Owned<sf_constraint> own,
                    uint32_t stops) {
  held_.clear();
  try {
    sf_options sampling = sampling_of(options);
    text_needs(sf_text_dropped(text_.get(), &sampling.dropped_turns, &sampling.dropped_tokens));
    // What a schema restricts may look like a call or begin like a thought, but is none, unless calls are allowed too.
    const char* restriction = nullptr;
    size_t restriction_bytes = 0;
    const bool may_call = choice_of(options) == "auto";
    if (!may_call && options.regex != nullptr) {
      restriction = options.regex;
      restriction_bytes = options.regex_bytes;
    } else if (!may_call && options.grammar != nullptr) {
      restriction = options.grammar;
      restriction_bytes = options.grammar_bytes;
    } else if (!may_call && (own->size > 0 || options.schema != nullptr)) {
      restriction = "";
    }
    Owned<sf_constraint> limits = constrain(options, std::move(own));
    // The text of a completion continues its prompt.
    text_needs(sf_text_begin(text_.get(), options.stops, options.stops_bytes, ids, chat_ ? 0 : n, restriction,
                             restriction_bytes));
    const sf_constraint constraint = limits.take();
    sampling.constraint = constraint.size > 0 ? &constraint : nullptr;
    need(sf_sequence_start(sequence_.get(), ids, n, &sampling));  // last, because it replaces tokens and cache
  } catch (...) {
    sf_text_take_back(text_.get());
    throw;
  }
  if (stops_ != stops) sf_sequence_stop(sequence_.get());  // while the prompt or a grammar was prepared
  running_ = true;
}

// The caller's own constraint, or the one that the options ask for; none has size 0.
Owned<sf_constraint> Session::constrain(const sf_answer_options& options, Owned<sf_constraint> own) {
  const struct {
    const char* text;
    size_t bytes;
    int32_t kind;
  } grammars[] = {{options.schema, options.schema_bytes, SF_JSON_SCHEMA},
                  {options.regex, options.regex_bytes, SF_REGEX},
                  {options.grammar, options.grammar_bytes, SF_LARK}};
  const std::string_view choice = choice_of(options);
  int count = own->size > 0;
  for (const auto& grammar : grammars) count += grammar.text != nullptr;
  if (count > 1) bad("an answer has at most one of schema, regex, grammar and sampling->constraint");
  if (count > 0 && !choice.empty() && choice != "none" && (choice != "auto" || own->size > 0))
    bad("with schema, regex or grammar, tool_choice is auto or none; with sampling->constraint it is none");
  if (own->size > 0) return own;

  sf_constraint made{};
  made.size = sizeof made;
  const auto make = choice == "auto" ? sf_text_constrain_answer_or_call : sf_text_constrain;
  for (const auto& grammar : grammars)
    if (grammar.text != nullptr) {
      text_needs(make(text_.get(), grammar.kind, grammar.text, grammar.bytes, &made));
      return Owned<sf_constraint>(&made);
    }
  text_needs(sf_text_constrain_calls(text_.get(), options.tool_choice, choice.size(), &made));
  return Owned<sf_constraint>(&made);  // none if there are no tools
}

// Counted first: a stop that comes too early for the sequence is repeated after its start.
void Session::stop() {
  ++stops_;
  sf_sequence_stop(sequence_.get());
}

bool Session::read(int64_t* read, int64_t* total) {
  const int code = sf_sequence_read(sequence_.get(), read, total);
  if (code == SF_OK || code == SF_END) return code == SF_OK;
  const Failure failure(code, sf_sequence_error(sequence_.get()));
  abandon();
  throw failure;
}

bool Session::next(sf_piece& out) {
  gave_token_ = false;
  if (give_held(out)) return true;  // a token that completed text of two channels
  if (running_) {
    sf_token token{};
    const int code = sf_sequence_next(sequence_.get(), &token);
    if (code == SF_OK) {
      give(token, out);
      return true;
    }
    const Failure failure(code, code == SF_END ? "" : sf_sequence_error(sequence_.get()));
    if (code != SF_END) {
      abandon();
      throw failure;
    }
    finish();
  }
  return give_held(out);
}

bool Session::give_held(sf_piece& out) {
  if (held_.empty()) return false;
  shown_ = std::move(held_.front().text);
  out = {shown_.data(), shown_.size(), -1, SF_MODEL, held_.front().channel, std::numeric_limits<float>::quiet_NaN()};
  held_.pop_front();
  return true;
}

// The text that a token completes.
void Session::give(const sf_token& token, sf_piece& out) {
  const sf_text_part* parts = nullptr;
  int32_t n = 0;
  const int code = sf_text_push(text_.get(), token.id, &parts, &n);
  if (code != SF_OK && code != SF_END) {
    const Failure failure(code, sf_text_error(text_.get()));
    abandon();
    throw failure;
  }
  hold(parts, n);
  out = {nullptr, 0, token.id, token.source, SF_ANSWER, token.log_prob};
  if (give_held(out)) {
    out.token = token.id;
    out.source = token.source;
    out.log_prob = token.log_prob;
  }
  gave_token_ = true;
  // A stop string is complete. Where the end fails the cache is shorter, and the next answer reads more.
  if (code == SF_END) sf_sequence_finish(sequence_.get(), "stop");
}

const std::vector<sf_top_piece>& Session::top() {
  top_texts_.clear();
  top_.clear();
  const sf_top_token* found = nullptr;
  const int32_t n = gave_token_ ? sf_sequence_top(sequence_.get(), &found) : 0;
  for (int32_t i = 0; i < n; ++i) {
    const char* text = nullptr;
    size_t bytes = 0;
    text_needs(sf_text_token(text_.get(), found[i].id, &text, &bytes));
    top_texts_.emplace_back(text, bytes);
  }
  for (size_t i = 0; i < top_texts_.size(); ++i)
    top_.push_back({top_texts_[i].data(), top_texts_[i].size(), found[i].id, found[i].log_prob, 0});
  return top_;
}

// The answer is over, and the turn is closed with what was delivered of it.
void Session::finish() {
  if (!running_) return;
  running_ = false;
  sf_sequence_finish(sequence_.get(), nullptr);  // where it fails the cache is shorter, and the next answer reads more
  const bool is_stopped = std::string_view(sf_sequence_finish_reason(sequence_.get())) == "stopped";
  const sf_text_part* parts = nullptr;
  int32_t n = 0;
  text_needs(sf_text_end(text_.get(), is_stopped, &parts, &n));
  hold(parts, n);
}

void Session::hold(const sf_text_part* parts, int32_t n) {
  for (int32_t i = 0; i < n; ++i) held_.push_back({{parts[i].text, parts[i].bytes}, parts[i].channel});
}

// The end after another failure, which is the one to tell.
void Session::abandon() noexcept {
  try {
    finish();
  } catch (const std::exception&) {
  }
}

void Session::messages(const char** json, size_t* bytes) { text_needs(sf_text_messages(text_.get(), json, bytes)); }

void Session::tool_calls(const char** json, size_t* bytes) { text_needs(sf_text_tool_calls(text_.get(), json, bytes)); }

void Session::tokens(const int64_t** ids, int64_t* n, int64_t* cached) {
  need(sf_sequence_tokens(sequence_.get(), ids, n, cached));
}

int64_t Session::used_tokens() {
  int64_t n = 0;
  need(sf_sequence_tokens(sequence_.get(), nullptr, &n, nullptr));
  return n;
}

void Session::reset() {
  finish();
  need(sf_sequence_reset(sequence_.get()));
  text_needs(sf_text_reset(text_.get()));
  held_.clear();
}

void Session::trim() {
  finish();
  need(sf_sequence_trim(sequence_.get()));
}

// The turns of a chat, as they are saved; empty for a completion.
std::string Session::note() {
  const void* note = nullptr;
  size_t bytes = 0;
  if (chat_) text_needs(sf_text_save(text_.get(), &note, &bytes));
  return {static_cast<const char*>(note), bytes};
}

void Session::save(const char* path) {
  finish();
  const std::string turns = note();
  need(sf_sequence_save(sequence_.get(), path, turns.data(), turns.size()));
}

void Session::restore(const char* path) {
  finish();
  const std::string before = note();
  struct Turns {
    sf_text* text;
    bool taken;
    int refused;
  } turns = {text_.get(), false, SF_OK};
  const auto take = [](void* context, const void* note, size_t bytes) {
    Turns& own = *static_cast<Turns*>(context);
    own.refused = sf_text_restore(own.text, note, bytes);
    own.taken = own.refused == SF_OK;
    return own.refused;
  };
  const int code = sf_sequence_restore(sequence_.get(), path, chat_ ? +take : nullptr, &turns);
  if (code != SF_OK) {
    const Failure failure(code,
                          turns.refused != SF_OK ? sf_text_error(text_.get()) : sf_sequence_error(sequence_.get()));
    // The cache could not be loaded.
    if (turns.taken && sf_text_restore(text_.get(), before.data(), before.size()) != SF_OK)
      throw Failure(code, failure.what() + std::string("; the conversation is now that of the file, because the ") +
                              "earlier one cannot be put back: " + sf_text_error(text_.get()));
    throw failure;
  }
  held_.clear();
}

}  // namespace streamfuse::native
