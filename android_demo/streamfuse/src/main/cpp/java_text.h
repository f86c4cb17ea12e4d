// Passes UTF-8 text between Java byte arrays and C.
#pragma once

#include <jni.h>

#include <cstdint>
#include <cstring>
#include <string>

namespace streamfuse {

// A copy of a Java byte array with a terminating zero; `c_str` is null if the array is null.
class Text {
 public:
  Text(JNIEnv* env, jbyteArray bytes) : is_null_(bytes == nullptr) {
    if (is_null_) return;
    text_.resize(static_cast<size_t>(env->GetArrayLength(bytes)));
    env->GetByteArrayRegion(bytes, 0, static_cast<jsize>(text_.size()), reinterpret_cast<jbyte*>(text_.data()));
  }
  Text(JNIEnv* env, jobjectArray all, jsize at)
      : Text(env, static_cast<jbyteArray>(env->GetObjectArrayElement(all, at))) {}
  const char* c_str() const { return is_null_ ? nullptr : text_.c_str(); }
  size_t size() const { return text_.size(); }

 private:
  bool is_null_;
  std::string text_;
};

// Null if `text` is null or too long, or if Java is out of memory.
inline jbyteArray bytes_of(JNIEnv* env, const char* text, size_t bytes) {
  if (text == nullptr || bytes > INT32_MAX) return nullptr;
  jbyteArray array = env->NewByteArray(static_cast<jsize>(bytes));
  if (array == nullptr) {
    env->ExceptionClear();
    return nullptr;
  }
  env->SetByteArrayRegion(array, 0, static_cast<jsize>(bytes), reinterpret_cast<const jbyte*>(text));
  return array;
}

inline jbyteArray bytes_of(JNIEnv* env, const char* text) {
  return bytes_of(env, text, text == nullptr ? 0 : std::strlen(text));
}

}  // namespace streamfuse
