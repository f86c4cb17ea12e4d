// Writes JSON.
#pragma once

#include <cmath>
#include <locale>
#include <sstream>

#include "json_string.h"

namespace streamfuse {

// Writes JSON, members separated by ", "; numbers do not depend on the locale, and a non-finite number is null.
class JsonWriter {
 public:
  JsonWriter() {
    out_.imbue(std::locale::classic());
    out_.precision(15);
  }
  void open(char bracket) {
    put(bracket);
    first_ = true;
  }
  void close(char bracket) {
    out_ << bracket;
    first_ = false;
  }
  void key(const char* name) {
    put(json_string(name));
    out_ << ": ";
    first_ = true;
  }
  void value(double number) { std::isfinite(number) ? put(number) : null(); }
  void value(int64_t number) { put(number); }
  void value(bool yes) { put(yes ? "true" : "false"); }
  void value(const char* sentence) { sentence == nullptr ? null() : put(json_string(sentence)); }
  void null() { put("null"); }
  template <typename T>
  void member(const char* name, T number) {
    key(name);
    value(number);
  }
  std::string done() const { return out_.str(); }

 private:
  template <typename T>
  void put(const T& text) {
    if (!first_) out_ << ", ";
    out_ << text;
    first_ = false;
  }
  std::ostringstream out_;
  bool first_ = true;
};

}  // namespace streamfuse
