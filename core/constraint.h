// Calls the caller's constraint (sf_constraint) and checks its results. Its state is the text of an answer so far.
//
// Throws Failure with the constraint's message.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "owned.h"

namespace streamfuse {

class Constraint {
 public:
  // `ends` are the tokens that end the text: allowed where the constraint's state has SF_MAY_END.
  Constraint(Owned<sf_constraint> table, int64_t vocab_size, const std::vector<int64_t>& ends);

  bool may_end() const { return has(SF_MAY_END | SF_MUST_END); }
  bool must_end() const { return has(SF_MUST_END); }
  // Whether a text that ends here at a limit is complete.
  bool is_complete() const { return may_end() && !has(SF_MAY_GROW); }
  // Whether some token may not follow; in an unrestricted state that may not end, these are the end tokens.
  bool restricts() const;
  bool is_end(int64_t token) const;

  // allowed [tokens]: 1 if the token may follow. Nothing may follow where the text must end.
  void allows(std::span<const int64_t> tokens, uint8_t* allowed) const;
  bool allows(int64_t token) const;
  // One bit per token of the vocabulary, at least one of them set, including the end tokens.
  const uint32_t* mask();
  // The tokens that must follow, at most `room`, as a view that is valid until the next such call; empty if there is a
  // choice.
  std::span<const int64_t> forced(int64_t room);

  // The choice_key of sf_constraint with its lowest bit set, or 0.
  uint64_t choice_key() const;

  // The last tokens of the text if the constraint allows exactly one token at each position and must end after them,
  // at most `room`; else none. Accepts them. No pass is needed to choose them.
  std::vector<int64_t> take_certain_end(int64_t room);

  void accept(int64_t token);
  void rollback(int64_t count);

 private:
  int32_t state() const;
  bool has(int32_t flags) const { return (state() & flags) != 0; }
  bool allows_only(int64_t token);
  bool accept_end(const std::vector<int64_t>& tokens, bool only);
  void check(int code) const;

  Owned<sf_constraint> table_;
  int64_t vocab_size_;
  std::vector<int64_t> ends_;
  int64_t accepted_ = 0;
  std::vector<uint32_t> bits_;
  std::vector<int64_t> forced_;
};

}  // namespace streamfuse
