// The latency of passes on this device: from another session, from a file, or measured now.
#pragma once

#include <functional>
#include <string>

#include "engine.h"
#include "model.h"
#include "planner.h"
#include "stopwatch.h"

namespace streamfuse {

struct CostSource {
  std::string folder;  // caches costs between processes; empty: none
  std::string device;  // the device that the costs were measured on
};

// Runs passes after the cached tokens and does not change the cache; ends after the pass during which `stopped` becomes
// true. Reports failing streams to the planner. Returns its duration in milliseconds.
double measure_costs(const Model& model, const CostSource& source, Engine& engine, Planner& planner, Costs& costs,
                     const Stopwatch& watch, const std::function<bool()>& stopped);

}  // namespace streamfuse
