// An open bundle: its files and text, the engine's program, and the core's specification and tables; or the same of
// one of its adapters.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "handle.h"
#include "owned.h"
#include "streamfuse.h"
#include "streamfuse_bundle.h"
#include "streamfuse_engine.h"

namespace streamfuse::native {

class Model {
 public:
  Model(const char* folder, const sf_model_options& options);  // throws Failure, as all that follow
  Model(const Model& whole, const std::string& adapter);       // an adapter of a model

  // An adapter, which is loaded when it is first asked for. It shares the weights of the graphs.
  std::shared_ptr<const Model> adapter(const std::string& name) const;

  sf_bundle* bundle() const { return bundle_.get(); }
  sf_core_model* core() const { return core_.get(); }
  const sf_spec& spec() const { return spec_; }
  const char* engine_facts() const;  // JSON
  bool has_engine() const { return program_ != nullptr; }
  bool can_chat() const { return sf_bundle_can_chat(bundle_.get()) != 0; }
  const std::string& folder() const { return folder_; }
  double load_ms() const { return load_ms_; }
  void forget() const;  // what earlier sessions wrote
  int64_t count_tokens(const char* text, size_t bytes) const;
  // The report of the bundle's self-test as JSON. An `engine` without functions means the model's own.
  std::string self_test(Backend engine) const;

  // A sequence's engine, with an empty cache.
  sf_backend make_engine() const;
  // What the latency of passes depends on, for the native engine or one of the caller's own.
  std::string device(const char* own_engine) const;
  const std::string& cost_folder() const { return cost_folder_; }  // empty: none

 private:
  void bundle_needs(int code) const;
  int open_bundle(const sf_bundle_options& options);
  void load_program(int32_t threads, const sf_watch* watch);
  void program_needs(int code) const;
  void load_core(const std::string& tables_file);
  void core_needs(int code) const;

  std::string folder_, cost_folder_;  // absolute, since they are used later, in any working directory
  std::string machine_, threads_;
  std::optional<std::string> memory_file_;  // absolute too; "": in RAM only
  int64_t memory_tokens_;
  Handle<sf_bundle, sf_bundle_close> bundle_;
  Handle<sf_program, sf_program_close> program_;  // null: sessions bring engines
  mutable std::mutex making_engine_;              // the program keeps one error message for all threads
  Handle<sf_core_model, sf_core_model_close> core_;
  sf_spec spec_{};
  mutable std::mutex loading_adapter_;
  mutable std::map<std::string, std::shared_ptr<const Model>> adapters_;
  double load_ms_ = 0.0;
};

}  // namespace streamfuse::native
