// Drafts of the next tokens from every source of a bundle: streams, the n-gram table, and look-up in the text.
//
// A source that fails once is not used again in the session: a text never ends because of a draft.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "calibration.h"
#include "generation.h"
#include "grow.h"
#include "lookup.h"

namespace streamfuse {

// Streams of one node: [num_streams, top_k] token ids with their log-probabilities; null if it has none.
struct Streams {
  const int64_t* ids = nullptr;
  const float* log_probs = nullptr;
};

struct Draft {
  Tree tree, streams, table;  // the merged tree, and those of each source; only a root if a source was not used
  bool from_streams = false, from_lookup = false;

  void reserve(size_t nodes);
  void set_root(int64_t token);  // an empty draft
};

class Drafter {
 public:
  Drafter(const Model& model, std::shared_ptr<const Memory> memory);

  // A text begins with these tokens; the first `kept` are the same as before. Drops the streams of the previous text.
  // The constraint, null for none, must outlive the text; its state is the end of `tokens` whenever a draft begins.
  void begin(const std::vector<int64_t>& tokens, int64_t kept, Constraint* constraint, const Generation& generation);
  // The merged tree of all sources after `tokens`, with paths of at most `depth` tokens.
  void draft(const std::vector<int64_t>& tokens, int64_t depth, Draft& out);
  // A draft of only the root, for a pass without room for drafted tokens. Still updates the sources to `tokens`.
  void draft_nothing(const std::vector<int64_t>& tokens, Draft& out);
  // A draft at a fixed width: from streams only, or by look-up only if the bundle has no streams, and in both cases
  // with tokens that the constraint forces. Returns false if the draft is empty.
  bool draft_at_width(const std::vector<int64_t>& tokens, int64_t width, int64_t depth, Tree& out);
  // The expected number of accepted tokens from each node of the draft's tree.
  void expect(const Draft& draft, std::vector<double>& hits) const;
  // The model chose these tokens after the draft's root.
  void learn(const Draft& draft, std::span<const int64_t> chosen);
  void forget_choices() { guide_.forget(); }       // those of the model under constraints
  void forget_streams() { of_streams_.forget(); }  // see Calibration
  double streams_ratio() const { return of_streams_.ratio(1); }
  int64_t refused() const { return guide_.refused(); }  // candidates that the constraint refused in this text

  // Streams of the last accepted node; null: it has none.
  void take(const Streams& streams);
  void fail_streams(const std::string& why) { fail(streams_failed_, why); }
  bool streams_ready() const { return streams_ready_; }
  // Whether the bundle has streams and a method that verifies them, the text may use them, and they have not failed.
  bool streams_usable() const {
    return spec_.num_streams > 0 && !spec_.verify.empty() && !streams_failed_ && uses(SF_STREAMS);
  }
  // Why the first failing source failed; NULL if none has. Statistics point to this text.
  const char* damage() const { return damage_.empty() ? nullptr : damage_.c_str(); }

 private:
  bool uses(int32_t source) const { return sources_ == 0 || (sources_ >> source & 1) != 0; }
  void begin_draft(const std::vector<int64_t>& tokens);
  void grow_streams(int64_t root, int64_t width, int64_t depth, Tree& out);
  template <typename Grow>
  void attempt(bool& failed, Tree& tree, const Grow& grow);
  void fail(bool& failed, const std::string& why);

  const Spec& spec_;
  StreamGrower grower_;
  TableGrower table_;
  LookUp look_up_;
  TreeJoiner joiner_;
  Guide guide_;
  Calibration of_streams_, of_table_;
  int32_t sources_ = 0;  // see Generation
  Coupling coupling_;
  bool streams_failed_ = false, table_failed_ = false, look_up_failed_ = false;
  std::string damage_;
  bool streams_ready_ = false;
  std::vector<int64_t> ids_;  // streams of the last accepted node
  std::vector<float> log_probs_;
};

}  // namespace streamfuse
