#include "platform.h"

#include <dlfcn.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <TargetConditionals.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#ifndef STREAMFUSE_NO_XNNPACK
// The wheel has the symbols of the thread pool (libexecutorch_threadpool) but not its headers. The declarations are
// those of executorch/extension/threadpool/threadpool.h and pthreadpool.h, release 1.5. The wheel for macOS does not
// export the functions of pthreadpool, so there the pool's size is not changed.
struct pthreadpool;
#if defined(__APPLE__) && TARGET_OS_OSX
static size_t pthreadpool_get_threads_count(pthreadpool*) { return 0; }
static size_t pthreadpool_set_threads_count(pthreadpool*, size_t) { return 0; }
#else
extern "C" {
size_t pthreadpool_get_threads_count(pthreadpool*);
size_t pthreadpool_set_threads_count(pthreadpool*, size_t);
}
#endif
namespace executorch::extension::threadpool {
pthreadpool* get_pthreadpool();
}  // namespace executorch::extension::threadpool
#endif

namespace streamfuse {
namespace {

thread_local std::vector<std::string>* collected = nullptr;
thread_local std::vector<std::string> messages;
thread_local PlatformScope* current = nullptr;

std::mutex platform_lock;
executorch::runtime::PalImpl outside;  // the previous platform layer, for calls that are not the engine's

void emit(et_timestamp_t time, et_pal_log_level_t level, const char* file, const char* function, size_t line,
          const char* message, size_t length) {
  const bool is_error = level == kError || level == kFatal;
  if (collected != nullptr && is_error && collected->size() < 8) collected->emplace_back(message, length);
  if ((collected == nullptr || prints_everything()) && outside.emit_log_message != nullptr)
    outside.emit_log_message(time, level, file, function, line, message, length);
}

void abort_or_throw() {
  if (collected != nullptr) throw Aborted{};
  if (outside.abort != nullptr) outside.abort();
  std::abort();
}

// Replaces the registered platform layer. Repeated in every scope, because another user of libexecutorch in this
// process (its Python bindings) may have registered its own since. register_pal would log an error each time, so the
// registered table is edited in place.
void install() {
  const std::lock_guard<std::mutex> guard(platform_lock);
  auto* table = const_cast<executorch::runtime::PalImpl*>(executorch::runtime::get_pal_impl());
  if (table == nullptr || table->emit_log_message == emit) return;
  executorch::runtime::runtime_init();
  outside = *table;
  table->emit_log_message = emit;
  table->abort = abort_or_throw;
}

}  // namespace

bool prints_everything() {
  static const bool enabled = [] {
    const char* value = std::getenv("STREAMFUSE_LOG");
    return value != nullptr && *value != 0 && *value != '0';
  }();
  return enabled;
}

PlatformScope::PlatformScope() : outer_(current) {
  install();
  current = this;
  collected = &messages;
  messages.clear();
}

PlatformScope::~PlatformScope() {
  current = outer_;
  if (outer_ == nullptr) collected = nullptr;
}

void PlatformScope::clear() { messages.clear(); }

std::string PlatformScope::errors() const {
  std::string joined;
  for (const std::string& message : messages) joined += (joined.empty() ? "" : "; ") + message;
  return joined;
}

std::string PlatformScope::missing_operators() const {
  // libexecutorch: "Missing operator: [7] streamfuse::tree_attention.out"
  const std::string mark = "Missing operator: ";
  std::string names;
  for (const std::string& message : messages) {
    const size_t at = message.find(mark);
    if (at == std::string::npos) continue;
    std::string name = message.substr(at + mark.size());
    const size_t bracket = name.find("] ");
    if (bracket != std::string::npos) name = name.substr(bracket + 2);
    if (names.find(name) == std::string::npos) names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

#ifdef STREAMFUSE_NO_XNNPACK  // what has threads of its own is that delegate
PoolLease::PoolLease(int) {}
PoolLease::~PoolLease() {}
#else
namespace {
std::mutex pool_lock;
int pool_leases = 0;
size_t pool_threads = 0;  // before the first lease
}  // namespace

PoolLease::PoolLease(int num_threads) {
  const std::lock_guard<std::mutex> guard(pool_lock);
  pthreadpool* const pool = executorch::extension::threadpool::get_pthreadpool();
  const bool is_first = pool_leases++ == 0;
  if (pool == nullptr) return;
  if (is_first) {
    pool_threads = pthreadpool_get_threads_count(pool);
    pthreadpool_set_threads_count(pool, static_cast<size_t>(num_threads));
  }
  threads_ = static_cast<int>(pthreadpool_get_threads_count(pool));
}

PoolLease::~PoolLease() {
  const std::lock_guard<std::mutex> guard(pool_lock);
  pthreadpool* const pool = executorch::extension::threadpool::get_pthreadpool();
  if (--pool_leases == 0 && pool != nullptr) pthreadpool_set_threads_count(pool, pool_threads);
}
#endif

std::string executorch_folder() {
  Dl_info where{};
  if (dladdr(reinterpret_cast<const void*>(&executorch::runtime::get_registered_kernels), &where) == 0) return "";
  const std::string runtime = where.dli_fname;
  return runtime.substr(0, runtime.rfind('/') + 1);
}

bool load_quantized_kernels() {
  static std::mutex lock;
  const std::lock_guard<std::mutex> guard(lock);
  if (executorch::runtime::registry_has_op_function("quantized_decomposed::embedding_4bit.out")) return true;
  const std::string library = executorch_folder() + "libexecutorch_kernels_quantized" + kLibrarySuffix;
  return dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr;
}

}  // namespace streamfuse
