#include "rounding.h"

#include "model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "error.h"
#include "numbers.h"

namespace streamfuse {
namespace {

[[noreturn]] void bad_tables(const std::string& sentence) { throw Failure(SF_BAD_TABLES, sentence); }

constexpr const char* kKnown[] = {"parent_left", "parent_right", "gate",      "stream_vocab",   "calibration",
                                  "ngram_keys",  "ngram_starts", "ngram_ids", "ngram_log_probs"};
constexpr int64_t kMostElements = int64_t{1} << 40;
constexpr double kMostTerm = 1e4;

std::string of_shape(const sf_tensor& tensor) {
  std::string text = "[" + std::to_string(tensor.shape[0]);
  if (tensor.rank == 2) text += ", " + std::to_string(tensor.shape[1]);
  return text + "]";
}

int64_t elements(const sf_tensor& tensor) { return tensor.shape[0] * (tensor.rank == 2 ? tensor.shape[1] : 1); }

bool finite_half(uint16_t bits) { return (bits & 0x7c00u) != 0x7c00u; }
bool finite_float(float value) { return value - value == 0.0f; }

void need_finite(const sf_tensor& tensor) {
  const int64_t n = elements(tensor);
  const auto* half = static_cast<const uint16_t*>(tensor.data);
  const auto* single = static_cast<const float*>(tensor.data);
  const bool fine =
      tensor.dtype == SF_F16 ? std::all_of(half, half + n, finite_half) : std::all_of(single, single + n, finite_float);
  if (!fine) bad_tables(std::string(tensor.name) + " holds what is not a finite number");
}

// The largest magnitude of each column: without the sign, half floats are ordered like their bits.
std::vector<uint16_t> largest(const sf_tensor& halves) {
  std::vector<uint16_t> bits(static_cast<size_t>(halves.shape[1]), 0);
  const auto* value = static_cast<const uint16_t*>(halves.data);
  for (int64_t row = 0; row < halves.shape[0]; ++row)
    for (uint16_t& most : bits) most = std::max<uint16_t>(most, *value++ & 0x7fffu);
  return bits;
}

// Maximum of the parent term in a log-probability. Trained tables reach 200; drafts fail from 700 on (grow.cpp).
void need_small_terms(const sf_tensor& left, const sf_tensor& right, const sf_tensor& gates) {
  const std::vector<uint16_t> lefts = largest(left), rights = largest(right);
  const auto* gate = static_cast<const float*>(gates.data);
  for (int64_t stream = 0; stream < gates.shape[0]; ++stream) {
    double term = 0.0;
    for (size_t i = 0; i < lefts.size(); ++i)
      term += std::abs(static_cast<double>(*gate++)) * static_cast<double>(from_half(lefts[i])) *
              static_cast<double>(from_half(rights[i]));
    if (term > kMostTerm)
      bad_tables("parent_left, parent_right and gate make terms of up to " + std::to_string(term) + " for stream " +
                 std::to_string(stream) + ", at most " + std::to_string(static_cast<int64_t>(kMostTerm)) +
                 " can be meant");
  }
}

}  // namespace

Spec::Spec(const sf_spec& given)
    : capacity(given.capacity),
      vocab_size(given.vocab_size),
      num_streams(given.num_streams),
      top_k(given.top_k),
      prefill_rows(given.prefill_rows),
      stream_vocab_size(given.stream_vocab_size),
      deferred(given.deferred != 0),
      identity(given.identity == nullptr ? "" : given.identity) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const auto within = [](const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most)
      bad(std::string(name) + " must be from " + std::to_string(least) + " to " + std::to_string(most) + ", not " +
          std::to_string(value));
  };
  within("capacity", capacity, 1, kMost);
  within("vocab_size", vocab_size, 1, kMostVocabulary);
  within("prefill_rows", prefill_rows, 1, 1 << 20);
  within("num_streams", num_streams, 0, 64);
  within("top_k", top_k, 0, 4096);
  within("stream_vocab_size", stream_vocab_size, 0, vocab_size);
  within("verify_count", given.verify_count, 0, 64);
  within("stop_count", given.stop_count, 0, 1 << 16);
  if ((given.verify_count > 0 && given.verify == nullptr) || (given.stop_count > 0 && given.stop_ids == nullptr))
    bad("a list of the spec is a null pointer");
  std::copy_n(given.stop_ids, given.stop_count, std::back_inserter(stop_ids));
  for (int32_t i = 0; i < given.verify_count; ++i) {
    const sf_method& method = given.verify[i];
    if (method.name == nullptr || *method.name == 0) bad("a verify method has no name");
    const std::string name = method.name;
    if (method.keep < 1 || method.keep > method.rows || method.rows > 4096)
      bad(name + " must keep between 1 and " + std::to_string(method.rows) + " of its rows, at most 4096, not " +
          std::to_string(method.keep));
    if (method.carrying < 0 || method.carrying > method.keep)
      bad(name + " keeps " + std::to_string(method.keep) + " nodes, so " + std::to_string(method.carrying) +
          " cannot carry streams");
    verify.push_back({name, method.rows, method.keep, method.carrying});
    given_places.push_back(i);
  }
  std::sort(given_places.begin(), given_places.end(), [&](int32_t a, int32_t b) {
    const Method &x = verify[static_cast<size_t>(a)], &y = verify[static_cast<size_t>(b)];
    return x.rows != y.rows ? x.rows < y.rows : x.keep != y.keep ? x.keep < y.keep : a < b;
  });
  std::vector<Method> sorted;
  for (const int32_t place : given_places) sorted.push_back(verify[static_cast<size_t>(place)]);
  verify = std::move(sorted);
  if (identity.size() > kMostIdentity) bad("identity is longer than " + std::to_string(kMostIdentity) + " characters");
  if (num_streams > 0 && top_k < 1) bad("streams need a top_k of at least 1");
}

