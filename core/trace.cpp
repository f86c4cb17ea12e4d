#include "rounding.h"

#include "trace.h"

#if defined(__ANDROID__)
#include <dlfcn.h>
#elif defined(__APPLE__) && __has_include(<os/signpost.h>)
#include <os/log.h>
#include <os/signpost.h>
#define STREAMFUSE_SIGNPOSTS
#endif

namespace streamfuse {

#if defined(__ANDROID__)
namespace {

// By name, so that a library that is built for an older Android, or linked without libandroid, works too.
struct ATrace {
  bool (*is_enabled)() = nullptr;
  void (*begin)(const char* name) = nullptr;
  void (*end)() = nullptr;

  ATrace() {
    void* const android = dlopen("libandroid.so", RTLD_NOW | RTLD_LOCAL);
    if (android == nullptr) return;
    is_enabled = reinterpret_cast<bool (*)()>(dlsym(android, "ATrace_isEnabled"));
    begin = reinterpret_cast<void (*)(const char*)>(dlsym(android, "ATrace_beginSection"));
    end = reinterpret_cast<void (*)()>(dlsym(android, "ATrace_endSection"));
    if (begin == nullptr || end == nullptr) is_enabled = nullptr;
  }
};

const ATrace& atrace() {
  static const ATrace functions;
  return functions;
}

}  // namespace

TraceSection::TraceSection(const char* name) noexcept {
  const ATrace& functions = atrace();
  is_open_ = functions.is_enabled != nullptr && functions.is_enabled();
  if (is_open_) functions.begin(name);
}

TraceSection::~TraceSection() {
  if (is_open_) atrace().end();
}

#elif defined(STREAMFUSE_SIGNPOSTS)
namespace {

os_log_t passes() {
  static const os_log_t log = os_log_create("dev.streamfuse", "passes");
  return log;
}

}  // namespace

TraceSection::TraceSection(const char* name) noexcept {
  is_open_ = os_signpost_enabled(passes());
  if (!is_open_) return;
  id_ = os_signpost_id_generate(passes());
  os_signpost_interval_begin(passes(), id_, "section", "%{public}s", name);
}

TraceSection::~TraceSection() {
  if (is_open_) os_signpost_interval_end(passes(), id_, "section");
}

#else
TraceSection::TraceSection(const char*) noexcept {}
TraceSection::~TraceSection() = default;
#endif

}  // namespace streamfuse
