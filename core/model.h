// The specification of a bundle and its drafting tables, checked; immutable and shared by sessions.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "streamfuse_core.h"

namespace streamfuse {

constexpr size_t kMostIdentity = 4096;          // characters of a bundle's identity
constexpr int64_t kMostVocabulary = 4'194'304;  // tokens; tables and sequences allocate memory for each

struct Method {
  std::string name;
  int64_t rows = 1, keep = 1, carrying = 0;
};

struct Spec {
  explicit Spec(const sf_spec& given);  // throws Failure(SF_BAD_ARGUMENT)
  int64_t capacity, vocab_size, num_streams, top_k, prefill_rows, stream_vocab_size;
  bool deferred;
  std::vector<Method> verify;  // narrowest first
  std::vector<int64_t> stop_ids;
  std::string identity;
  std::vector<int32_t> given_places;  // for each of `verify`, its index in the caller's spec

  int64_t widest() const { return verify.empty() ? 1 : verify.back().rows; }
  // Index of `verify_1` if it has streams: a plain pass that also computes the streams of the next step. -1: none.
  int64_t carrier() const { return verify.size() > 1 && verify[0].rows == 1 && verify[0].carrying > 0 ? 0 : -1; }
};

// The parent term, the n-gram table, and the calibration that the exporter measured. Pointers refer to the caller's
// memory. Throws Failure(SF_BAD_TABLES) unless every shape, range and order is valid, so that later reads stay in
// bounds.
class Tables {
 public:
  Tables(const Spec& spec, const sf_tensor* tensors, int32_t count);

  int64_t rank = 0;                        // of the parent term; 0: off
  const uint16_t* parent_left = nullptr;   // float16 [vocab_size, rank]
  const uint16_t* parent_right = nullptr;  // float16 [slots, rank]
  const float* gate = nullptr;             // [num_streams, rank]
  std::vector<int32_t> slot_of;            // [vocab_size]: row of parent_right; -1 outside the stream vocabulary
  std::vector<double> calibration;         // [num_streams] hits per predicted hit at each depth, or empty

  int64_t contexts = 0;                       // number of contexts in the n-gram table; 0: there is no table
  const int64_t* ngram_keys = nullptr;        // [contexts], ascending: docs/contracts.md
  const int32_t* ngram_starts = nullptr;      // [contexts + 1]
  const int32_t* ngram_ids = nullptr;         // most probable first
  const uint16_t* ngram_log_probs = nullptr;  // float16, natural logarithm
  std::vector<int32_t>
      ngram_first;  // [vocab_size + 1]: where the contexts of each last token begin; those of three and more

 private:
  void read_parent_term(const Spec& spec);
  void read_ngrams(const Spec& spec);
  const sf_tensor* find(const char* name) const;
  bool any_of(std::initializer_list<const char*> names) const;
  const sf_tensor& need(const char* name, int dtype, int rank) const;

  const sf_tensor* tensors_;
  int32_t count_;
};

// Measured costs by device, so that one session measures for all sessions of a model. Thread-safe.
class DeviceCosts {
 public:
  // As Costs::table; empty if not known, or if the device has no name.
  std::vector<double> find(const std::string& device) const {
    const std::lock_guard lock(mutex_);
    const auto found = ms_.find(device);
    return found == ms_.end() ? std::vector<double>() : found->second;
  }
  void keep(const std::string& device, std::vector<double> ms) {
    const std::lock_guard lock(mutex_);
    if (!device.empty()) ms_[device] = std::move(ms);
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::vector<double>> ms_;
};

struct Model {
  Model(const sf_spec& spec, const sf_tensor* tensors, int32_t count)
      : spec(spec), tables(this->spec, tensors, count) {}
  Spec spec;
  Tables tables;
  mutable DeviceCosts costs_of_device;
};

}  // namespace streamfuse
