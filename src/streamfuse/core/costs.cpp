#include "rounding.h"

#include "costs.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <iomanip>
#include <locale>
#include <sstream>

#include "atomic_file.h"
#include "error.h"

namespace streamfuse {
namespace {

constexpr int kRounds = 5, kChecks = 3;
constexpr double kMostMeasuring = 250.0, kMostChecking = 50.0;  // milliseconds; two rounds are always made
constexpr double kSame = 1.25;    // a ratio of costs that differs by less has not changed
constexpr double kFollow = 0.05;  // how much of a difference one pass teaches about its method, and about the device
constexpr double kClip = 1.5;     // a pass that took longer than this many times the expected was interrupted
constexpr double kAlike = 0.5;   // what a pass teaches about other methods of several rows, over what about its own
constexpr double kFollowInferred = 0.3;  // kFollow at most for a method whose cost was inferred from others
constexpr double kReturn = 0.01;  // of the way back to the measured ratios, per plain pass
constexpr int64_t kMaxAgeSeconds = 30 * 86400;
constexpr const char* kFormat = "streamfuse costs 2";

std::string without_breaks(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// Of the methods that were run; the least of each, since a pass that was interrupted says nothing of the next one.
double sum(const std::vector<double>& ms) {
  double total = 0.0;
  for (const double one : ms) total += std::isfinite(one) ? one : 0.0;
  return total;
}

}  // namespace

Costs::Costs(const Spec& spec) : spec_(spec) {
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
  if (count != this->count() || first == nullptr || last == nullptr)
    throw Failure(SF_BAD_ARGUMENT,
                  "costs are asked for " + std::to_string(this->count()) + " methods, not " + std::to_string(count));
  for (int64_t i = 0; i < count; ++i)
    if (!(first[i] > 0 && last[i] > 0 && std::isfinite(first[i]) && std::isfinite(last[i])))
      throw Failure(SF_BAD_ARGUMENT, "the cost of a pass must be a positive time");
  for (int64_t i = 0; i < count; ++i) {
    pairs_[static_cast<size_t>(i)].first = first[i];
    pairs_[static_cast<size_t>(i)].last = last[i];
  }
  begin(frozen);
}

void Costs::begin(bool frozen) {
  speed_ = 1.0, known_ = true, frozen_ = frozen;
  for (Pair& pair : pairs_) pair.measured_first = pair.first, pair.measured_last = pair.last, pair.inferred = 0.0;
}

void Costs::observe(int64_t method, int64_t nodes, double ms) {
  if (frozen_ || !(ms > 0)) return;
  Pair& pair = pairs_[place(method)];
  const double difference = std::log(std::clamp(ms / of(method, nodes), 1 / kClip, kClip));
  const double device = kFollow * difference;
  const double share = std::clamp(std::abs(pair.inferred), kFollow, kFollowInferred), own = share * difference;
  pair.inferred *= 1.0 - share;
  speed_ *= std::exp(device);
  for (Pair& other : pairs_)
    if (&other != &pair) other.inferred += device;
  if (method != kDecode) {
    // The end that is far from these rows learns half: what few rows cost and what all cost do not move together.
    const double row = std::clamp(static_cast<double>(nodes - pair.least) / pair.span(), 0.0, 1.0);  // on the line
    pair.first *= std::exp(own * (1.0 - 0.5 * row)), pair.last *= std::exp(own * (0.5 + 0.5 * row));
    const double alike = kAlike * own;
    for (size_t i = 1; i < pairs_.size(); ++i) {
      Pair& other = pairs_[i];
      if (&other != &pair) other.first *= std::exp(alike), other.last *= std::exp(alike), other.inferred += alike;
    }
    return;
  }
  // Plain passes are what others are counted in: what is theirs alone moves the device, and the others back.
  speed_ *= std::exp(own);
  for (size_t i = 1; i < pairs_.size(); ++i) {
    Pair& other = pairs_[i];
    const double first = kReturn * std::log(other.measured_first / other.first);
    const double last = kReturn * std::log(other.measured_last / other.last);
    other.first *= std::exp(first - own), other.last *= std::exp(last - own);
    other.inferred += 0.5 * (first + last);
  }
}

// Rounds take turns, so that a change of speed meets all methods alike. The second best of each counts: other work on
// the device only ever adds time, and the best may be luck. The first round warms up.
void Costs::measure(const Run& run) {
  std::vector<std::vector<double>> first(pairs_.size()), last(pairs_.size());
  const auto good = [](std::vector<double>& ms) {
    std::sort(ms.begin(), ms.end());
    return std::min(std::max(ms.empty() ? HUGE_VAL : ms[std::min<size_t>(1, ms.size() - 1)], 1e-6), 1e9);
  };
  std::vector<double> least_ms(pairs_.size(), HUGE_VAL);  // of a method in one round
  for (int round = 0; round <= kRounds && (round < 2 || round * sum(least_ms) < kMostMeasuring); ++round) {
    for (size_t i = 0; i < pairs_.size(); ++i) {
      const int64_t least = pairs_[i].least, most = pairs_[i].most;
      if (most > spec_.capacity) continue;
      const double few = run(method_at(i), least), all = most > least && few >= 0 ? run(method_at(i), most) : few;
      if (few < 0 || all < 0) return;
      if (round > 0) first[i].push_back(few), last[i].push_back(all);
      least_ms[i] = std::min(least_ms[i], few + (most > least ? all : 0.0));
    }
  }
  for (size_t i = 0; i < pairs_.size(); ++i) pairs_[i].first = good(first[i]), pairs_[i].last = good(last[i]);
  begin(false);
}

bool Costs::agrees(const Run& run) const {
  std::vector<double> best(pairs_.size(), HUGE_VAL);
  for (int check = 0; check < kChecks && (check < 2 || check * sum(best) < kMostChecking); ++check) {
    for (size_t i = 0; i < pairs_.size(); ++i) {
      if (pairs_[i].most > spec_.capacity) continue;
      const double ms = run(method_at(i), pairs_[i].most);
      if (ms < 0) return false;
      best[i] = std::min(best[i], ms);
    }
  }
  for (size_t i = 1; i < pairs_.size(); ++i) {
    if (pairs_[i].most > spec_.capacity) continue;
    const double now = best[i] / std::max(best[0], 1e-6), then = of(method_at(i), pairs_[i].most) / of(kDecode);
    if (!(now / then > 1 / kSame && now / then < kSame)) return false;
  }
  return true;
}

std::vector<double> Costs::table() const {
  std::vector<double> ms;
  for (const Pair& pair : pairs_)
    if (known_) ms.insert(ms.end(), {speed_ * pair.first, speed_ * pair.last});
  return ms;
}

void Costs::take(const std::vector<double>& table) {
  for (size_t i = 0; i < pairs_.size(); ++i) pairs_[i].first = table[2 * i], pairs_[i].last = table[2 * i + 1];
  begin(false);
}

bool Costs::load(const std::string& path, const std::string& identity, const std::string& device) {
  std::ifstream file(path);
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
  pairs_ = found;
  begin(false);
  return true;
}

// A folder that cannot be written costs a measurement next time, nothing more.
void Costs::store(const std::string& path, const std::string& identity, const std::string& device) const {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << kFormat << '\n' << without_breaks(identity) << '\n' << without_breaks(device) << '\n';
  text << static_cast<int64_t>(std::time(nullptr)) << '\n' << std::setprecision(17);
  for (const Pair& pair : pairs_) text << speed_ * pair.first << ' ' << speed_ * pair.last << '\n';
  const std::string bytes = text.str();
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

}  // namespace streamfuse
