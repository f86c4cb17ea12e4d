#include "rounding.h"

#include "selftest.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "engine.h"
#include "error.h"
#include "json_writer.h"
#include "stopwatch.h"

namespace streamfuse {
namespace {

constexpr int64_t kHeadTokens = 16;  // of the text, for prefill; the same in src/streamfuse/export/selftest.py
constexpr double kMostSnr = 200.0;   // equal outputs
constexpr double kMostDifference = std::numeric_limits<float>::max();  // JSON has no infinity
// A device may round otherwise than the exporter's machine: twice the noise is not a fault. The kernels give the same
// bits on every machine, so their recorded outputs are met exactly, with the highest SNR.
constexpr double kMarginDb = 6.0;

[[noreturn]] void damaged(const std::string& reason) {
  throw Failure(SF_BAD_FILE, "selftest.npz: " + reason + "; export the bundle again");
}

// The recorded arrays, by name.
class Arrays {
 public:
  Arrays(const sf_tensor* tensors, int32_t count)
      : tensors_(tensors, tensors == nullptr ? 0 : static_cast<size_t>(std::max(count, 0))) {}

  bool has(const std::string& name) const { return find(name) != nullptr; }
  std::span<const int64_t> integers(const std::string& name) const { return numbers<int64_t>(name, SF_I64); }
  std::span<const float> floats(const std::string& name) const { return numbers<float>(name, SF_F32); }
  // With `rows` rows of `width` numbers.
  template <typename Number>
  static std::span<const Number> sized(std::span<const Number> numbers, int64_t rows, int64_t width,
                                       const std::string& name) {
    if (static_cast<int64_t>(numbers.size()) != rows * width)
      damaged(name + " has " + std::to_string(numbers.size()) + " numbers, not " + std::to_string(rows) + " times " +
              std::to_string(width));
    return numbers;
  }

 private:
  const sf_tensor* find(const std::string& name) const {
    const auto found = std::ranges::find_if(tensors_, [&](const sf_tensor& tensor) { return name == tensor.name; });
    return found == tensors_.end() ? nullptr : &*found;
  }
  template <typename Number>
  std::span<const Number> numbers(const std::string& name, int32_t dtype) const {
    const sf_tensor* const tensor = find(name);
    if (tensor == nullptr) damaged("has no array " + name);
    if (tensor->dtype != dtype) damaged(name + " has numbers of another type");
    const int64_t count = tensor->shape[0] * (tensor->rank > 1 ? tensor->shape[1] : 1);
    return {static_cast<const Number*>(tensor->data), static_cast<size_t>(count)};
  }

  std::span<const sf_tensor> tensors_;
};

// Signal and noise of rows that are centred by their means.
class Signal {
 public:
  void add(const float* ours, const float* expected, int64_t width) {
    double mean_ours = 0, mean_expected = 0;
    for (int64_t i = 0; i < width; ++i) {
      mean_ours += ours[i];
      mean_expected += expected[i];
    }
    mean_ours /= static_cast<double>(width);
    mean_expected /= static_cast<double>(width);
    for (int64_t i = 0; i < width; ++i) {
      const double b = expected[i] - mean_expected, difference = ours[i] - mean_ours - b;
      signal_ += b * b;
      noise_ += difference * difference;
      most_ = std::max(most_, std::min(std::abs(difference), kMostDifference));
      is_equal_ = is_equal_ && std::memcmp(ours + i, expected + i, sizeof *ours) == 0;
    }
  }
  double snr_db() const {
    if (noise_ == 0) return kMostSnr;
    const double snr = 10 * std::log10(signal_ / noise_);
    return snr > -kMostSnr ? std::min(snr, kMostSnr) : -kMostSnr;  // also if it is not a number
  }
  double max_abs_difference() const { return most_; }  // finite, even if an output was not
  bool is_equal() const { return is_equal_; }

 private:
  double signal_ = 0, noise_ = 0, most_ = 0;
  bool is_equal_ = true;
};

struct Figures {
  std::string method;
  Signal signal;
  double expected_snr_db = kMostSnr;
  int64_t nodes = 0, kept = 0, same_tokens = 0;  // expected; of them kept; of these with the same best token
  int64_t streams = 0, same_streams = 0;         // compared; with the same best token

  bool tokens_equal() const { return kept == nodes && same_tokens == kept; }
  bool passed() const { return signal.snr_db() >= expected_snr_db - kMarginDb; }
  bool equal() const { return signal.is_equal() && tokens_equal() && same_streams == streams; }
};

class SelfTest {
 public:
  SelfTest(const Model& model, Backend engine, Arrays arrays)
      : spec_(model.spec), engine_(spec_, std::move(engine)), arrays_(arrays), text_(tokens("text")) {
    methods_.push_back(kDecode);
    for (size_t i = 0; i < spec_.verify.size(); ++i) methods_.push_back(static_cast<int64_t>(i));
    for (const int64_t method : methods_) trees_.push_back(tree_of(method));
  }

