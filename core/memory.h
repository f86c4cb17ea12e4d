// Stores generated answers, so that look-up can draft from them as well as from the current text. All sequences of a
// model share one memory. After "SuffixDecoding" (Oliaro et al. 2024, arXiv 2411.04975): what a model wrote for one
// request is often what it writes for the next.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace streamfuse {

class Memory {
 public:
  static constexpr size_t kKey = 2;         // minimum length of a match: a single token predicts little in another text
  static constexpr int64_t kContext = 8;    // tokens before an answer that are stored with it
  static constexpr int32_t kBoundary = -1;  // between two answers

  // Keeps the most recent `capacity` to 1.25 * `capacity` tokens. `path`: the file that keeps them between processes;
  // empty: none. A file written for another `identity` is replaced by an empty one. Throws Failure(SF_BAD_FILE) if the
  // file is not a memory or cannot be written.
  Memory(std::string path, int64_t capacity, std::string identity, int64_t vocab_size);

  // An id for one conversation. Look-up skips entries with the caller's own id, because the text of the conversation
  // already contains them.
  uint32_t new_owner();
  // Adds an answer, with up to kContext tokens before it, also to the file. After a write error the file is left alone
  // until `forget`.
  void add(uint32_t owner, std::span<const int64_t> tokens);
  // Removes all answers and empties the file. Throws Failure(SF_BAD_FILE) if it cannot be written.
  void forget();

  // Locks the memory for the look-ups of one draft.
  std::unique_lock<std::mutex> lock() const { return std::unique_lock(mutex_); }
  // The index after the most recent occurrence of `key`, or 0. `key` is in reverse order: last token first. The caller
  // holds the lock for this and the functions below.
  size_t latest(const std::array<int64_t, kKey>& key) const;
  size_t before(size_t end) const { return static_cast<size_t>(before_[end - 1]); }  // the previous occurrence; 0: none
  int64_t token(size_t place) const { return tokens_[place]; }
  uint32_t owner(size_t place) const { return owners_[place]; }

 private:
  void load();
  bool is_valid(std::span<const int32_t> tokens) const;  // all are tokens of the vocabulary
  void push(uint32_t owner, int32_t token);
  void index(size_t place);
  bool append(uint32_t owner, std::span<const int32_t> tokens);  // true: older ones were dropped
  void drop_oldest();
  void write_file();
  void append_to_file(std::span<const int32_t> tokens);
  size_t slot(const std::array<int64_t, kKey>& key) const;

  mutable std::mutex mutex_;
  std::string path_, identity_;
  size_t capacity_;
  int64_t vocab_size_;
  uint32_t owners_made_ = 0;
  bool file_failed_ = false;
  std::vector<int32_t> tokens_;   // answers, each followed by kBoundary
  std::vector<uint32_t> owners_;  // of each token; 0: of another process
  std::vector<int32_t> before_;   // of each place: the end of the previous occurrence of its last kKey tokens; 0: none
  std::vector<int32_t> slots_;    // hash table by key: the end of its latest occurrence; 0: free
};

}  // namespace streamfuse
