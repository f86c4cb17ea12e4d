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
    separate();
    out_ << bracket;
    first_ = true;
  }
  void close(char bracket) {
    out_ << bracket;
    first_ = false;
  }
  void key(const char* name) { separate(), out_ << json_string(name) << ": ", first_ = true; }
  void value(double number) { std::isfinite(number) ? (separate(), void(out_ << number)) : null(); }
  void value(int64_t number) { separate(), out_ << number; }
  void value(bool yes) { separate(), out_ << (yes ? "true" : "false"); }
  void value(const char* sentence) { sentence == nullptr ? null() : (separate(), void(out_ << json_string(sentence))); }
  void null() { separate(), out_ << "null"; }
  template <typename T>
  void member(const char* name, T number) {
    key(name), value(number);
  }
  std::string done() const { return out_.str(); }

 private:
  void separate() {
    if (!first_) out_ << ", ";
    first_ = false;
  }
  std::ostringstream out_;
  bool first_ = true;
};

}  // namespace streamfuse
