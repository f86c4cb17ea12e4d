// Calls into OpenVINO's C library, which the engine does not link.
#pragma once

#include <string>

namespace streamfuse {

// An error message if `library` is not the release that compiled the bundles' models; empty if it is.
std::string wrong_openvino(void* library);

// What to do if OpenVINO did not load a model, with the devices available on this machine.
std::string openvino_advice(void* library);

}  // namespace streamfuse
