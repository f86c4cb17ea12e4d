// Access to the arguments of a boxed operator. Each argument is checked before it is used, so a malformed program
// returns an error code from Method::execute instead of aborting or reading out of bounds.
#pragma once

#include <initializer_list>
#include <string>

#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/core/span.h>
#include <executorch/runtime/kernel/kernel_runtime_context.h>

#include "packed.h"
#include "prepare.h"

namespace streamfuse {

// Thrown if an operator's arguments do not fit; `why` is a one-sentence message.
struct BadArgument {
  std::string why;
};

class Arguments {
 public:
  using EValue = executorch::runtime::EValue;
  using ScalarType = executorch::aten::ScalarType;

  Arguments(executorch::runtime::Span<EValue*> stack, size_t count) : stack_(stack) {
    if (stack.size() < count) throw BadArgument{"takes " + std::to_string(count) + " arguments"};
  }

  bool absent(size_t i) const { return stack_[i]->isNone(); }

  // Refuses integers above 2^30, so that 3 * integer * size of a dimension (at most 2^31) fits into 64 bits.
  int64_t integer(size_t i, const char* name, int64_t least) const {
    constexpr int64_t kMost = int64_t{1} << 30;
    if (!stack_[i]->isInt() || stack_[i]->toInt() < least || stack_[i]->toInt() > kMost)
      throw BadArgument{std::string(name) + " must be an integer from " + std::to_string(least) + " to " +
                        std::to_string(kMost)};
    return stack_[i]->toInt();
  }

  bool flag(size_t i, const char* name) const {
    if (!stack_[i]->isBool()) throw BadArgument{std::string(name) + " must be a bool"};
    return stack_[i]->toBool();
  }

  float number(size_t i, const char* name) const {
    if (!stack_[i]->isDouble()) throw BadArgument{std::string(name) + " must be a float"};
    return static_cast<float>(stack_[i]->toDouble());
  }

  // The size of one dimension of a tensor with `rank` dimensions.
  int64_t size(size_t i, const char* name, int rank, int dimension) const {
    if (!stack_[i]->isTensor() || stack_[i]->toTensor().dim() != rank)
      throw BadArgument{std::string(name) + " must be a tensor of " + std::to_string(rank) + " dimensions"};
    return stack_[i]->toTensor().size(dimension);
  }

  // The data of a dense tensor with exactly this dtype and shape.
  template <typename T>
  const T* read(size_t i, const char* name, std::initializer_list<int64_t> shape) const {
    check(i, name, type_of(static_cast<T*>(nullptr)), shape);
    return stack_[i]->toTensor().const_data_ptr<T>();
  }
  template <typename T>
  T* write(size_t i, const char* name, std::initializer_list<int64_t> shape) const {
    check(i, name, type_of(static_cast<T*>(nullptr)), shape);
    return stack_[i]->toTensor().mutable_data_ptr<T>();
  }
  const float* optional(size_t i, const char* name, std::initializer_list<int64_t> shape) const {
    return absent(i) ? nullptr : read<float>(i, name, shape);
  }

  // A packed matrix [outputs, inputs].
  Packed weight(size_t i, const char* name, int64_t outputs, int64_t inputs) const;
  // Low-rank adapters of `parts` projections: `down` at index i, `up` at i + 1, the first adapted row at `first`.
  LowRank adapter(size_t i, size_t first, int64_t parts, int64_t outputs, int64_t inputs) const;
  // x at index 0, norm at 1, eps at 2, as in most operators; without an adapter.
  ProductInput normed_input() const;

 private:
  static ScalarType type_of(float*) { return ScalarType::Float; }
  static ScalarType type_of(int64_t*) { return ScalarType::Long; }
  static ScalarType type_of(bool*) { return ScalarType::Bool; }
  static ScalarType type_of(uint8_t*) { return ScalarType::Byte; }
  static ScalarType type_of(uint16_t*) { return ScalarType::Half; }
  static ScalarType type_of(int8_t*) { return ScalarType::Char; }
  template <typename T>
  const uint8_t* bytes(size_t i, const char* name, std::initializer_list<int64_t> shape) const {
    return reinterpret_cast<const uint8_t*>(read<T>(i, name, shape));
  }
  void check(size_t i, const char* name, ScalarType dtype, std::initializer_list<int64_t> shape) const;

  executorch::runtime::Span<EValue*> stack_;
};

}  // namespace streamfuse
