// Reads tables of a flatbuffer without generated code (https://flatbuffers.dev/internals). Every access is checked
// against the bounds of the file.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>

namespace streamfuse::flatbuffer {

struct Damaged : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Bytes = std::span<const uint8_t>;

template <typename T>
T number_at(Bytes bytes, uint64_t place) {
  if (place > bytes.size() || bytes.size() - place < sizeof(T)) throw Damaged("an offset leaves the file");
  T value;
  std::memcpy(&value, bytes.data() + place, sizeof(T));
  return value;
}

class Table;

// A vector of numbers, or with `table` of tables, whose offsets are relative to their own position.
template <typename T>
class Vector {
 public:
  Vector() = default;
  Vector(Bytes bytes, uint64_t place) : bytes_(bytes), first_(place + 4), size_(number_at<uint32_t>(bytes, place)) {
    if (first_ > bytes.size() || (bytes.size() - first_) / sizeof(T) < size_) throw Damaged("a list leaves the file");
  }
  uint32_t size() const { return size_; }
  T operator[](uint32_t i) const {
    if (i >= size_) throw Damaged("a list is too short");
    return number_at<T>(bytes_, first_ + uint64_t{i} * sizeof(T));
  }
  Table table(uint32_t i) const;

 private:
  Bytes bytes_;
  uint64_t first_ = 0;
  uint32_t size_ = 0;
};

// Fields are numbered as in the schema; the type of a union is a field of its own.
class Table {
 public:
  static Table root(Bytes bytes) { return {bytes, number_at<uint32_t>(bytes, 0)}; }
  Table(Bytes bytes, uint64_t place) : bytes_(bytes), place_(place) {
    const int64_t back = number_at<int32_t>(bytes, place);
    if (back > static_cast<int64_t>(place)) throw Damaged("an offset leaves the file");
    names_ = static_cast<uint64_t>(static_cast<int64_t>(place) - back);
    names_size_ = number_at<uint16_t>(bytes, names_);
  }
  template <typename T>
  T number(int field, T otherwise = 0) const {
    const auto place = find(field);
    return place ? number_at<T>(bytes_, *place) : otherwise;
  }
  std::optional<Table> table(int field) const {
    const auto place = target(field);
    return place ? std::optional<Table>(Table(bytes_, *place)) : std::nullopt;
  }
  // Empty if the field is missing, as the schema defines.
  template <typename T>
  Vector<T> list(int field) const {
    const auto place = target(field);
    return place ? Vector<T>(bytes_, *place) : Vector<T>();
  }
  bool has(int field) const { return find(field).has_value(); }
  std::optional<std::string_view> text(int field) const {
    const auto place = target(field);
    if (!place) return std::nullopt;
    const Vector<char> letters(bytes_, *place);
    if (number_at<char>(bytes_, *place + 4 + letters.size()) != 0) throw Damaged("a name has no end");
    return std::string_view(reinterpret_cast<const char*>(bytes_.data()) + *place + 4, letters.size());
  }

 private:
  std::optional<uint64_t> find(int field) const {
    const uint64_t entry = 4 + 2 * static_cast<uint64_t>(field);
    if (entry + 2 > names_size_) return std::nullopt;
    const uint16_t offset = number_at<uint16_t>(bytes_, names_ + entry);
    return offset == 0 ? std::nullopt : std::optional<uint64_t>(place_ + offset);
  }
  std::optional<uint64_t> target(int field) const {
    const auto place = find(field);
    return place ? std::optional<uint64_t>(*place + number_at<uint32_t>(bytes_, *place)) : std::nullopt;
  }

  Bytes bytes_;
  uint64_t place_, names_;
  uint16_t names_size_;
};

template <typename T>
Table Vector<T>::table(uint32_t i) const {
  return {bytes_, first_ + uint64_t{i} * sizeof(T) + (*this)[i]};
}

}  // namespace streamfuse::flatbuffer
