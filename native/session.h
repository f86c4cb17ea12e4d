// A chat or a completion: a sequence of tokens, its text, and the turns of the conversation.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "handle.h"
#include "model.h"
#include "owned.h"
#include "streamfuse.h"

namespace streamfuse::native {

class Session {
 public:
  // `own` is the engine of `options`, if they have one.
  Session(std::shared_ptr<const Model> model, bool chat, const sf_session_options& options, Backend own);

  // See streamfuse.h; all throw Failure. `own` is the constraint of the options' sampling, if there is one.
  void prepare();
  void start(const char* text, size_t bytes, const sf_answer_options& options, Owned<sf_constraint> own);
  void start_tool_results(const char* results, size_t bytes, const sf_answer_options& options,
                          Owned<sf_constraint> own);
  void start_tokens(const int64_t* ids, int64_t n, const sf_answer_options& options, Owned<sf_constraint> own);
  const std::vector<float>& score(std::string_view text, std::string_view answer);
  bool read(int64_t* read, int64_t* total);  // false: nothing is left to process
  bool next(sf_piece& out);                  // false: the answer has ended
  const std::vector<sf_top_piece>& top();    // of the last piece
  void finish();
  void stop();
  const char* statistics() { return sf_sequence_statistics(sequence_.get()); }
  void messages(const char** json, size_t* bytes);
  void tool_calls(const char** json, size_t* bytes);
  void tokens(const int64_t** ids, int64_t* n, int64_t* cached);
  int64_t used_tokens();
  int64_t remaining_tokens() { return model_->spec().capacity - used_tokens(); }
  void reset();
  void trim();
  void save(const char* path);
  void restore(const char* path);

 private:
  void need(int code) const;  // of the sequence
  void text_needs(int code) const;
  std::vector<int64_t> encoded(std::string_view text, bool marks);
  void begin(const int64_t* ids, int64_t n, const sf_answer_options& options, Owned<sf_constraint> own, uint32_t stops);
  sf_options sampling_of(const sf_answer_options& options) const;
  template <typename Ask>
  void start_turn(const sf_answer_options& options, Owned<sf_constraint> own, Ask ask);
  Owned<sf_constraint> constrain(const sf_answer_options& options, Owned<sf_constraint> own);
  std::string note();
  void give(const sf_token& token, sf_piece& out);
  bool give_held(sf_piece& out);
  void hold(const sf_text_part* parts, int32_t n);  // for later pieces
  void abandon() noexcept;

  std::shared_ptr<const Model> model_;
  bool chat_;
  int32_t context_policy_;
  Handle<sf_text, sf_free_text> text_;
  Handle<sf_sequence, sf_sequence_free> sequence_;

  bool running_ = false;            // an answer is being generated
  std::atomic<uint32_t> stops_{0};  // how often `stop` was called
  struct Part {
    std::string text;
    int32_t channel;
  };
  std::deque<Part> held_;    // text of later pieces
  std::string shown_;        // the last piece
  bool gave_token_ = false;  // the last piece has a token
  std::vector<float> scores_;
  std::vector<std::string> top_texts_;
  std::vector<sf_top_piece> top_;  // with these texts
};

}  // namespace streamfuse::native
