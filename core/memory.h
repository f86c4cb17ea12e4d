// Stores generated answers, so that look-up can draft from them as well as from the current text. All sequences of a
// model share one memory. After "SuffixDecoding" (Oliaro et al. 2024, arXiv 2411.04975): what a model wrote for one
// request is often what it writes for the next.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "atomic_file.h"
#include "suffix_index.h"

namespace streamfuse {

class Memory {
 public:
  static constexpr size_t kShortest = 2;  // minimum match: a single token predicts little in another text
  static constexpr int64_t kContext = 8;  // tokens before an answer that are stored with it

  // Keeps the most recent `capacity` to 1.25 * `capacity` tokens. `path`: the file that keeps them between processes;
  // empty: none. A file written for another `identity` is replaced by an empty one. Throws Failure(SF_BAD_FILE) if the
  // file is not a memory, cannot be written, or is held by another process for longer than 2 s.
  Memory(const std::string& path, int64_t capacity, std::string identity, int64_t vocab_size);

  // Adds an answer, with up to kContext tokens before it, to the memory and to the file, and reads what other processes
  // have added to the file. If another process holds the file for longer than 2 s, the answer is in RAM only. After
  // an error of the file, the file is not used until `forget`.
  void add(std::span<const int64_t> tokens);
  // Removes all answers, and empties the file and the answer files named FILE.NAME (those of a model's adapters), open
  // or not. Needs no disk space. Throws Failure(SF_BAD_FILE), after all were tried, for the first that failed.
  void forget();

  // Locks the memory for one look-up. The caller holds the lock for the functions below.
  std::unique_lock<std::mutex> lock() const { return std::unique_lock(mutex_); }
  const SuffixIndex& answers() const { return answers_; }            // each followed by a boundary
  uint32_t answer(size_t place) const { return answer_of_[place]; }  // a hash of the answer that a place is in
  // The hashes of all answers that a text contains, ascending.
  void find_in(const SuffixIndex& text, std::vector<uint32_t>& found) const;

 private:
  bool is_valid(std::span<const int32_t> tokens) const;  // all are tokens of the vocabulary
  // The last tokens of an answer, as many as the memory has room for; none if they are too few to match.
  std::span<const int32_t> fitting(std::span<const int32_t> answer) const;
  bool is_in(const SuffixIndex& text, size_t begin, size_t end) const;
  bool append(std::span<const int32_t> tokens);  // true: older answers were dropped
  void rebuild(size_t first, size_t capacity);
  bool read_file();
  void replace_file();
  void empty_own_file();
  void append_to_file(std::span<const int32_t> tokens);

  std::mutex file_mutex_;     // guards the file; whoever changes the answers takes it before `mutex_`
  mutable std::mutex mutex_;  // guards the answers; not held while waiting for the file's lock, writing or flushing
  std::string path_, identity_;
  size_t capacity_, limit_;  // tokens: the most that are kept when answers are dropped; the most at any time
  int64_t vocab_size_;
  SuffixIndex answers_;
  size_t room_ = 0;  // tokens that `answers_` has room for
  std::vector<uint32_t> answer_of_;

  LockedFile file_;
  size_t read_to_ = 0;  // bytes of the file that are in `answers_`
  bool file_failed_ = false;
};

}  // namespace streamfuse