Tables::Tables(const Spec& spec, const sf_tensor* tensors, int32_t count) : tensors_(tensors), count_(count) {
  if (count < 0 || (count > 0 && tensors == nullptr)) bad("the list of drafting tables is a null pointer");
  for (int32_t i = 0; i < count; ++i) {
    const sf_tensor& tensor = tensors[i];
    if (tensor.name == nullptr) bad("a drafting table has no name");
    const std::string name = tensor.name;
    if (std::none_of(std::begin(kKnown), std::end(kKnown), [&](const char* known) { return name == known; }))
      bad_tables(name + " is no drafting table that this version knows");
    for (int32_t j = 0; j < i; ++j)
      if (name == tensors[j].name) bad_tables("there are two tables " + name);
    if (tensor.rank < 1 || tensor.rank > 2) bad_tables(name + " has " + std::to_string(tensor.rank) + " dimensions");
    for (int32_t d = 0; d < tensor.rank; ++d)
      if (tensor.shape[d] < 0 || tensor.shape[d] > kMostElements)
        bad_tables(name + " has the shape " + of_shape(tensor));
    if (tensor.rank == 2 && tensor.shape[1] > 0 && tensor.shape[0] > kMostElements / tensor.shape[1])
      bad_tables(name + " has the shape " + of_shape(tensor));
    const size_t item = tensor.dtype == SF_F16 ? 2 : tensor.dtype == SF_I64 ? 8 : 4;
    if (elements(tensor) > 0 && (tensor.data == nullptr || reinterpret_cast<uintptr_t>(tensor.data) % item != 0))
      bad_tables(name + " does not lie at a multiple of " + std::to_string(item) + " bytes");
  }
  read_parent_term(spec);
  if (any_of({"ngram_keys", "ngram_starts", "ngram_ids", "ngram_log_probs"})) read_ngrams(spec);
  tensors_ = nullptr;  // the list belongs to the caller
}

const sf_tensor* Tables::find(const char* name) const {
  for (int32_t i = 0; i < count_; ++i)
    if (std::strcmp(tensors_[i].name, name) == 0) return &tensors_[i];
  return nullptr;
}

bool Tables::any_of(std::initializer_list<const char*> names) const {
  return std::any_of(names.begin(), names.end(), [this](const char* name) { return find(name) != nullptr; });
}

const sf_tensor& Tables::need(const char* name, int dtype, int rank) const {
  static constexpr const char* kNames[] = {"?", "F16", "F32", "I32", "I64"};
  const sf_tensor* found = find(name);
  if (found == nullptr) bad_tables(std::string("the table ") + name + " is missing");
  if (found->dtype != dtype) bad_tables(std::string(name) + " must be of the type " + kNames[dtype]);
  if (found->rank != rank)
    bad_tables(std::string(name) + " must have " + std::to_string(rank) + " dimensions, not " +
               std::to_string(found->rank));
  return *found;
}

