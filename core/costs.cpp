#include "rounding.h"

#include "costs.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <locale>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "atomic_file.h"
#include "error.h"
#include "hash.h"

namespace streamfuse {
namespace {

constexpr int kRounds = 6, kChecks = 3;
constexpr double kMostMeasuring = 250.0, kMostChecking = 50.0;  // milliseconds
constexpr double kMostSlowdown = 1.5;                           // maximum of slowdown_
constexpr double kLeastMs = 1e-6, kMostMs = 1e9;                // of a pass
constexpr double kSame = 1.25;                                  // ratios of costs within this factor count as unchanged
constexpr double kFollow = 0.05;         // share of a difference by which one pass corrects its method, and the device
constexpr double kClip = 1.5;            // a pass slower than expected by more than this factor was interrupted
constexpr double kAlike = 0.5;           // correction of other methods of several rows, relative to the method's own
constexpr double kFollowInferred = 0.3;  // maximum of this share, for a cost that was inferred or is old
constexpr double kAge = 0.01;            // this share for a plain pass grows by kAge per verify pass since the last one
// Verify passes after which a plain pass is due: initial, minimum and maximum. Doubled if the cost was as expected,
// else halved.
constexpr int64_t kDue = 32, kLeastDue = 4, kMostDue = 256;
constexpr double kReturn = 0.01;  // share of the way back to the measured ratios, per plain pass
constexpr int64_t kMaxAgeSeconds = 30 * 86400;
constexpr const char* kFormat = "streamfuse costs 3";

std::string without_breaks(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// The cost file. Its name is a hash of bundle and device, which the file repeats.
std::string file_in(const std::string& folder, const std::string& identity, const std::string& device) {
  char name[32];
  std::snprintf(name, sizeof name, "%016llx.costs", static_cast<unsigned long long>(fnv1a(identity + "\n" + device)));
  return (std::filesystem::path(folder) / name).string();
}

double quickest(const std::vector<double>& ms) { return std::max(*std::min_element(ms.begin(), ms.end()), kLeastMs); }

// The second best: other load only adds time, and the best may be an outlier. The first pass is a warm-up.
double typical(std::vector<double> ms) {
  if (ms.size() > 1) ms.erase(ms.begin());
  std::sort(ms.begin(), ms.end());
  return std::clamp(ms[std::min<size_t>(1, ms.size() - 1)], kLeastMs, kMostMs);
}

}  // namespace

Costs::Costs(const Spec& spec) : spec_(spec), due_(kDue) {
  pairs_.push_back({0, 0, 1, 1});
  for (const Method& method : spec.verify)
    pairs_.push_back({0, 0, std::min(method.rows, pairs_.back().most + 1), method.rows});
  if (spec.deferred) pairs_.push_back({0, 0, 1, 1});
}

size_t Costs::place(int64_t method) const {
  return method == kStreams ? pairs_.size() - 1 : static_cast<size_t>(method + 1);
}

int64_t Costs::method_at(size_t place) const {
  return spec_.deferred && place + 1 == pairs_.size() ? kStreams : static_cast<int64_t>(place) - 1;
}

double Costs::of(int64_t method, int64_t nodes) const {
  const Pair& pair = pairs_[place(method)];
  const double more = static_cast<double>(std::max<int64_t>(0, nodes - pair.least));
  return speed_ * (pair.first + (pair.last - pair.first) * more / pair.span());
}

double Costs::per_node(int64_t method) const {
  const Pair& pair = pairs_[place(method)];
  return speed_ * std::max(0.0, (pair.last - pair.first) / pair.span());
}

void Costs::set(const double* first, const double* last, int64_t count, bool frozen) {
  for (int64_t i = 0; i < count; ++i)
    if (!(first[i] > 0 && last[i] > 0 && std::isfinite(first[i]) && std::isfinite(last[i])))
      throw Failure(SF_BAD_ARGUMENT, "the cost of a pass must be a positive time");
  for (int64_t i = 0; i < count; ++i) {
    pairs_[static_cast<size_t>(i)].first = first[i];
    pairs_[static_cast<size_t>(i)].last = last[i];
  }
  slowdown_ = 1.0;
  begin(frozen);
}

void Costs::begin(bool frozen) {
  speed_ = 1.0;
  known_ = true;
  frozen_ = frozen;
  age_ = 0;
  due_ = kDue;
  for (Pair& pair : pairs_) {
    pair.measured_first = pair.first;
    pair.measured_last = pair.last;
    pair.inferred = 0.0;
  }
}

void Costs::observe(int64_t method, int64_t nodes, double ms) {
  if (frozen_) return;
  const bool follows_plain = std::exchange(after_plain_, method == kDecode);
  if (method == kDecode && !follows_plain) ms /= slowdown_;
  const bool due = method == kDecode && plain_is_due();
  const int64_t age = age_;
  if (method == kDecode) age_ = 0;
  if (method >= 0) ++age_;
  if (!(ms > 0)) return;
  Pair& pair = pairs_[place(method)];
  const double difference = std::log(std::clamp(ms / of(method, nodes), 1 / kClip, kClip));
  const double device = kFollow * difference;
  const double unsure = std::max(std::abs(pair.inferred), method == kDecode ? kAge * static_cast<double>(age) : 0.0);
  const double share = std::clamp(unsure, kFollow, kFollowInferred), own = share * difference;
  if (due) due_ = std::abs(difference) < std::log(kSame) ? std::min(2 * due_, kMostDue) : std::max(due_ / 2, kLeastDue);
  pair.inferred *= 1.0 - share;
  speed_ *= std::exp(device);
  for (Pair& other : pairs_)
    if (&other != &pair) other.inferred += device;
  if (method != kDecode) {
    // The end far from these rows is corrected by half: the costs of few rows and of all rows change independently.
    const double row = std::clamp(static_cast<double>(nodes - pair.least) / pair.span(), 0.0, 1.0);  // on the line
    pair.first *= std::exp(own * (1.0 - 0.5 * row));
    pair.last *= std::exp(own * (0.5 + 0.5 * row));
    const double alike = kAlike * own;
    for (size_t i = 1; i < pairs_.size(); ++i) {
      Pair& other = pairs_[i];
      if (&other == &pair) continue;
      other.first *= std::exp(alike);
      other.last *= std::exp(alike);
      other.inferred += alike;
    }
    return;
  }
  // A plain pass is the unit of the ratios: its own error corrects the device, and the others return to their ratios.
  speed_ *= std::exp(own);
  for (size_t i = 1; i < pairs_.size(); ++i) {
    Pair& other = pairs_[i];
    const double first = kReturn * std::log(other.measured_first / other.first);
    const double last = kReturn * std::log(other.measured_last / other.last);
    other.first *= std::exp(first - own);
    other.last *= std::exp(last - own);
    other.inferred += 0.5 * (first + last);
  }
}

bool Costs::measure(const Run& run) {
  const bool remembered = known_;
  known_ = false;
  std::vector<Point> passes = points();
  if (remembered && !sample(passes, run, kChecks, 1, kMostChecking)) return false;
  if (!remembered || !agrees(passes)) {
    if (!sample(passes, run, kRounds, 2, kMostMeasuring)) return false;
    if (!remembered || !agrees(passes)) {
      fit(passes);
      return true;
    }
  }
  speed_ = quickest(passes.front().ms) / pairs_.front().first;
  known_ = true;
  age_ = 0;
  return false;
}

// The most important methods come first: decode, streams (which need decode's results), the widest method.
std::vector<Costs::Point> Costs::points() const {
  std::vector<Point> found = {{0, 1, true, {}}};
  if (spec_.deferred) found.push_back({pairs_.size() - 1, 1, true, {}});
  for (size_t i = spec_.verify.size(); i > 0; --i) {
    if (pairs_[i].most > spec_.capacity) continue;
    const bool is_widest = std::none_of(found.begin(), found.end(), [](const Point& one) { return one.rows > 1; });
    found.push_back({i, pairs_[i].most, is_widest, {}});
    if (pairs_[i].least < pairs_[i].most) found.push_back({i, pairs_[i].least, false, {}});
  }
  return found;
}

// Methods alternate in rounds, so that a change of speed affects all alike. Interruptions do not count towards the
// budget: a pass counts as the quickest of its kind, and a narrower one as no more than the widest. False if `run` was
// cancelled.
bool Costs::sample(std::vector<Point>& points, const Run& run, int rounds, int needed_rounds, double budget) {
  std::vector<double> after_others;  // milliseconds of plain passes after a pass of another method
  std::optional<int64_t> before;     // the method that ran last
  for (int round = 0; round < rounds; ++round) {
    for (Point& point : points) {
      const int64_t method = method_at(point.place);
      if (method == kStreams && before != kDecode) continue;
      double spent = 0.0, longest = 0.0;
      for (const Point& one : points)
        if (one.needed && !one.ms.empty()) longest = std::max(longest, quickest(one.ms));
      for (const Point& one : points)
        if (!one.ms.empty()) spent += static_cast<double>(one.ms.size()) * std::min(longest, quickest(one.ms));
      if (!after_others.empty())
        spent += static_cast<double>(after_others.size()) * std::min(longest, quickest(after_others));
      const double expected = point.ms.empty() ? longest : std::min(longest, quickest(point.ms));
      const bool is_needed = point.needed && point.ms.size() < static_cast<size_t>(needed_rounds);
      if (!is_needed && spent + expected > budget) continue;
      if (method == kDecode && before && before != kDecode && spent + 2 * expected <= budget) {
        after_others.push_back(run(method, point.rows));
        if (after_others.back() < 0) return false;
      }
      const double ms = run(method, point.rows);
      if (ms < 0) return false;
      point.ms.push_back(ms);
      before = method;
    }
  }
  if (after_others.size() > 1)
    slowdown_ = std::clamp(quickest(after_others) / quickest(points.front().ms), 1.0, kMostSlowdown);
  return true;
}

// Compares the methods that ran as often as decode. Costs measured under load do not agree with those of an idle
// device.
bool Costs::agrees(const std::vector<Point>& points) const {
  const std::vector<double>& decode = points.front().ms;
  return std::all_of(points.begin() + 1, points.end(), [&](const Point& point) {
    if (point.ms.size() < decode.size()) return true;
    const Pair& pair = pairs_[point.place];
    const double known = point.rows == pair.most ? pair.last : pair.first;
    const double change = quickest(point.ms) / quickest(decode) / (known / pairs_.front().first);
    return change > 1 / kSame && change < kSame;
  });
}

// A method for which no time was left is interpolated between decode and the widest method; its first passes correct
// that.
void Costs::fit(const std::vector<Point>& points) {
  const auto widest = std::max_element(points.begin(), points.end(),
                                       [](const Point& one, const Point& other) { return one.rows < other.rows; });
  const double decode = typical(points.front().ms), span = std::max(1.0, static_cast<double>(widest->rows - 1));
  std::vector<bool> is_inferred(pairs_.size(), false);
  for (Pair& pair : pairs_) pair.first = pair.last = kMostMs;  // for methods that the context is too short for
  for (const Point& point : points) {
    Pair& pair = pairs_[point.place];
    const double on_line = decode + (typical(widest->ms) - decode) * static_cast<double>(point.rows - 1) / span;
    const double ms = point.ms.empty() ? on_line : typical(point.ms);
    if (point.rows == pair.most) pair.last = ms;
    if (point.rows == pair.least) pair.first = ms;
    if (point.ms.empty()) is_inferred[point.place] = true;
  }
  begin(false);
  for (size_t i = 0; i < pairs_.size(); ++i)
    if (is_inferred[i]) pairs_[i].inferred = kFollowInferred;
}

std::vector<double> Costs::table() const {
  std::vector<double> ms;
  for (const Pair& pair : pairs_)
    if (known_) ms.insert(ms.end(), {speed_ * pair.first, speed_ * pair.last});
  if (known_) ms.push_back(slowdown_);
  return ms;
}

std::vector<double> Costs::of_full_passes() const {
  std::vector<double> ms;
  for (size_t i = 0; i < pairs_.size(); ++i) ms.push_back(of(method_at(i), pairs_[i].most));
  return ms;
}

void Costs::take(const std::vector<double>& table) {
  for (size_t i = 0; i < pairs_.size(); ++i) {
    pairs_[i].first = table[2 * i];
    pairs_[i].last = table[2 * i + 1];
  }
  begin(false);
  slowdown_ = table.back();
}

bool Costs::load(const std::string& folder, const std::string& identity, const std::string& device) {
  std::ifstream file(file_in(folder, identity, device));
  file.imbue(std::locale::classic());
  std::string format, bundle, machine;
  int64_t measured = 0;
  if (!std::getline(file, format) || !std::getline(file, bundle) || !std::getline(file, machine) || !(file >> measured))
    return false;
  const int64_t now = static_cast<int64_t>(std::time(nullptr));
  if (format != kFormat || bundle != without_breaks(identity) || machine != without_breaks(device) || measured > now ||
      measured < now - kMaxAgeSeconds)
    return false;
  std::vector<Pair> found = pairs_;
  for (Pair& pair : found)
    if (!(file >> pair.first >> pair.last) || !(pair.first > 0 && pair.first < 1e9 && pair.last > 0 && pair.last < 1e9))
      return false;
  double slowdown = 0.0;
  if (!(file >> slowdown) || !(slowdown >= 1.0 && slowdown <= kMostSlowdown)) return false;
  pairs_ = found;
  begin(false);
  slowdown_ = slowdown;
  return true;
}

// If the folder cannot be written, or another process writes the file, the next process measures again.
void Costs::store(const std::string& folder, const std::string& identity, const std::string& device) const {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << kFormat << '\n' << without_breaks(identity) << '\n' << without_breaks(device) << '\n';
  text << static_cast<int64_t>(std::time(nullptr)) << '\n' << std::setprecision(17);
  for (const Pair& pair : pairs_) text << speed_ * pair.first << ' ' << speed_ * pair.last << '\n';
  text << slowdown_ << '\n';
  const std::string bytes = text.str();
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  AtomicFile file(file_in(folder, identity, device), false);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

}  // namespace streamfuse