  std::vector<Figures> run() {
    engine_.truncate(0);
    int64_t longest = 0;
    for (const Tree& tree : trees_) longest = std::max(longest, tree.size());
    const int64_t end = static_cast<int64_t>(text_.size()) - longest - 1, head = std::min(kHeadTokens, end / 2);
    if (end < 0) damaged("its text has only " + std::to_string(text_.size()) + " tokens");
    if (end + longest > spec_.capacity) damaged("its text is longer than the context");
    for (int64_t at = 0; at < head; at += spec_.prefill_rows)
      engine_.prefill(
          text_.subspan(static_cast<size_t>(at), static_cast<size_t>(std::min(spec_.prefill_rows, head - at))));
    walk(head, end);
    std::vector<Figures> found;
    for (size_t i = 0; i < methods_.size(); ++i) {
      engine_.truncate(end);
      found.push_back(compare(methods_[i], trees_[i]));
      if (methods_[i] == kDecode && spec_.deferred) found.push_back(compare_streams(end));
    }
    engine_.idle();
    return found;
  }

 private:
  std::span<const int64_t> tokens(const std::string& name) const {
    const std::span<const int64_t> found = arrays_.integers(name);
    if (found.empty()) damaged(name + " is empty");
    for (const int64_t token : found)
      if (token < 0 || token >= spec_.vocab_size) damaged(name + " has a token that the model does not have");
    return found;
  }

  int64_t rows_of(int64_t method) const {
    return method == kDecode ? 1 : spec_.verify[static_cast<size_t>(method)].rows;
  }

  Tree tree_of(int64_t method) const {
    const std::string name = engine_.name_of(method);
    const std::span<const int64_t> ids = tokens(name + ".tokens"), parents = arrays_.integers(name + ".parents");
    Arrays::sized(parents, static_cast<int64_t>(ids.size()), 1, name + ".parents");
    if (static_cast<int64_t>(ids.size()) > rows_of(method)) damaged(name + ".tokens has more nodes than the method");
    Tree tree;
    tree.set_root(ids[0]);
    for (size_t i = 1; i < ids.size(); ++i) {
      if (parents[i] < 0 || parents[i] >= static_cast<int64_t>(i)) damaged(name + ".parents is not a tree");
      tree.add(ids[i], parents[i], 0.0, SF_MODEL);
    }
    return tree;
  }

  // Passes over the text, each a chain of the widest method that keeps all its rows, as the exporter ran them.
  void walk(int64_t begin, int64_t end) {
    int64_t method = kDecode;
    for (size_t i = 0; i < spec_.verify.size(); ++i)
      if (spec_.verify[i].rows == spec_.verify[i].keep) method = static_cast<int64_t>(i);
    std::vector<int32_t> rows;
    for (int64_t at = begin; at < end; at += rows_of(method)) {
      const int64_t n = std::min(rows_of(method), end - at);
      Tree chain;
      chain.set_root(text_[static_cast<size_t>(at)]);
      for (int64_t i = 1; i < n; ++i) chain.add(text_[static_cast<size_t>(at + i)], i - 1, 0.0, SF_MODEL);
      engine_.run(method, chain, n, true);
      rows.clear();
      for (int64_t i = 0; i < n; ++i) rows.push_back(static_cast<int32_t>(i));
      engine_.commit(rows);
    }
  }

  Figures figures_of(const std::string& method) const {
    Figures figures;
    figures.method = method;
    const std::string name = method + ".snr_db";
    figures.expected_snr_db = static_cast<double>(Arrays::sized(arrays_.floats(name), 1, 1, name)[0]);
    return figures;
  }

  Figures compare(int64_t method, const Tree& tree) {
    const std::string name = engine_.name_of(method);
    Figures figures = figures_of(name);
    const std::span<const int64_t> nodes = arrays_.integers(name + ".nodes");
    const int64_t vocab_size = spec_.vocab_size, count = figures.nodes = static_cast<int64_t>(nodes.size());
    const std::span<const float> logits =
        Arrays::sized(arrays_.floats(name + ".logits"), count, vocab_size, name + ".logits");
    const sf_results& results = engine_.run(method, tree, tree.size(), true);
    for (int64_t i = 0; i < results.survivors; ++i) {
      const int64_t node = results.kept == nullptr ? i : results.kept[i];
      const auto place = std::ranges::find(nodes, node);
      if (place == nodes.end()) continue;
      const float* const expected = logits.data() + (place - nodes.begin()) * vocab_size;
      ++figures.kept;
      figures.signal.add(results.logits + i * vocab_size, expected, vocab_size);
      figures.same_tokens += results.best[i] == std::max_element(expected, expected + vocab_size) - expected;
    }
    if (figures.kept == 0) throw Failure(SF_EXECUTION, name + " kept no node that the self-test names");
    if (method == kDecode || !arrays_.has(name + ".stream_nodes")) return figures;
    const std::span<const int64_t> carriers = arrays_.integers(name + ".stream_nodes");
    for (int64_t i = 0; i < results.survivors; ++i) {
      const auto place = std::ranges::find(carriers, results.kept == nullptr ? i : results.kept[i]);
      const Streams streams = engine_.streams_of(results, i);
      if (place == carriers.end() || streams.ids == nullptr) continue;
      count_streams(figures, streams, static_cast<int64_t>(carriers.size()), place - carriers.begin());
    }
    return figures;
  }

