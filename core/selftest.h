// The self-test of a bundle: repeats the passes that the exporter recorded (src/streamfuse/export/selftest.py) on an
// engine, and compares their outputs with the recorded ones.
#pragma once

#include <string>

#include "model.h"
#include "owned.h"

namespace streamfuse {

// The report as JSON (docs/bundle.md, "The self-test"). Throws Failure: SF_BAD_FILE if the arrays do not fit the model,
// or what the engine throws.
std::string self_test(const Model& model, Backend engine, const sf_tensor* arrays, int32_t count);

}  // namespace streamfuse
