// The boundary of a C interface: turns exceptions into an error code and a one-line message on the handle, and computes
// with the default floating-point state, whatever that of the caller is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "error.h"
#include "float_state.h"
#include "streamfuse_core.h"

namespace streamfuse {

// The length in bytes of the UTF-8 character at the beginning of `text`; 0 if it is malformed.
inline size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const uint8_t first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  const size_t size = first >= 0xc2 && first < 0xe0   ? 2
                      : first >= 0xe0 && first < 0xf0 ? 3
                      : first >= 0xf0 && first < 0xf5 ? 4
                                                      : 0;
  for (size_t i = 1; i < size; ++i)
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  // Overlong encodings, surrogates, and values above the last code point.
  const bool wrong = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                     (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return wrong ? 0 : size;
}

// A message may quote a file: malformed UTF-8 becomes '?', and line ends and other control characters become spaces.
inline std::string one_line(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const size_t size = character_bytes(text);
    const uint8_t first = static_cast<uint8_t>(text[0]);
    if (size == 0)
      line += '?';
    else if (first < 0x20 || first == 0x7f)
      line += ' ';
    else
      line += text.substr(0, size);
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return line;
}

// Sets the error message; even that may run out of memory.
inline void keep(std::string& place, const char* sentence) noexcept {
  try {
    place = one_line(sentence);
  } catch (...) {
    place.clear();
  }
}

// Runs `body`, which returns a code, and turns exceptions into a code, with the message in `error`.
template <typename Body>
int guarded(std::string& error, Body body) noexcept {
  const DefaultFloats floats;
  try {
    return body();
  } catch (const Failure& failure) {
    keep(error, failure.what());
    return failure.code;
  } catch (const std::bad_alloc&) {
    keep(error, "out of memory");
    return SF_OUT_OF_MEMORY;
  } catch (const std::exception& other) {
    keep(error, other.what());
    return SF_BROKEN;
  } catch (...) {
    keep(error, "an error of an unknown kind");
    return SF_BROKEN;
  }
}

// The error message of a handle that several threads may use at the same time.
class SharedError {
 public:
  void set(std::string message) {
    const std::lock_guard<std::mutex> guard(lock_);
    message_.swap(message);
  }
  // A copy, which belongs to this thread: valid until it calls `get` again, of any SharedError, or ends.
  const char* get() const noexcept {
    thread_local std::string copy;
    try {
      const std::lock_guard<std::mutex> guard(lock_);
      copy = message_;
    } catch (const std::exception&) {
      return "out of memory";
    }
    return copy.c_str();
  }

 private:
  mutable std::mutex lock_;
  std::string message_;
};

template <typename Body>
int guarded(SharedError& error, Body body) noexcept {
  std::string message;
  const int code = guarded(message, body);
  if (!message.empty()) error.set(std::move(message));
  return code;
}

// Copies a structure from a caller of any version: its first `size` bytes, and defaults for the rest.
template <typename Struct>
Struct known_part(const Struct* given, const Struct& defaults) {
  Struct result = defaults;
  if (given == nullptr) return result;
  if (given->size < sizeof(size_t) || given->size > 4096) bad("a structure does not say its size");
  std::copy_n(reinterpret_cast<const char*>(given), std::min(given->size, sizeof(Struct)),
              reinterpret_cast<char*>(&result));
  return result;
}

}  // namespace streamfuse
