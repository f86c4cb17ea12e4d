// Delegates that are libraries of their own, loaded when a program asks for one.
#pragma once

#include <mutex>
#include <string>

namespace streamfuse {

// Loads the vendor's libraries for ExecuTorch's backend `name`, and the one that registers it unless it is linked.
// Returns what is missing and where to get it, as the end of an error message; empty if all were loaded.
std::string load_delegate(const std::string& name);

// What to do where that backend did not load its part of a program; empty if nothing is known.
std::string vendors_advice(const std::string& name);

// What sf_engine_backends gives. A backend that is linked is registered with ExecuTorch; the others it tries to load.
std::string list_backends();

// While one lives on a desktop, what a vendor's library writes to standard output and error is collected: Qualcomm's
// simulator prints there, and a program's own output may be JSON. It redirects the streams of the whole process, so it
// lives only while a delegate is loaded or freed. Nothing is redirected with STREAMFUSE_LOG=1, nor on phones, where
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
  std::unique_lock<std::mutex> lock_;  // of the process's two streams
  // The collected text, and where both streams went before; unused where nothing is redirected.
  [[maybe_unused]] int file_ = -1, output_ = -1, error_ = -1;
};

// Whether `load_delegate` handles this backend.
bool is_vendors(const std::string& backend);

}  // namespace streamfuse
