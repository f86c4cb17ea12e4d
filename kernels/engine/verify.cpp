#include "verify.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "error.h"
#include "flatbuffer.h"
#include "streamfuse_engine.h"

namespace streamfuse {
namespace {

using flatbuffer::Damaged;
using flatbuffer::Table;
using flatbuffer::Vector;

// The operator that updates one of its inputs in place, and this input (ops/register.cpp).
constexpr std::string_view kUpdatesStates = "streamfuse::gated_delta_rule";
constexpr uint32_t kStatesArgument = 6;

// Field numbers in executorch/schema/program.fbs.
namespace field {
constexpr int kProgramPlans = 1;
constexpr int kPlanName = 0, kPlanValues = 2, kPlanInputs = 3, kPlanOutputs = 4, kPlanChains = 5, kPlanOperators = 6,
              kPlanDelegates = 7, kPlanBufferSizes = 8;
constexpr int kValueType = 0, kValue = 1;
constexpr int kChainInstructions = 2, kInstructionType = 0, kInstruction = 1;
constexpr int kOperatorName = 0, kOperatorOverload = 1;
constexpr int kDelegateId = 0, kDelegateProcessed = 1, kDelegateSpecs = 2, kSpecKey = 0, kSpecValue = 1;
constexpr int kTensorType = 0, kTensorSizes = 2, kTensorOrder = 3, kTensorBuffer = 5, kTensorPlace = 6,
              kTensorDynamism = 8, kPlaceBuffer = 0, kPlaceLow = 1, kPlaceHigh = 2;
constexpr int kItems = 0, kStringText = 0;
}  // namespace field

enum ValueType {
  kNoValue,
  kNull,
  kInt,
  kBool,
  kDouble,
  kTensor,
  kString,
  kIntList,
  kDoubleList,
  kBoolList,
  kTensorList,
  kOptionalTensorList
};
enum InstructionType { kNoInstruction, kKernelCall, kDelegateCall, kMoveCall, kJumpFalseCall, kFreeCall };

constexpr int64_t kMostBytes = int64_t{1} << 40;  // of a tensor or a planned buffer
constexpr uint32_t kMostDimensions = 16;
constexpr int kStatic = 0, kBounded = 1;

void need(bool sound, const std::string& what) {
  if (!sound) throw Damaged(what);
}

std::string number(const char* what, uint64_t i) { return std::string(what) + " " + std::to_string(i); }

int64_t bytes_of_type(int type) {
  switch (type) {
    case 0:
    case 1:
    case 11:
      return 1;  // bytes, bool
    case 2:
    case 5:
    case 15:
      return 2;  // short, half, bfloat16
    case 3:
    case 6:
      return 4;  // int, float
    case 4:
    case 7:
      return 8;  // long, double
    default:
      throw Damaged("an unsupported dtype");
  }
}

bool is_plain(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  };
  return !name.empty() && std::all_of(name.begin(), name.end(), plain);
}

class Plan {
 public:
  explicit Plan(const Table& plan)
      : plan_(plan),
        values_(plan.list<uint32_t>(field::kPlanValues)),
        operators_(plan.list<uint32_t>(field::kPlanOperators)),
        delegates_(plan.list<uint32_t>(field::kPlanDelegates)),
        buffers_(plan.list<int64_t>(field::kPlanBufferSizes)) {}

  void verify() const {
    for (uint32_t i = 0; i < buffers_.size(); ++i)
      need(buffers_[i] >= 0 && buffers_[i] <= kMostBytes, number("planned buffer", i) + " has an invalid size");
    for (uint32_t i = 0; i < values_.size(); ++i) within(number("value", i), [&] { verify_value(i); });
    for (const int list : {field::kPlanInputs, field::kPlanOutputs}) {
      const Vector<int32_t> places = plan_.list<int32_t>(list);
      for (uint32_t i = 0; i < places.size(); ++i) {
        const std::string what = number(list == field::kPlanInputs ? "input" : "output", i);
        need_value(places[i], what);
        need(!is_constant(places[i]), what + " is a constant");
      }
    }
    for (uint32_t i = 0; i < operators_.size(); ++i) {
      const Table call = operators_.table(i);
      need(call.text(field::kOperatorName) && call.text(field::kOperatorOverload),
           number("operator", i) + " has no name");
    }
    for (uint32_t i = 0; i < delegates_.size(); ++i)
      within(number("delegate", i), [&] { verify_delegate(delegates_.table(i)); });
    const Vector<uint32_t> chains = plan_.list<uint32_t>(field::kPlanChains);
    need(chains.size() > 0, "it has no instructions");
    for (uint32_t chain = 0; chain < chains.size(); ++chain) {
      const Vector<uint32_t> instructions = chains.table(chain).list<uint32_t>(field::kChainInstructions);
      for (uint32_t i = 0; i < instructions.size(); ++i)
        within(number("instruction", i), [&] { verify_instruction(instructions.table(i), i, instructions.size()); });
    }
  }

