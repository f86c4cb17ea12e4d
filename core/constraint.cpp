#include "rounding.h"

#include "constraint.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "error.h"

namespace streamfuse {
namespace {

constexpr int64_t kLongestEnd = 4;  // tokens, of closing brackets for example

}  // namespace

Constraint::Constraint(Owned<sf_constraint> table, int64_t vocab_size, const std::vector<int64_t>& ends)
    : table_(std::move(table)), vocab_size_(vocab_size) {
  for (const int64_t token : ends)
    if (token >= 0 && token < vocab_size) ends_.push_back(token);  // a caller's stop tokens may be any
  if (table_->accept == nullptr || table_->rollback == nullptr || table_->state == nullptr ||
      table_->allows == nullptr || table_->mask == nullptr || table_->forced == nullptr)
    bad("a constraint needs accept, rollback, state, allows, mask and forced");
  bits_.resize(static_cast<size_t>((vocab_size + 31) / 32));
}

void Constraint::check(int code) const {
  if (code == SF_OK) return;
  const char* why = table_->error == nullptr ? nullptr : table_->error(table_->context);
  throw Failure(failure_code(code), why == nullptr || *why == 0 ? "the constraint failed without a message" : why);
}

int32_t Constraint::state() const {
  int32_t state = 0;
  check(table_->state(table_->context, &state));
  return state;
}

bool Constraint::restricts() const {
  constexpr int32_t kFree = SF_UNRESTRICTED | SF_MAY_END;
  return (state() & kFree) != kFree;
}

bool Constraint::is_end(int64_t token) const { return std::find(ends_.begin(), ends_.end(), token) != ends_.end(); }

void Constraint::allows(std::span<const int64_t> tokens, uint8_t* allowed) const {
  std::fill_n(allowed, tokens.size(), uint8_t{0});
  if (tokens.empty() || must_end()) return;
  check(table_->allows(table_->context, tokens.data(), static_cast<int32_t>(tokens.size()), allowed));
  for (size_t i = 0; i < tokens.size(); ++i)
    if (is_end(tokens[i])) allowed[i] = may_end();
}

bool Constraint::allows(int64_t token) const {
  uint8_t allowed = 0;
  allows({&token, 1}, &allowed);
  return allowed != 0;
}

const uint32_t* Constraint::mask() {
  std::fill(bits_.begin(), bits_.end(), 0u);
  check(table_->mask(table_->context, bits_.data()));
  if (vocab_size_ % 32 != 0) bits_.back() &= (1u << (vocab_size_ % 32)) - 1;
  const bool ends = may_end();
  for (const int64_t token : ends_) {
    uint32_t& word = bits_[static_cast<size_t>(token / 32)];
    const uint32_t bit = 1u << (token % 32);
    word = ends ? word | bit : word & ~bit;
  }
  if (std::all_of(bits_.begin(), bits_.end(), [](uint32_t word) { return word == 0; }))
    throw Failure(SF_BAD_GRAMMAR, "the grammar allows no token of this vocabulary after the first " +
                                      std::to_string(accepted_) + " tokens of the text, and the text may not end");
  return bits_.data();
}

std::span<const int64_t> Constraint::forced(int64_t room) {
  forced_.resize(static_cast<size_t>(room));
  int32_t count = 0;
  check(table_->forced(table_->context, forced_.data(), static_cast<int32_t>(room), &count));
  if (count < 0 || count > room) throw Failure(SF_BROKEN, "the constraint forces more tokens than there is room for");
  for (int32_t i = 0; i < count; ++i) {
    const int64_t token = forced_[static_cast<size_t>(i)];
    if (token < 0 || token >= vocab_size_)
      throw Failure(SF_BROKEN, "the constraint forces a token outside the vocabulary");
    if (is_end(token)) count = i;
  }
  return {forced_.data(), static_cast<size_t>(count)};
}

std::vector<int64_t> Constraint::take_certain_end(int64_t room) {
  std::vector<int64_t> found;
  try {
    const std::span<const int64_t> forced = this->forced(kLongestEnd + 1);
    found.assign(forced.begin(), forced.end());
  } catch (const Failure&) {  // as in a draft
  }
  if (found.empty() || static_cast<int64_t>(found.size()) > std::min(room, kLongestEnd)) return {};
  // A mask of the vocabulary costs more than accepting these tokens, so it is needed only if they end the text.
  if (!accept_end(found, false)) return {};
  rollback(static_cast<int64_t>(found.size()));
  return accept_end(found, true) ? found : std::vector<int64_t>{};
}

// Accepts the tokens if the text must end after them and, if `only`, no others may follow; else none.
bool Constraint::accept_end(const std::vector<int64_t>& tokens, bool only) {
  int64_t count = 0;
  bool ends;
  try {
    for (; count < static_cast<int64_t>(tokens.size()); ++count) {
      const int64_t token = tokens[static_cast<size_t>(count)];
      if (only && !allows_only(token)) break;
      accept(token);
    }
    ends = count == static_cast<int64_t>(tokens.size()) && must_end();
  } catch (const Failure&) {  // of a token that the model may not choose
    ends = false;
  }
  if (!ends) rollback(count);
  return ends;
}

bool Constraint::allows_only(int64_t token) {
  const uint32_t* allowed = mask();
  int count = 0;
  for (size_t i = 0; i < bits_.size(); ++i) count += std::popcount(allowed[i]);
  return count == 1 && (allowed[token / 32] >> (token % 32) & 1) != 0;
}

uint64_t Constraint::choice_key() const {
  if (table_->choice_key == nullptr) return 0;
  uint64_t key = 0;
  check(table_->choice_key(table_->context, &key));
  return key == 0 ? 0 : key | 1;
}

void Constraint::accept(int64_t token) {
  check(table_->accept(table_->context, token));
  ++accepted_;
}

void Constraint::rollback(int64_t count) {
  if (count == 0) return;
  check(table_->rollback(table_->context, static_cast<int32_t>(count)));
  accepted_ -= count;
}

}  // namespace streamfuse
