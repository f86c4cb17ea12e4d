// The latency of passes on this device: measured once, cached in a file, updated while running.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "model.h"

namespace streamfuse {

constexpr int64_t kDecode = -1, kStreams = -2;  // in addition to the indices of the spec's verify methods

class Costs {
 public:
  explicit Costs(const Spec& spec);

  bool known() const { return known_; }
  bool frozen() const { return frozen_; }  // passes do not update the costs
  // Milliseconds of a pass of `method` with this many real rows; a static graph costs the same for any number.
  double of(int64_t method, int64_t nodes = 1) const;
  double per_node(int64_t method) const;  // what one more real row adds, at least 0
  // Milliseconds with the fewest real rows for which no narrower method suffices, and with all rows: decode, the verify
  // methods, streams if deferred.
  // Throws Failure(SF_BAD_ARGUMENT) for a time that is not positive.
  void set(const double* first, const double* last, int64_t count, bool frozen);
  int64_t count() const { return static_cast<int64_t>(pairs_.size()); }
  // Updates the costs from the latency of a step, including drafting. Part of the error goes to the speed of the device
  // (heat, load, a longer cache), part to the method, and half of that to the other methods of several rows. See
  // docs/runtime.md.
  void observe(int64_t method, int64_t nodes, double ms);
  void begin_text() { after_plain_ = false; }  // a prefill comes before the first pass
  // How far passes of other methods moved this method's cost since it last ran, as a logarithm.
  double inferred(int64_t method) const { return pairs_[place(method)].inferred; }
  // Whether the cost of a plain pass should be measured again because many other passes ran since the last one. If
  // other load slowed that one, its cost is overestimated, so verify passes look cheap and no plain pass would run.
  bool plain_is_due() const { return !frozen_ && age_ >= due_; }

  // Runs methods in rounds for about 250 ms; decode, streams and the widest method run at least twice. Known costs are
  // kept if 50 ms of passes, or one of each of those three, agree with their ratios; then only the speed of the device
  // is updated. `run` does one pass of a method with this many rows and returns its milliseconds, or a negative number
  // to cancel: then no costs are known. A pass of streams follows one of decode. Returns whether the ratios are new.
  using Run = std::function<double(int64_t method, int64_t nodes)>;
  bool measure(const Run& run);
  // Milliseconds of each method with its fewest and with all rows, as in `set`, then `slowdown_`. Empty if they are
  // not known.
  std::vector<double> table() const;
  // Milliseconds of each method with all its rows, in the same order.
  std::vector<double> of_full_passes() const;
  void take(const std::vector<double>& table);

  // The cost file, a small text file per bundle and device; a damaged, old or foreign one is ignored.
  bool load(const std::string& folder, const std::string& identity, const std::string& device);
  void store(const std::string& folder, const std::string& identity, const std::string& device) const;

 private:
  // Latency is interpolated linearly between the fewest rows a method is used for and all of its rows, not from one row
  // on: the first few rows cost nothing, because the pass is bound by reading the weights.
  struct Pair {
    double first, last;
    int64_t least, most;                               // rows
    double measured_first = 0.0, measured_last = 0.0;  // as measured, before corrections
    double inferred = 0.0;                             // see `inferred`

    double span() const { return static_cast<double>(std::max<int64_t>(1, most - least)); }
  };
  // A method with a number of rows, and the milliseconds of its passes.
  struct Point {
    size_t place;
    int64_t rows;
    bool needed;
    std::vector<double> ms;
  };
  void begin(bool frozen);
  std::vector<Point> points() const;
  bool sample(std::vector<Point>& points, const Run& run, int rounds, int needed_rounds, double budget);
  bool agrees(const std::vector<Point>& points) const;
  void fit(const std::vector<Point>& points);
  size_t place(int64_t method) const;
  int64_t method_at(size_t place) const;

  const Spec& spec_;
  std::vector<Pair> pairs_;  // decode, verify methods, streams
  double speed_ = 1.0;       // current factor of all costs
  bool known_ = false, frozen_ = false;
  // Time of a plain pass after a pass of another method, over that of one after a plain pass, which is the unit of all
  // costs. Above 1 where caches hold the weights, because the other pass leaves less of them there.
  double slowdown_ = 1.0;
  bool after_plain_ = false;  // whether the last pass of this text was plain
  int64_t age_ = 0, due_;     // verify passes since the last plain pass, and the number after which one is due
};

}  // namespace streamfuse