 private:
  template <typename Body>
  static void within(const std::string& what, Body body) {
    try {
      body();
    } catch (const Damaged& damage) {
      throw Damaged(what + ": " + damage.what());
    }
  }

  void need_value(int64_t index, const std::string& what) const {
    need(index >= 0 && index < values_.size(),
         what + " names value " + std::to_string(index) + " of " + std::to_string(values_.size()));
  }
  int type_of(int64_t index) const {
    return values_.table(static_cast<uint32_t>(index)).number<uint8_t>(field::kValueType);
  }
  Table value(int64_t index) const { return *values_.table(static_cast<uint32_t>(index)).table(field::kValue); }
  bool is_constant(int64_t index) const {
    return type_of(index) == kTensor && value(index).number<uint32_t>(field::kTensorBuffer) != 0;
  }

  void verify_value(uint32_t index) const {
    const Table value = values_.table(index);
    const int type = value.number<uint8_t>(field::kValueType);
    need(type > kNoValue && type <= kOptionalTensorList, "an unknown type of value");
    const std::optional<Table> content = value.table(field::kValue);
    need(content.has_value(), "it is missing");
    if (type == kTensor) verify_tensor(*content);
    if (type == kString) need(content->text(field::kStringText).has_value(), "a text is missing");
    const auto verify_items = [&](const auto items, int64_t least, std::initializer_list<int> types) {
      for (uint32_t i = 0; i < items.size(); ++i) {
        if (items[i] == least && least < 0) continue;  // an absent optional tensor
        need_value(items[i], number("item", i));
        bool fits = false;
        for (const int known : types) fits = fits || type_of(items[i]) == known;
        need(fits, number("item", i) + " has the wrong type");
      }
    };
    if (type >= kIntList) need(content->has(field::kItems), "a list is missing");
    if (type == kIntList) verify_items(content->list<int64_t>(field::kItems), 0, {kInt, kNull});
    if (type == kTensorList) verify_items(content->list<int32_t>(field::kItems), 0, {kTensor});
    if (type == kOptionalTensorList) verify_items(content->list<int32_t>(field::kItems), -1, {kTensor, kNull});
  }

  void verify_tensor(const Table& tensor) const {
    const Vector<int32_t> sizes = tensor.list<int32_t>(field::kTensorSizes);
    const Vector<uint8_t> order = tensor.list<uint8_t>(field::kTensorOrder);
    need(tensor.has(field::kTensorSizes) && tensor.has(field::kTensorOrder), "its shape is missing");
    need(sizes.size() == order.size() && sizes.size() <= kMostDimensions, "its shape and order have different lengths");
    const int64_t item = bytes_of_type(tensor.number<int8_t>(field::kTensorType));
    int64_t bytes = item;
    uint32_t seen = 0;
    for (uint32_t d = 0; d < sizes.size(); ++d) {
      need(sizes[d] >= 0, number("dimension", d) + " is negative");
      need(order[d] < sizes.size() && !(seen >> order[d] & 1), "its order of dimensions is invalid");
      seen |= uint32_t{1} << order[d];
      need(sizes[d] == 0 || bytes <= kMostBytes / sizes[d], "it is too large");
      bytes *= sizes[d];
    }
    const int dynamism = tensor.number<int8_t>(field::kTensorDynamism);
    need(dynamism == kStatic || dynamism == kBounded, "its shape is unbounded");
    if (const std::optional<Table> place = tensor.table(field::kTensorPlace)) {
      const uint32_t buffer = place->number<uint32_t>(field::kPlaceBuffer);
      need(buffer >= 1 && buffer < buffers_.size(), number("there is no planned buffer", buffer));
      const uint64_t begin = begin_of(*place);
      const uint64_t size = static_cast<uint64_t>(buffers_[buffer]);
      need(begin <= size && static_cast<uint64_t>(bytes) <= size - begin, "it exceeds its planned buffer");
      need(begin % static_cast<uint64_t>(item) == 0, "it is not aligned to its item size");
    }
  }

