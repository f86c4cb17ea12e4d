// Delegates in separate libraries, which are loaded when a program needs them.
#pragma once

#include <mutex>
#include <string>

namespace streamfuse {

// Loads the vendor's libraries for ExecuTorch's backend `name`, and the library that registers it if it is not linked.
// Returns what is missing and where to get it, as the end of an error message; empty if everything was loaded.
std::string load_delegate(const std::string& name);

// What to do if that backend did not load its part of a program; empty if nothing is known.
std::string vendors_advice(const std::string& name);

// The result of sf_engine_backends. Linked backends are registered with ExecuTorch; the others are loaded to find out.
std::string list_backends();

// While one exists on a desktop, a vendor library's writes to standard output and error are collected: Qualcomm's
// simulator prints there, and a program's own output may be JSON. It redirects the streams of the whole process, so it
// exists only while a delegate is loaded or freed. Nothing is redirected with STREAMFUSE_LOG=1, nor on phones, where
// libraries write to the system log.
class VendorOutput {
 public:
  explicit VendorOutput(bool collect);
  ~VendorOutput();
  VendorOutput(const VendorOutput&) = delete;
  VendorOutput& operator=(const VendorOutput&) = delete;

  // The lines that report an error, joined by "; ".
  std::string errors() const;

 private:
  std::unique_lock<std::mutex> lock_;  // for the process's two output streams
  // File descriptors: the collected text, and the original streams; unused if nothing is redirected.
  [[maybe_unused]] int file_ = -1, output_ = -1, error_ = -1;
};

// Whether `load_delegate` handles this backend.
bool is_vendors(const std::string& backend);

}  // namespace streamfuse
