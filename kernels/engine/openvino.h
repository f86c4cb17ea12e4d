// What the engine asks OpenVINO's C library, which it does not link.
#pragma once

#include <string>

namespace streamfuse {

// How `library` is another release than the one whose compiled models a bundle holds; empty if it is that one.
std::string wrong_openvino(void* library);

// What to do where OpenVINO did not load a model: which devices it has here.
std::string openvino_advice(void* library);

}  // namespace streamfuse