  static void verify_delegate(const Table& delegate) {
    need(delegate.text(field::kDelegateId).has_value(), "it has no name");
    need(delegate.table(field::kDelegateProcessed).has_value(), "it has no data");
    need(delegate.has(field::kDelegateSpecs), "it has no list of options");
    const Vector<uint32_t> specs = delegate.list<uint32_t>(field::kDelegateSpecs);
    for (uint32_t i = 0; i < specs.size(); ++i)
      need(specs.table(i).text(field::kSpecKey) && specs.table(i).has(field::kSpecValue),
           number("option", i) + " has no name or value");
  }

  void verify_arguments(const Table& call, int64_t index, uint32_t known, const char* what) const {
    need(index >= 0 && index < known,
         std::string("it calls ") + what + " " + std::to_string(index) + " of " + std::to_string(known));
    const Vector<int32_t> arguments = call.list<int32_t>(1);
    need(call.has(1), "it has no list of arguments");
    for (uint32_t i = 0; i < arguments.size(); ++i) need_value(arguments[i], number("argument", i));
  }

  // The last arguments of an out variant are the tensors that it writes and its return values, which are those tensors.
  void verify_results(const Vector<int32_t>& arguments, std::string_view overload) const {
    if (!overload.ends_with("out") && overload != "values") return verify_returned(arguments);
    const uint32_t count = arguments.size();
    need(count >= 2, "it has too few arguments");
    const int32_t returned = arguments[count - 1], before = arguments[count - 2];
    if (type_of(returned) == kTensor) return verify_result(arguments, count - 2, before, returned);
    need(type_of(returned) == kTensorList, "it returns no tensor");
    const Vector<int32_t> items = value(returned).list<int32_t>(field::kItems);
    if (type_of(before) == kTensorList) {
      const Vector<int32_t> written = value(before).list<int32_t>(field::kItems);
      need(written.size() == items.size(), "it returns other tensors than it writes");
      for (uint32_t i = 0; i < items.size(); ++i) verify_result(arguments, count - 2, written[i], items[i]);
      return;
    }
    need(items.size() < count, "it has too few arguments");
    const uint32_t inputs = count - 1 - items.size();
    for (uint32_t i = 0; i < items.size(); ++i) verify_result(arguments, inputs, arguments[inputs + i], items[i]);
  }

  // Of other overloads, which may write to the tensors that they return.
  void verify_returned(const Vector<int32_t>& arguments) const {
    if (arguments.size() == 0) return;
    const int32_t returned = arguments[arguments.size() - 1];
    need(!is_constant(returned), "it returns a constant");
    if (type_of(returned) != kTensorList && type_of(returned) != kOptionalTensorList) return;
    const Vector<int32_t> items = value(returned).list<int32_t>(field::kItems);
    for (uint32_t i = 0; i < items.size(); ++i) need(items[i] < 0 || !is_constant(items[i]), "it returns a constant");
  }

  // Constants are in read-only memory. The first `inputs` arguments may be read after results are written, so they must
  // not overlap: an operator that checks an index before using it must read the same index again.
  void verify_result(const Vector<int32_t>& arguments, uint32_t inputs, int32_t written, int32_t returned) const {
    need(written == returned, "it returns another tensor than it writes");
    need(!is_constant(written), "it writes to a constant");
    const std::optional<Place> result = place_of(written);
    if (!result) return;
    for (uint32_t i = 0; i < inputs; ++i) {
      const int type = type_of(arguments[i]);
      if (type == kTensor)
        need(!overlap(*result, place_of(arguments[i])), "its result overlaps " + number("argument", i));
      if (type != kTensorList && type != kOptionalTensorList) continue;
      const Vector<int32_t> items = value(arguments[i]).list<int32_t>(field::kItems);
      for (uint32_t j = 0; j < items.size(); ++j)
        if (items[j] >= 0) need(!overlap(*result, place_of(items[j])), "its result overlaps " + number("argument", i));
    }
  }

