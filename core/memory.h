// Answers of earlier texts, which look-up drafts from as it does from the text itself. All sequences of a model share
// one memory. After "SuffixDecoding" (Oliaro et al. 2024, arXiv 2411.04975): what a model wrote for one request is
// often what it writes for the next.
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
  static constexpr size_t kKey = 2;         // tokens that must match: one says little about another text
  static constexpr int64_t kContext = 8;    // tokens before an answer that are stored with it
  static constexpr int32_t kBoundary = -1;  // between two answers

  // Holds about `capacity` tokens, the latest. `path`: the file that keeps them between processes; empty: none. A file
  // of another `identity` is begun anew. Throws Failure(SF_BAD_FILE) for a file that is no memory.
  Memory(std::string path, int64_t capacity, std::string identity);

  // A conversation, or any other user whose own answers are not offered to it: its text contains them.
  uint32_t new_owner();
  // Adds an answer, with up to kContext tokens before it. The file gets it too; if that fails, it is not written again.
  void add(uint32_t owner, std::span<const int64_t> tokens);
  // Drops everything, and the file.
  void forget();

  // Locks the memory for the look-ups of one draft.
  std::unique_lock<std::mutex> lock() const { return std::unique_lock(mutex_); }
  // The place after the latest occurrence of the key, which is given last token first; 0: none. Needs the lock, as the
  // functions below.
  size_t latest(const std::array<int64_t, kKey>& key) const;
  size_t before(size_t end) const { return static_cast<size_t>(before_[end - 1]); }  // the previous occurrence; 0: none
  int64_t token(size_t place) const { return tokens_[place]; }
  uint32_t owner(size_t place) const { return owners_[place]; }

 private:
  void load();
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
  uint32_t owners_made_ = 0;
  bool file_failed_ = false;
  std::vector<int32_t> tokens_;   // answers, each followed by kBoundary
  std::vector<uint32_t> owners_;  // of each token; 0: of another process
  std::vector<int32_t> before_;   // of each place: the end of the previous occurrence of its last kKey tokens; 0: none
  std::vector<int32_t> slots_;    // hash table by key: the end of its latest occurrence; 0: free
};

}  // namespace streamfuse
