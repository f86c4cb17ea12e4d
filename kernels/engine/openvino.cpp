#include "openvino.h"

#include <dlfcn.h>

namespace streamfuse {
namespace {

constexpr const char* kRelease = "2025.4";  // as in export/executorch/openvino_model.py

// Structures of OpenVINO's C API (ov_version_t, ov_available_devices_t, ov_core_t).
struct Version {
  const char* build;
  const char* description;
};
struct Devices {
  char** names;
  size_t count;
};
struct Core;

template <typename Function>
Function* function(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

std::string wrong_openvino(void* library) {
  auto* const get = function<int(Version*)>(library, "ov_get_openvino_version");
  auto* const release = function<void(Version*)>(library, "ov_version_free");
  Version version{};
  if (get == nullptr || release == nullptr || get(&version) != 0) return "is not OpenVINO's C library";
  const std::string build = version.build == nullptr ? "" : version.build;
  release(&version);
  if (build.rfind(std::string(kRelease) + ".", 0) == 0) return "";
  return "is OpenVINO " + build.substr(0, build.find('-')) + ", but bundles contain models that " + kRelease +
         " compiled";
}

std::string openvino_advice(void* library) {
  auto* const create = function<int(Core**)>(library, "ov_core_create");
  auto* const release = function<void(Core*)>(library, "ov_core_free");
  auto* const list = function<int(const Core*, Devices*)>(library, "ov_core_get_available_devices");
  auto* const release_list = function<void(Devices*)>(library, "ov_available_devices_free");
  Core* core = nullptr;
  std::string names;
  if (create != nullptr && release != nullptr && list != nullptr && release_list != nullptr && create(&core) == 0) {
    Devices devices{};
    if (list(core, &devices) == 0) {
      for (size_t i = 0; i < devices.count; ++i) names += (i == 0 ? "" : ", ") + std::string(devices.names[i]);
      release_list(&devices);
    }
    release(core);
  }
  return "OpenVINO has " + (names.empty() ? "no device" : names) +
         " on this machine; a bundle only runs on the device it was exported for: export it with --device for one of "
         "these";
}

}  // namespace streamfuse
