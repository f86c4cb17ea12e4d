#include "delegates.h"

#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <utility>
#include <vector>

#include <executorch/runtime/backend/interface.h>

#include "json_string.h"
#include "openvino.h"
#include "platform.h"

namespace streamfuse {
namespace {

using Wrong = std::string (*)(void* library);

// One delegate: its library, the vendor's libraries that it opens by name, and where to find them.
struct Delegate {
  const char* name;  // in a bundle's manifest
  const char* backend;
  std::vector<const char*> libraries;  // in ExecuTorch's wheel and in its Android build
  std::vector<const char*> vendor;     // without a suffix; opened before `libraries`
  const char* environment;             // variable with the path of the vendor's SDK or, without `sdk_folder`, library
  const char* sdk_folder;              // folder of the desktop libraries in the SDK
  const char* package;                 // their folder in site-packages, from a pip package
  const char* advice;
  Wrong wrong;                           // error message for the vendor's library; null: no check
  std::string (*advise)(void* library);  // next step if it did not load a model; null: none
};

const Delegate kDelegates[] = {
    {"qnn",
     "QnnBackend",
     {"libexecutorch_backend_qnn", "libqnn_executorch_backend"},
     {"libQnnSystem", "libQnnHtp"},
     "QNN_SDK_ROOT",
     "/lib/x86_64-linux-clang/",
     "onnxruntime_qnn/",
     "on a desktop `pip install 'streamfuse[qnn]'` installs Qualcomm's libraries, or set QNN_SDK_ROOT to its SDK; in "
     "an app "
     "pack libqnn_executorch_backend.so and the files that docs/android.md lists",
     nullptr,
     nullptr},
#if defined(__linux__) && !defined(__ANDROID__)  // ExecuTorch has this backend only there
    {"openvino",
     "OpenvinoBackend",
     {"libexecutorch_backend_openvino"},
     {"libopenvino_c"},
     "OPENVINO_LIB_PATH",
     nullptr,
     "openvino/libs/",
     "`pip install 'streamfuse[openvino]'` installs OpenVINO, or set OPENVINO_LIB_PATH to its libopenvino_c.so",
     wrong_openvino,
     openvino_advice},
#endif
};

// The path of a library in a folder, also if only a name with a version suffix exists, as in Python packages on Linux.
std::string with_version(const std::string& folder, const std::string& name) {
  const std::string path = folder + name;
  if (folder.empty() || access(path.c_str(), F_OK) == 0) return path;
  std::string found = path;
  if (DIR* const listing = opendir(folder.c_str()); listing != nullptr) {
    while (const dirent* const entry = readdir(listing))
      if (std::string(entry->d_name).rfind(name + ".", 0) == 0) found = folder + entry->d_name;
    closedir(listing);
  }
  return found;
}

// The release of ExecuTorch's libraries if they are the copies that a wheel of streamfuse has beside the engine, as
// native/library.py records it there; empty if they are those of the package executorch, or linked.
std::string packaged_executorch() {
  std::ifstream file(executorch_folder() + "executorch-version.txt");
  std::string version;
  std::getline(file, version);
  return version.substr(0, version.find('+'));  // without the name of the build, as in 1.5.1+cpu
}

// site-packages, ending with a slash. ExecuTorch's libraries are in executorch/lib there, their copies in
// streamfuse/native/lib.
std::string packages_folder() { return executorch_folder() + (packaged_executorch().empty() ? "../../" : "../../../"); }

// Where to get a delegate's own library, which only the package executorch has.
std::string delegate_advice(const Delegate& delegate) {
  const std::string version = packaged_executorch();
  if (version.empty()) return delegate.advice;
  return "it is part of the package executorch, of which this engine needs release " + version +
         ": `pip install executorch==" + version + "`";
}

// Null if the library cannot be opened. `why` then has the error, unless it had one and this file does not exist: a
// folder without the library must not hide why a library that exists failed.
void* opened(const std::string& path, std::string& why) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* const error = dlerror();
  if (error != nullptr && (why.empty() || access(path.c_str(), F_OK) == 0)) why = error;
  return nullptr;
}

// Opens the library from the first folder that has it and sets `path`, unless it is wrong (see Delegate). If none has
// it, null; `bad` then says what is wrong with one, or `missing` why it cannot be opened.
void* open_any(const std::string& name, const std::vector<std::string>& folders, Wrong wrong, std::string& path,
               std::string& missing, std::string& bad) {
  for (const std::string& folder : folders) {
    path = with_version(folder, name);
    void* const library = opened(path, missing);
    if (library == nullptr) continue;
    const std::string found = wrong == nullptr ? "" : wrong(library);
    if (found.empty()) return library;
    bad = path + " " + found;
    dlclose(library);
  }
  return nullptr;
}

// Opens the vendor's libraries for a delegate; `library` is the last of them. Returns what is missing, or "".
std::string open_vendors(const Delegate& delegate, void*& library) {
  const char* const set = std::getenv(delegate.environment);
  const bool is_set = set != nullptr && *set != 0, names_library = is_set && delegate.sdk_folder == nullptr;
  // "": the system's search, which also finds loaded libraries.
  std::vector<std::string> folders = {"", packages_folder() + delegate.package};
  if (is_set) folders = {names_library ? "" : std::string(set) + delegate.sdk_folder};
  for (const char* const vendor : delegate.vendor) {
    const std::string name = names_library ? set : std::string(vendor) + kLibrarySuffix;
    std::string path, missing, bad;
    library = open_any(name, folders, delegate.wrong, path, missing, bad);
    if (library == nullptr) {
      if (!bad.empty()) return bad;
      const std::string of_sdk = is_set && !names_library ? std::string(" of ") + delegate.environment : "";
      return (names_library ? delegate.environment : name + of_sdk) + " cannot be loaded (" + missing + ")";
    }
    if (delegate.sdk_folder == nullptr) setenv(delegate.environment, path.c_str(), 1);  // the delegate reads it
  }
  return "";
}

std::mutex output_lock;  // for the process's two output streams

// Of these two only: fflush(nullptr) waits for every stream that another thread is reading.
[[maybe_unused]] void flush_output() {
  std::fflush(stdout);
  std::fflush(stderr);
}

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
  flush_output();
  if (std::FILE* const file = std::tmpfile(); file != nullptr) {
    file_ = dup(fileno(file));
    std::fclose(file);
  }
  output_ = dup(STDOUT_FILENO);
  error_ = dup(STDERR_FILENO);
  if (file_ >= 0 && output_ >= 0) dup2(file_, STDOUT_FILENO);
  if (file_ >= 0 && error_ >= 0) dup2(file_, STDERR_FILENO);
#else
  (void)collect;
#endif
}