  // The streams of the last run's root, in a pass of their own.
  Figures compare_streams(int64_t end) {
    Figures figures = figures_of("streams");
    engine_.commit(std::vector<int32_t>{0});
    const Streams streams = engine_.streams(0, text_[static_cast<size_t>(end + 1)]);
    const std::span<const float> log_probs = count_streams(figures, streams, 1, 0);
    for (int64_t stream = 0; stream < spec_.num_streams; ++stream)
      figures.signal.add(streams.log_probs + stream * spec_.top_k, log_probs.data() + stream * spec_.top_k,
                         spec_.top_k);
    return figures;
  }

  // Compares the best tokens of the streams of one node with those in `row` of `rows`. Returns their log-probabilities.
  std::span<const float> count_streams(Figures& figures, const Streams& streams, int64_t rows, int64_t row) const {
    const int64_t width = spec_.num_streams * spec_.top_k;
    const std::string ids_name = figures.method + ".stream_ids", name = figures.method + ".stream_log_probs";
    const std::span<const int64_t> ids = Arrays::sized(arrays_.integers(ids_name), rows, width, ids_name);
    const std::span<const float> log_probs = Arrays::sized(arrays_.floats(name), rows, width, name);
    for (int64_t stream = 0; stream < spec_.num_streams; ++stream) {
      ++figures.streams;
      figures.same_streams +=
          streams.ids[stream * spec_.top_k] == ids[static_cast<size_t>(row * width + stream * spec_.top_k)];
    }
    return log_probs.subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
  }

  const Spec& spec_;
  Engine engine_;
  Arrays arrays_;
  std::span<const int64_t> text_;
  std::vector<int64_t> methods_;
  std::vector<Tree> trees_;
};

double share(int64_t part, int64_t whole) {
  return whole == 0 ? 1.0 : static_cast<double>(part) / static_cast<double>(whole);
}

double tenths(double value) { return std::round(value * 10) / 10; }

std::string tenths_text(double value) {
  JsonWriter out;
  out.value(tenths(value));
  return out.done();
}

void write(JsonWriter& out, const Figures& f) {
  out.key(f.method.c_str());
  out.open('{');
  out.member("passed", f.passed());
  out.member("equal", f.equal());
  out.member("snr_db", tenths(f.signal.snr_db()));
  out.member("expected_snr_db", tenths(f.expected_snr_db));
  out.member("max_abs_difference", f.signal.max_abs_difference());
  out.member("nodes", f.nodes);
  out.member("kept_agreement", share(f.kept, f.nodes));
  out.member("top1_agreement", share(f.same_tokens, f.kept));
  out.member("stream_top1_agreement", share(f.same_streams, f.streams));
  out.close('}');
}

}  // namespace

std::string self_test(const Model& model, Backend engine, const sf_tensor* arrays, int32_t count) {
  Stopwatch watch(nullptr, nullptr);
  watch.start();
  const std::vector<Figures> all = SelfTest(model, std::move(engine), Arrays(arrays, count)).run();
  double ms = 0;
  watch.lap(ms);
  JsonWriter out;
  out.open('{');
  out.member("passed", std::ranges::all_of(all, &Figures::passed));
  out.member("equal", std::ranges::all_of(all, &Figures::equal));
  out.member("tokens_equal", std::ranges::all_of(all, &Figures::tokens_equal));
  out.member("ms", tenths(ms));
  out.key("methods");
  out.open('{');
  for (const Figures& figures : all) write(out, figures);
  out.close('}');
  out.key("differences");
  out.open('[');
  for (const Figures& f : all) {
    const std::string end = " of " + std::to_string(f.nodes) + " nodes ";
    if (!f.passed())
      out.value((f.method + ": snr_db is " + tenths_text(f.signal.snr_db()) + ", and the exporter measured " +
                 tenths_text(f.expected_snr_db))
                    .c_str());
    if (f.kept < f.nodes)
      out.value((f.method + ": the pruner dropped " + std::to_string(f.nodes - f.kept) + end + "that it should keep")
                    .c_str());
    if (f.same_tokens < f.kept)
      out.value((f.method + ": the best token of " + std::to_string(f.kept - f.same_tokens) + end + "differs").c_str());
    if (f.same_streams < f.streams)
      out.value((f.method + ": the best token of " + std::to_string(f.streams - f.same_streams) + " of " +
                 std::to_string(f.streams) + " streams differs")
                    .c_str());
  }
  out.close(']');
  out.close('}');
  return out.done();
}

}  // namespace streamfuse
