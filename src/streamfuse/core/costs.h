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
  // A pass took `ms`. Half of a difference is the device's (heat, load, a longer cache) and moves all methods. The other
  // half is the method's, and moves the end of its line that is far from these rows half as much as the near one.
  void observe(int64_t method, int64_t nodes, double ms);

  // Runs every method a few times. `run` does one pass of a method with so many rows and gives its milliseconds.
  using Run = std::function<double(int64_t method, int64_t nodes)>;
  void measure(const Run& run);
  // Whether a few passes stand to one of decode as the table says: what was measured beside other work does not.
  bool agrees(const Run& run) const;

  // A small text file that belongs to a bundle and a device; what is damaged, old or foreign is not taken.
  bool load(const std::string& path, const std::string& identity, const std::string& device);
  void store(const std::string& path, const std::string& identity, const std::string& device) const;

 private:
  // A line through what a method costs with the fewest rows it is used for and with all. It is no line from one row on:
  // the first few are hidden behind the reading of the weights.
  struct Pair {
    double first, last;
    int64_t least, most;  // rows

    double span() const { return static_cast<double>(std::max<int64_t>(1, most - least)); }
  };
  size_t place(int64_t method) const;
  int64_t method_at(size_t place) const;

  const Spec& spec_;
  std::vector<Pair> pairs_;  // decode, verify methods, streams
  double speed_ = 1.0;       // what all are multiplied with by now
  bool known_ = false, frozen_ = false;
};

}  // namespace streamfuse
