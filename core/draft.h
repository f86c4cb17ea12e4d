// Drafts of the next tokens from every source of a bundle: streams, the n-gram table, and look-up in the text.
//
// A source that fails once is left alone for the rest of the session: a text never ends because of a draft.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "calibration.h"
#include "grow.h"
#include "lookup.h"

namespace streamfuse {

// Streams of one node: [num_streams, top_k] token ids with their log-probabilities; null where it has none.
struct Streams {
  const int64_t* ids = nullptr;
  const float* log_probs = nullptr;
};

struct Draft {
  Tree tree, streams, table;  // all that was proposed, and each source's own; a root alone where it was not asked
  bool from_streams = false, from_lookup = false;

  void reserve(size_t nodes);
  void set_root(int64_t token);  // nothing is drafted
};

class Drafter {
 public:
  explicit Drafter(const Model& model);

  // A text begins with these tokens, of which the first `kept` are as they were. The streams at hand are of another.
  void begin(const std::vector<int64_t>& tokens, int64_t kept);
  // The best tree of all sources after `tokens`, of paths of at most `depth` tokens.
  void draft(const std::vector<int64_t>& tokens, int64_t depth, Draft& out);
  // At one width, from streams alone, or by look-up alone where the bundle has no streams. False: nothing was found.
  bool draft_at_width(const std::vector<int64_t>& tokens, int64_t width, int64_t depth, Tree& out);
  // How many accepted tokens each node of the draft's tree is expected to bring.
  void expect(const Draft& draft, std::vector<double>& hits) const;
  // The model chose these tokens after the draft's root.
  void learn(const Draft& draft, std::span<const int64_t> chosen);
  void forget_streams() { of_streams_.forget(); }  // see Calibration
  double streams_ratio() const { return of_streams_.ratio(1); }

  // Streams of the last accepted node; null: it has none.
  void take(const Streams& streams);
  void fail_streams(const std::string& why) { fail(streams_failed_, why); }
  bool streams_ready() const { return streams_ready_; }
  bool streams_failed() const { return streams_failed_; }
  // Why the first source that failed did; NULL where none has. Statistics point to it.
  const char* damage() const { return damage_.empty() ? nullptr : damage_.c_str(); }

 private:
  void grow_streams(int64_t root, int64_t width, int64_t depth, Tree& out);
  template <typename Grow>
  void attempt(bool& failed, Tree& tree, const Grow& grow);
  void fail(bool& failed, const std::string& why);

  const Spec& spec_;
  StreamGrower grower_;
  TableGrower table_;
  LookUp look_up_;
  TreeJoiner joiner_;
  Calibration of_streams_, of_table_;
  bool streams_failed_ = false, table_failed_ = false, look_up_failed_ = false;
  std::string damage_;
  bool streams_ready_ = false;
  std::vector<int64_t> ids_;  // streams of the last accepted node
  std::vector<float> log_probs_;
};

}  // namespace streamfuse
