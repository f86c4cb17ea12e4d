// What a pass costs on this device: measured once, kept in a file, followed while running.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "model.h"

namespace streamfuse {

constexpr int64_t kDecode = -1, kStreams = -2;  // beside the places of the spec's verify methods

class Costs {
 public:
  explicit Costs(const Spec& spec);

  bool known() const { return known_; }
  bool frozen() const { return frozen_; }  // whether passes teach nothing
  // Milliseconds of a pass of `method` with this many real rows; a static graph costs the same for all.
  double of(int64_t method, int64_t nodes = 1) const;
  double per_node(int64_t method) const;  // what one more real row adds, at least 0
  // Milliseconds with the fewest real rows that no narrower method takes, and with all of them: decode, the verify
  // methods, streams where deferred.
  // Throws Failure(SF_BAD_ARGUMENT) for a time that is not positive.
  void set(const double* first, const double* last, int64_t count, bool frozen);
  int64_t count() const { return static_cast<int64_t>(pairs_.size()); }
  // A step of this method, drafting included, had this latency. A part of the error moves the speed of the device
  // (heat, load, a longer cache), a part the method, and half of that the other methods of several rows. See
  // docs/core.md.
  void observe(int64_t method, int64_t nodes, double ms);
  // How far the cost of a method was moved, as a logarithm, by passes of other methods since it last ran itself.
  double inferred(int64_t method) const { return pairs_[place(method)].inferred; }

  // Runs methods in rounds for some 250 ms; decode, streams and the widest method run at least twice. What is known
  // already is kept if 50 ms of passes, or one of each of those three, agree with its ratios; then only the speed of
  // the device is new. `run` does one pass of a method with so many rows and returns its milliseconds, or below 0 to
  // end it: then nothing is known. A pass of streams follows one of decode. Returns whether the ratios are new.
  using Run = std::function<double(int64_t method, int64_t nodes)>;
  bool measure(const Run& run);
  // Milliseconds of each method with its fewest and with all rows, as `set` takes them; empty: nothing is known.
  std::vector<double> table() const;
  // Milliseconds of each method with all its rows, in the same order.
  std::vector<double> of_full_passes() const;
  void take(const std::vector<double>& table);

  // A small text file that belongs to a bundle and a device; what is damaged, old or foreign is not taken.
  bool load(const std::string& path, const std::string& identity, const std::string& device);
  void store(const std::string& path, const std::string& identity, const std::string& device) const;

 private:
  // A line through what a method costs with the fewest rows it is used for and with all. It is no line from one row on:
  // the first few are hidden behind the reading of the weights.
  struct Pair {
    double first, last;
    int64_t least, most;                               // rows
    double measured_first = 0.0, measured_last = 0.0;  // before passes corrected it
    double inferred = 0.0;                             // see `inferred`

    double span() const { return static_cast<double>(std::max<int64_t>(1, most - least)); }
  };
  // A method with so many rows, and the milliseconds of its passes.
  struct Point {
    size_t place;
    int64_t rows;
    bool needed;
    std::vector<double> ms;
  };
  void begin(bool frozen);
  std::vector<Point> points() const;
  bool sample(std::vector<Point>& points, const Run& run, int rounds, int needed_rounds, double budget) const;
  bool agrees(const std::vector<Point>& points) const;
  void fit(const std::vector<Point>& points);
  size_t place(int64_t method) const;
  int64_t method_at(size_t place) const;

  const Spec& spec_;
  std::vector<Pair> pairs_;  // decode, verify methods, streams
  double speed_ = 1.0;       // what all are multiplied with by now
  bool known_ = false, frozen_ = false;
};

}  // namespace streamfuse