  // An input that its operator updates in place.
  void verify_updated(const Vector<int32_t>& arguments, uint32_t updated) const {
    need(arguments.size() > updated, "it has too few arguments");
    const int32_t states = arguments[updated];
    need(!is_constant(states), "it writes to a constant");
    for (uint32_t i = 0; i < arguments.size(); ++i) {
      const std::optional<Place> place = i == updated ? std::nullopt : place_of(states);
      need(!place || !overlap(*place, place_of(arguments[i])), "its states overlap " + number("argument", i));
    }
  }

  // The bytes of a tensor in its planned buffer.
  struct Place {
    uint32_t buffer;
    uint64_t begin, end;
  };
  std::optional<Place> place_of(int32_t index) const {
    if (type_of(index) != kTensor) return std::nullopt;
    const Table tensor = value(index);
    const std::optional<Table> place = tensor.table(field::kTensorPlace);
    if (!place) return std::nullopt;
    uint64_t bytes = static_cast<uint64_t>(bytes_of_type(tensor.number<int8_t>(field::kTensorType)));
    const Vector<int32_t> sizes = tensor.list<int32_t>(field::kTensorSizes);
    for (uint32_t d = 0; d < sizes.size(); ++d) bytes *= static_cast<uint64_t>(sizes[d]);
    const uint64_t begin = begin_of(*place);
    return Place{place->number<uint32_t>(field::kPlaceBuffer), begin, begin + bytes};
  }
  static uint64_t begin_of(const Table& place) {
    return uint64_t{place.number<uint32_t>(field::kPlaceHigh)} << 32 | place.number<uint32_t>(field::kPlaceLow);
  }
  static bool overlap(const Place& a, const std::optional<Place>& b) {
    return b && a.buffer == b->buffer && a.begin < b->end && b->begin < a.end;
  }

  void verify_instruction(const Table& instruction, uint32_t index, uint32_t count) const {
    const int type = instruction.number<uint8_t>(field::kInstructionType);
    const std::optional<Table> call = instruction.table(field::kInstruction);
    need(call.has_value(), "it is missing");
    const int32_t first = call->number<int32_t>(0);
    switch (type) {
      case kKernelCall:
        verify_arguments(*call, first, operators_.size(), "operator");
        if (operators_.table(first).text(field::kOperatorName) == kUpdatesStates)
          verify_updated(call->list<int32_t>(1), kStatesArgument);
        return verify_results(call->list<int32_t>(1), *operators_.table(first).text(field::kOperatorOverload));
      case kDelegateCall:
        return verify_arguments(*call, first, delegates_.size(), "delegate");
      case kJumpFalseCall:
        need_value(first, "it");
        return need(call->number<int32_t>(1) > static_cast<int64_t>(index) &&
                        call->number<int32_t>(1) <= static_cast<int64_t>(count),
                    "it jumps backwards, which may loop forever, or out of its chain");
      default:  // also instructions that replace or free a value, which would change what was checked
        throw Damaged("an unsupported type of instruction");
    }
  }

  Table plan_;
  Vector<uint32_t> values_, operators_, delegates_;
  Vector<int64_t> buffers_;
};

}  // namespace

void verify_program(const std::string& path, std::span<const uint8_t> file) {
  std::string where = path;
  try {
    const Vector<uint32_t> plans = Table::root(file).list<uint32_t>(field::kProgramPlans);
    for (uint32_t i = 0; i < plans.size(); ++i) {
      const Table plan = plans.table(i);
      const std::optional<std::string_view> name = plan.text(field::kPlanName);
      need(name.has_value() && is_plain(*name), number("method", i) + " has an invalid name");
      where = path + ": method " + std::string(*name);
      Plan(plan).verify();
    }
  } catch (const Damaged& damage) {
    throw Failure(SF_BAD_PROGRAM, where + " is damaged: " + damage.what());
  }
}

bool calls_operators(std::span<const uint8_t> file, std::string_view prefix) {
  const Vector<uint32_t> plans = Table::root(file).list<uint32_t>(field::kProgramPlans);
  for (uint32_t i = 0; i < plans.size(); ++i) {
    const Vector<uint32_t> operators = plans.table(i).list<uint32_t>(field::kPlanOperators);
    for (uint32_t j = 0; j < operators.size(); ++j)
      if (operators.table(j).text(field::kOperatorName).value_or("").starts_with(prefix)) return true;
  }
  return false;
}

}  // namespace streamfuse
