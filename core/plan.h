// Which pass comes next, and whether streams are worth their price. A plan changes speed and nothing else.
//
// A step is a pass of the model: plain (`decode`), or the verification of a drafted tree. Drafts are free (look-up,
// n-gram table) or come from streams. Streams have a price: a pass of their own (deferred schedule), or a verify pass
// in the place of a plain one (fused schedule; `verify_1` in both). The unit is tokens: a millisecond is worth `rate`
// tokens, what the best known way of decoding makes of it.
//   1. Cut a tree where one more row earns less than it costs. Verify it if its expected tokens exceed
//      rate * (its cost - a plain pass's). Expected are the probabilities of its paths, corrected per depth by how
//      often such predictions came true.
//   2. Buy streams if worth - gain of the free draft > rate * price; worth is what steps with streams gain on average.
//      With `verify_1`, a plain pass carries streams if worth > rate * what that adds to it, and others are bought
//      only if that brings more than to wait for the next plain pass.
//   3. Where they do not pay, back off: none for a while, twice as long each time, then a trial of a few steps.
//   4. A budget, and half of what a draft is expected to bring, must pay for its pass. Gains earn it, and a trickle
//      from plain passes. So it bounds what being wrong may cost.
// docs/runtime.md explains; tools/plan_simulation.py shows what it gains on simulated devices and texts.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "costs.h"
#include "grow.h"
#include "lookup.h"

namespace streamfuse {

// How drafts of one source came true: hits per predicted hit among the children of nodes of each depth.
class Calibration {
 public:
  Calibration(std::span<const double> priors, int64_t depths);
  // What to multiply the probability of a path of this depth with.
  double ratio(int64_t depth) const { return ratios_[std::min(static_cast<size_t>(depth), ratios_.size() - 1)]; }
  // The model chose these tokens after the root, whether the tree was verified or not.
  void learn(const Tree& tree, std::span<const int64_t> chosen);
  // The text may have changed: what was seen before counts no more than the next few steps.
  void doubt();

 private:
  struct Seen {
    double hits, predicted;
  };
  void update();
  std::vector<Seen> seen_;
  std::vector<double> ratios_;  // [d]: product of the ratios above depth d
};

struct Step {
  int64_t method = kDecode;
  int64_t nodes = 1;
  const char* reason = nullptr;  // why a plain pass is plain; NULL where it is no fall-back
};

// Milliseconds of a step: finding its tree, and the pass itself.
struct Took {
  double draft, pass;
};

class Plan {
 public:
  Plan(const Model& model, Costs& costs);

  // A text begins with these tokens, of which the first `kept` are as they were: nothing is known of its last pass.
  void begin(const std::vector<int64_t>& tokens, int64_t kept);
  // The next pass after `tokens`, of which at most `room` more are wanted. `width` above 0 drafts at one width always,
  // from streams alone, or by look-up alone where the bundle has no streams; 1 is plain decoding. The tree is `tree()`,
  // its first `nodes` rows.
  Step step(const std::vector<int64_t>& tokens, int64_t room, int64_t width);
  const Tree& tree() const { return draft_.tree; }
  // What came of it: the tokens chosen, the streams of the last accepted node (NULL: it has none), milliseconds. True:
  // ask for deferred streams now. `tokens` and `room` are as they are after the pass.
  bool learn(const Step& step, std::span<const int64_t> chosen, const int64_t* ids, const float* log_probs, Took took,
             const std::vector<int64_t>& tokens, int64_t room, int64_t width);
  void learn_streams(const int64_t* ids, const float* log_probs, double ms, int64_t width);
  // The engine's streams cannot be used. A source of drafts that fails once is left alone for the rest of the session:
  // a text never ends because of a draft. Plain passes name the first failure as their reason.
  void fail_streams(const std::string& why) { fail(streams_failed_, why); }
  bool streams_failed() const { return streams_failed_; }

 private:
  struct Draft {
    Tree tree, streams, table;  // all that was proposed, and each source's own; a root alone where it was not asked
    bool of_streams = false, looked_up = false;
  };
  struct Choice {
    int64_t method = kDecode, nodes = 1;
    double gain = 0.0;  // over a plain pass, in tokens
    double hits = 0.0;  // expected
  };
  void draft(const std::vector<int64_t>& tokens, int64_t depth, Draft& out);
  Choice best(const Draft& draft);
  void grow_streams(int64_t root, int64_t width, int64_t depth, Tree& out);
  template <typename Grow>
  void attempt(bool& failed, Tree& tree, const Grow& grow);
  void fail(bool& failed, const std::string& why);
  void take_streams(const int64_t* ids, const float* log_probs);
  double plain_ms() const { return costs_.of(kDecode); }
  double rate() const;   // tokens per millisecond of the best known way
  double price() const;       // of streams for the next step, in milliseconds
  double ride_price() const;  // of streams that a plain pass carries, or `price` where none can
  double cheapest() const { return std::min(price(), ride_price()); }
  bool plain_is_stale() const;
  bool wanted(double free_gain, double price) const;
  bool affords(double ms) const { return budget_ >= ms / plain_ms(); }
  bool can_buy(double price) const;
  void judge(double gain);
  void back_off(const char* reason);

  const Model& model_;
  Costs& costs_;
  StreamGrower from_streams_;
  TableGrower from_table_;
  LookUp look_up_;
  TreeJoiner joiner_;
  Calibration of_streams_, of_table_;

  bool streams_failed_ = false, table_failed_ = false, look_up_failed_ = false;
  std::string damage_;  // the sentence of the first of these failures; statistics point to it
  bool streams_ready_ = false;
  std::vector<int64_t> ids_;  // streams of the last accepted node
  std::vector<float> log_probs_;
  Draft draft_, next_;   // of this step; of the next one, where it was looked at before streams were bought
  bool looked_ = false;  // whether next_ is that of the next step
  std::vector<double> hits_;

  double budget_;                     // plain passes that may be lost
  double tokens_ = 0.0, ms_ = 0.0;    // of recent steps
  double worth_ = 0.0;                // what a step with streams gains over a plain pass, in tokens
  int64_t tries_ = 0;                 // steps with streams since they were last tried anew
  int64_t position_ = 0, retry_ = 0;  // tokens so far; where streams that failed are tried again ...
  int64_t back_off_;                  // ... and after how many tokens the next time
  const char* reason_;
};

}  // namespace streamfuse
