// What passes cost on this device: known from another session or from a file, or measured now.
#pragma once

#include <atomic>
#include <string>

#include "engine.h"
#include "model.h"
#include "planner.h"
#include "stopwatch.h"

namespace streamfuse {

struct CostSource {
  std::string file;    // kept between processes; empty: nowhere
  std::string device;  // what the costs belong to
};

// Runs passes behind what is cached, and leaves the cache as it is; `stop` ends it after the pass that runs. Streams
// that fail are the planner's to know. Returns the milliseconds that it took.
double measure_costs(const Model& model, const CostSource& source, Engine& engine, Planner& planner, Costs& costs,
                     const Stopwatch& watch, const std::atomic<bool>& stop);

}  // namespace streamfuse
