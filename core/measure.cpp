#include "rounding.h"

#include "measure.h"

#include <array>
#include <vector>

#include "error.h"

namespace streamfuse {
namespace {

// Milliseconds of one pass. A pass of streams follows a pass of decode.
double timed_pass(int64_t method, int64_t nodes, Engine& engine, Planner& planner, const Stopwatch& watch) {
  if (method != kStreams) {
    const double started = watch.now();
    engine.run_chain(method, nodes);
    return 1000.0 * (watch.now() - started);
  }
  const int64_t length = engine.cached();
  engine.commit(std::array<int32_t, 1>{0});
  const double started = watch.now();
  try {
    engine.streams(0, 0);
  } catch (const Failure& failure) {
    planner.fail_streams(failure.what());
  }
  const double ms = 1000.0 * (watch.now() - started);
  engine.drop(length);
  return ms;
}

}  // namespace

double measure_costs(const Model& model, const CostSource& source, Engine& engine, Planner& planner, Costs& costs,
                     const Stopwatch& watch, const std::function<bool()>& stopped) {
  const double started = watch.now();
  const auto run = [&](int64_t method, int64_t nodes) {
    return stopped() ? -1.0 : timed_pass(method, nodes, engine, planner, watch);
  };
  if (const std::vector<double> known = model.costs_of_device.find(source.device); !known.empty()) {
    costs.take(known);
  } else {
    if (!source.folder.empty()) costs.load(source.folder, model.spec.identity, source.device);
    if (costs.measure(run) && !source.folder.empty()) costs.store(source.folder, model.spec.identity, source.device);
  }
  if (costs.known()) model.costs_of_device.keep(source.device, costs.table());
  return 1000.0 * (watch.now() - started);
}

}  // namespace streamfuse
