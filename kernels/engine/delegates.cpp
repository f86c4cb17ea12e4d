#include "delegates.h"

#include <dlfcn.h>
#if defined(__linux__) && !defined(__ANDROID__)
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include <executorch/runtime/backend/interface.h>

#include "json_string.h"
#include "platform.h"

namespace streamfuse {
namespace {

// One delegate: its library, those of the vendor that it opens by name, and who has them.
struct Delegate {
  const char* name;  // of a bundle's manifest
  const char* backend;
  std::vector<const char*> libraries;  // in ExecuTorch's wheel and in its Android build
  std::vector<const char*> vendor;     // without a suffix; opened before
  const char* environment;             // names the vendor's SDK
  const char* sdk_folder;              // of a desktop's libraries in it
  const char* package;                 // of pip, which has them too
  const char* advice;
};

const Delegate kDelegates[] = {
    {"qnn",
     "QnnBackend",
     {"libexecutorch_backend_qnn", "libqnn_executorch_backend"},
     {"libQnnSystem", "libQnnHtp"},
     "QNN_SDK_ROOT",
     "/lib/x86_64-linux-clang/",
     "onnxruntime_qnn",
     "on a desktop `pip install 'streamfuse[qnn]'` has Qualcomm's libraries, or set QNN_SDK_ROOT to its SDK; in an app "
     "pack libqnn_executorch_backend.so and the files that docs/android.md lists"},
};

void* opened(const std::string& path, std::string& why) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    if (const char* const error = dlerror(); error != nullptr) why = error;
  return library;
}

// The first of these places that has the library.
bool open_any(const std::string& name, const std::vector<std::string>& folders, std::string& why) {
  for (const std::string& folder : folders)
    if (opened(folder + name + kLibrarySuffix, why) != nullptr) return true;
  return false;
}

std::mutex output_lock;  // of the process's two streams

}  // namespace

bool is_vendors(const std::string& backend) {
  for (const Delegate& delegate : kDelegates)
    if (backend == delegate.backend) return true;
  return false;
}

VendorOutput::VendorOutput(bool collect) {
#if defined(__linux__) && !defined(__ANDROID__)
  if (!collect || prints_everything()) return;
  lock_ = std::unique_lock<std::mutex>(output_lock);
  std::fflush(nullptr);
  if (std::FILE* const file = std::tmpfile(); file != nullptr) file_ = dup(fileno(file)), std::fclose(file);
  output_ = dup(STDOUT_FILENO), error_ = dup(STDERR_FILENO);
  if (file_ >= 0 && output_ >= 0) dup2(file_, STDOUT_FILENO);
  if (file_ >= 0 && error_ >= 0) dup2(file_, STDERR_FILENO);
#else
  (void)collect;
#endif
}

VendorOutput::~VendorOutput() {
#if defined(__linux__) && !defined(__ANDROID__)
  if (!lock_.owns_lock()) return;
  std::fflush(nullptr);
  if (output_ >= 0) dup2(output_, STDOUT_FILENO), close(output_);
  if (error_ >= 0) dup2(error_, STDERR_FILENO), close(error_);
  if (file_ >= 0) close(file_);
#endif
}

std::string VendorOutput::errors() const {
  std::string found;
#if defined(__linux__) && !defined(__ANDROID__)
  if (file_ < 0) return found;
  std::fflush(nullptr);
  std::string text(static_cast<size_t>(std::max<off_t>(lseek(file_, 0, SEEK_END), 0)), ' ');
  text.resize(static_cast<size_t>(std::max<ssize_t>(pread(file_, text.data(), text.size(), 0), 0)));
  constexpr const char* kMark = "<E> ";  // of Qualcomm's log
  for (size_t at = text.find(kMark); at != std::string::npos; at = text.find(kMark, at)) {
    at += std::string(kMark).size();
    found += (found.empty() ? "" : "; ") + text.substr(at, text.find('\n', at) - at);
  }
  if (found.find("Shared weights") != std::string::npos)
    found += "; graphs that share their weights run on a phone only: export with --weight-sharing off to run them here";
#endif
  return found;
}

std::string load_delegate(const std::string& name) {
  static std::mutex lock;
  const std::lock_guard<std::mutex> guard(lock);
  for (const Delegate& delegate : kDelegates) {
    if (name != delegate.backend) continue;
    const std::string own = executorch_folder();
    std::vector<std::string> folders = {""};  // as the system finds them, which is also what is loaded already
    if (const char* const sdk = std::getenv(delegate.environment); sdk != nullptr && *sdk != 0)
      folders.insert(folders.begin(), std::string(sdk) + delegate.sdk_folder);
    folders.push_back(own + "../../" + delegate.package + "/");  // both lie in site-packages
    std::string why;
    for (const char* const library : delegate.vendor)
      if (!open_any(library, folders, why))
        return std::string(library) + kLibrarySuffix + " cannot be loaded (" + why + "); " + delegate.advice;
    if (executorch::runtime::get_backend_class(delegate.backend) != nullptr) return "";  // linked, or loaded before
    for (const char* const library : delegate.libraries)
      if (open_any(library, {own, ""}, why)) return "";
    return std::string(delegate.libraries[0]) + kLibrarySuffix + " cannot be loaded (" + why + "); " + delegate.advice;
  }
  return "no library of its own is known for it";
}

std::string list_backends() {
  std::string json = "{\"kernels\": null";
  for (const auto& [name, backend] :
       {std::pair{"xnnpack", "XnnpackBackend"}, {"coreml", "CoreMLBackend"}, {"vulkan", "VulkanBackend"}})
    if (executorch::runtime::get_backend_class(backend) != nullptr) json += ", " + json_string(name) + ": null";
  const VendorOutput output(true);
  for (const Delegate& delegate : kDelegates) {
    const std::string missing = load_delegate(delegate.backend);
    json += ", " + json_string(delegate.name) + ": " + (missing.empty() ? "null" : json_string(missing));
  }
  return json + "}";
}

}  // namespace streamfuse