VendorOutput::~VendorOutput() {
#if defined(__linux__) && !defined(__ANDROID__)
  if (!lock_.owns_lock()) return;
  flush_output();
  if (output_ >= 0) dup2(output_, STDOUT_FILENO);
  if (error_ >= 0) dup2(error_, STDERR_FILENO);
  for (const int descriptor : {output_, error_, file_})
    if (descriptor >= 0) close(descriptor);
#endif
}

std::string VendorOutput::errors() const {
  std::string found;
#if defined(__linux__) && !defined(__ANDROID__)
  if (file_ < 0) return found;
  flush_output();
  std::string text(static_cast<size_t>(std::max<off_t>(lseek(file_, 0, SEEK_END), 0)), ' ');
  text.resize(static_cast<size_t>(std::max<ssize_t>(pread(file_, text.data(), text.size(), 0), 0)));
  constexpr const char* kMark = "<E> ";  // marks errors in Qualcomm's log
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
    void* vendors = nullptr;
    if (const std::string missing = open_vendors(delegate, vendors); !missing.empty())
      return missing + "; " + delegate.advice;
    if (executorch::runtime::get_backend_class(delegate.backend) != nullptr) return "";  // linked, or loaded before
    std::string path, why, bad;
    for (const char* const library : delegate.libraries)
      if (open_any(std::string(library) + kLibrarySuffix, {executorch_folder(), ""}, nullptr, path, why, bad) !=
          nullptr)
        return "";
    return std::string(delegate.libraries[0]) + kLibrarySuffix + " cannot be loaded (" + why + "); " +
           delegate_advice(delegate);
  }
  return "the engine has no library to load for it";
}

std::string vendors_advice(const std::string& name) {
  for (const Delegate& delegate : kDelegates) {
    void* vendors = nullptr;
    if (name == delegate.backend && delegate.advise != nullptr && open_vendors(delegate, vendors).empty())
      return delegate.advise(vendors);
  }
  return "";
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