void Tables::read_parent_term(const Spec& spec) {
  if (const sf_tensor* given = find("calibration")) {
    const sf_tensor& ratios = need("calibration", SF_F32, 1);
    if (ratios.shape[0] != spec.num_streams)
      bad_tables("calibration has the shape " + of_shape(ratios) + ", the bundle " + std::to_string(spec.num_streams) +
                 " streams");
    const auto* values = static_cast<const float*>(given->data);
    for (int64_t i = 0; i < ratios.shape[0]; ++i) {
      if (!(values[i] >= 0.0f && values[i] <= 10.0f)) bad_tables("calibration holds a ratio that is not from 0 to 10");
      calibration.push_back(values[i]);
    }
  }
  if (!any_of({"parent_left", "parent_right", "gate", "stream_vocab"})) return;
  const sf_tensor &left = need("parent_left", SF_F16, 2), &right = need("parent_right", SF_F16, 2),
                  &gates = need("gate", SF_F32, 2), &vocab = need("stream_vocab", SF_I32, 1);
  if (left.shape[0] != spec.vocab_size)
    bad_tables("parent_left has the shape " + of_shape(left) + ", the vocabulary " + std::to_string(spec.vocab_size) +
               " tokens");
  if (left.shape[1] > 1024 || right.shape[0] != vocab.shape[0] || right.shape[1] != left.shape[1] ||
      gates.shape[1] != left.shape[1])
    bad_tables("parent_left " + of_shape(left) + ", parent_right " + of_shape(right) + ", gate " + of_shape(gates) +
               " and stream_vocab " + of_shape(vocab) + " do not belong together");
  if (gates.shape[0] != spec.num_streams && (left.shape[1] > 0 || gates.shape[0] > 0))
    bad_tables("gate has the shape " + of_shape(gates) + ", the bundle " + std::to_string(spec.num_streams) +
               " streams");
  if (spec.stream_vocab_size > 0 && vocab.shape[0] != spec.stream_vocab_size)
    bad_tables("stream_vocab lists " + std::to_string(vocab.shape[0]) + " tokens, the bundle's streams propose " +
               std::to_string(spec.stream_vocab_size));
  for (const sf_tensor* tensor : {&left, &right, &gates}) need_finite(*tensor);
  need_small_terms(left, right, gates);
  slot_of.assign(static_cast<size_t>(spec.vocab_size), -1);
  const auto* ids = static_cast<const int32_t*>(vocab.data);
  for (int64_t i = 0; i < vocab.shape[0]; ++i) {
    if (ids[i] < 0 || ids[i] >= spec.vocab_size || (i > 0 && ids[i] <= ids[i - 1]))
      bad_tables("stream_vocab is not an ascending list of tokens of the vocabulary of " +
                 std::to_string(spec.vocab_size));
    slot_of[static_cast<size_t>(ids[i])] = static_cast<int32_t>(i);
  }
  rank = left.shape[1];
  parent_left = static_cast<const uint16_t*>(left.data);
  parent_right = static_cast<const uint16_t*>(right.data);
  gate = static_cast<const float*>(gates.data);
}

void Tables::read_ngrams(const Spec& spec) {
  const sf_tensor &keys = need("ngram_keys", SF_I64, 1), &starts = need("ngram_starts", SF_I32, 1),
                  &ids = need("ngram_ids", SF_I32, 1), &probs = need("ngram_log_probs", SF_F16, 1);
  const int64_t n = keys.shape[0], m = ids.shape[0], pairs = spec.vocab_size * (spec.vocab_size + 1);
  ngram_keys = static_cast<const int64_t*>(keys.data);
  ngram_starts = static_cast<const int32_t*>(starts.data);
  ngram_ids = static_cast<const int32_t*>(ids.data);
  ngram_log_probs = static_cast<const uint16_t*>(probs.data);
  if (n > INT32_MAX - 1) bad_tables("the n-gram table has too many contexts");
  if (probs.shape[0] != m)
    bad_tables("ngram_ids " + of_shape(ids) + " and ngram_log_probs " + of_shape(probs) + " do not belong together");
  bool divides = starts.shape[0] == n + 1 && ngram_starts[0] == 0 && ngram_starts[n] == m;
  for (int64_t i = 0; divides && i < n; ++i) divides = ngram_starts[i] <= ngram_starts[i + 1];
  if (!divides)
    bad_tables("ngram_starts does not divide " + std::to_string(m) + " entries among " + std::to_string(n) +
               " contexts");
  for (int64_t i = 0; i < n; ++i) {
    if (ngram_keys[i] < 0 || (i > 0 && ngram_keys[i] <= ngram_keys[i - 1]))
      bad_tables("ngram_keys is not an ascending list of contexts");
    if (ngram_keys[i] < pairs) continue;
    const int64_t shorter = (ngram_keys[i] - pairs) / spec.vocab_size;
    if (shorter >= i) bad_tables("ngram_keys lengthens a context that does not come before it");
    if (ngram_keys[shorter] < pairs && ngram_keys[shorter] % (spec.vocab_size + 1) == 0)
      bad_tables("ngram_keys lengthens a context of one token; those of two have keys of their own");
  }
  for (int64_t i = 0; i < m; ++i) {
    if (ngram_ids[i] < 0 || ngram_ids[i] >= spec.vocab_size)
      bad_tables("ngram_ids names a token outside the vocabulary of " + std::to_string(spec.vocab_size));
    if (!(from_half(ngram_log_probs[i]) <= 0.0f && finite_half(ngram_log_probs[i])))
      bad_tables("ngram_log_probs holds what is no log-probability");
  }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t at = ngram_starts[i] + 1; at < ngram_starts[i + 1]; ++at)
      if (from_half(ngram_log_probs[at]) > from_half(ngram_log_probs[at - 1]))
        bad_tables("ngram_log_probs rises within a context; the most probable comes first");
  contexts = n;
  ngram_first.resize(static_cast<size_t>(spec.vocab_size) + 1);
  int64_t at = 0;
  for (int64_t token = 0; token <= spec.vocab_size; ++token) {
    while (at < n && ngram_keys[at] < token * (spec.vocab_size + 1)) ++at;
    ngram_first[static_cast<size_t>(token)] = static_cast<int32_t>(at);
  }
}

}  // namespace streamfuse
