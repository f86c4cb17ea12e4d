#include "model.h"

#include <chrono>
#include <string_view>

#include "device.h"
#include "file_paths.h"
#include "progress.h"
#include "streamfuse_low.h"
#include "trace.h"

namespace streamfuse::native {

namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point started) {
  return std::chrono::duration<double, std::milli>(Clock::now() - started).count();
}

}  // namespace

Model::Model(const char* folder, const sf_model_options& options)
    : folder_(absolute_path(folder)),
      cost_folder_(absolute_path(options.cost_folder == nullptr ? "" : options.cost_folder)),
      machine_(machine()),
      threads_(options.threads == 0 ? "default" : std::to_string(options.threads)),
      memory_tokens_(options.memory_tokens) {
  const auto started = Clock::now();
  if (options.memory_file != nullptr) memory_file_ = absolute_path(options.memory_file);
  const bool hashes = options.skip_hashes == 0 || options.public_key != nullptr;
  const double half = !hashes ? 0.0 : options.own_engine == 1 ? 1.0 : 0.5;
  const Watch hashed(options.progress, 0.0, half), loaded(options.progress, half, 1.0);
  const sf_bundle_options how{sizeof how, options.public_key, hashed.get(), options.skip_hashes};
  bundle_needs(open_bundle(how));
  spec_.size = sizeof spec_;
  bundle_needs(sf_bundle_spec(bundle_.get(), &spec_));
  const std::string_view graph = sf_bundle_graph(bundle_.get());
  if (options.own_engine == 0 || (options.own_engine == 2 && graph.ends_with(".pte")))
    load_program(options.threads, loaded.get());
  load_core(folder_ + "/draft.safetensors");
  if (options.progress != nullptr)
    options.progress->fraction.store(program_ == nullptr && options.own_engine == 2 ? half : 1.0);
  load_ms_ = ms_since(started);
}

Model::Model(const Model& whole, const std::string& adapter)
    : folder_(whole.folder_),
      cost_folder_(whole.cost_folder_),
      machine_(whole.machine_),
      threads_(whole.threads_),
      memory_file_(whole.memory_file_),
      memory_tokens_(whole.memory_tokens_) {
  const auto started = Clock::now();
  int code = sf_bundle_adapter(whole.bundle(), adapter.c_str(), Made(bundle_));
  bundle_needs(code);
  spec_.size = sizeof spec_;
  bundle_needs(sf_bundle_spec(bundle_.get(), &spec_));
  if (whole.program_ != nullptr) {
    code = sf_program_adapter(whole.program_.get(), adapter.c_str(), Made(program_));
    program_needs(code);
    program_needs(sf_program_check(program_.get(), &spec_));
  }
  // A memory belongs to one identity, and answers of different tasks resemble each other little.
  if (memory_file_ && !memory_file_->empty()) *memory_file_ += "." + adapter;
  load_core(folder_ + "/adapters/" + adapter + "/draft.safetensors");
  load_ms_ = whole.load_ms_ + ms_since(started);
}

void Model::load_core(const std::string& tables_file) {
  const sf_tensor* tensors = nullptr;
  int32_t count = 0;
  bundle_needs(sf_bundle_tensors(bundle_.get(), &tensors, &count));
  const int code = sf_core_model_open(&spec_, tensors, count, Made(core_));
  if (code == SF_BAD_TABLES) throw Failure(code, tables_file + ": " + sf_core_model_error(core_.get()));
  core_needs(code);
  for (int32_t i = 0; const char* path = sf_bundle_prefix(bundle_.get(), i); ++i)
    sf_core_model_add_prefix(core_.get(), path);  // the statistics of texts say why one was refused
  if (!memory_file_) return;
  core_needs(
      sf_core_model_remember(core_.get(), memory_file_->empty() ? nullptr : memory_file_->c_str(), memory_tokens_));
}

std::shared_ptr<const Model> Model::adapter(const std::string& name) const {
  const std::lock_guard<std::mutex> guard(loading_adapter_);
  std::shared_ptr<const Model>& found = adapters_[name];
  if (found == nullptr) {
    try {
      found = std::make_shared<const Model>(*this, name);
    } catch (...) {
      adapters_.erase(name);
      throw;
    }
  }
  return found;
}

void Model::bundle_needs(int code) const { check(code, sf_bundle_error(bundle_.get())); }

void Model::core_needs(int code) const { check(code, sf_core_model_error(core_.get())); }

// Adds the file's name to messages without it, those about the contents of an open program.
void Model::program_needs(int code) const {
  const std::string graph = sf_bundle_graph(bundle_.get()), sentence = sf_program_error(program_.get());
  const bool is_named = code != SF_BAD_PROGRAM || sentence.find(graph) != std::string::npos;
  check(code, (is_named ? sentence : graph + ": " + sentence).c_str());
}

int Model::open_bundle(const sf_bundle_options& options) {
  const TraceSection section("streamfuse: open bundle");
  return sf_bundle_open(folder_.c_str(), &options, Made(bundle_));
}

void Model::load_program(int32_t threads, const sf_watch* watch) {
  const TraceSection section("streamfuse: load graphs");
  const std::string_view graph = sf_bundle_graph(bundle_.get());
  if (!graph.ends_with(".pte"))
    throw Failure(SF_BAD_PROGRAM, folder_ + " is for " +
                                      (graph.ends_with(".mlpackage") ? "Core ML on Apple's devices" : "ONNX Runtime") +
                                      "; this library runs bundles exported with --target executorch");
  const int code = sf_program_open(graph.data(), threads, watch, Made(program_));
  program_needs(code);
  program_needs(sf_program_check(program_.get(), &spec_));
  int32_t used = 0;
  program_needs(sf_program_threads(program_.get(), &used));
  threads_ = std::to_string(used);
}

// The core empties the files of all adapters; those that are loaded have their answers in RAM too.
void Model::forget() const {
  FirstFailure failure;
  const auto forget = [](const Model& model) { model.core_needs(sf_core_model_forget(model.core_.get())); };
  failure.attempt([&] { forget(*this); });
  {
    const std::lock_guard<std::mutex> guard(loading_adapter_);
    for (const auto& [name, loaded] : adapters_) failure.attempt([&, &model = *loaded] { forget(model); });
  }
  failure.rethrow();
}

int64_t Model::count_tokens(const char* text, size_t bytes) const {
  Handle<sf_text, sf_free_text> own;  // a text is for one thread at a time
  int code = sf_new_text(bundle_.get(), Made(own));
  check(code, sf_text_error(own.get()));
  int64_t n = 0;
  code = sf_text_count(own.get(), text, bytes, &n);
  check(code, sf_text_error(own.get()));
  return n;
}

std::string Model::self_test(Backend engine) const {
  const TraceSection section("streamfuse: self-test");
  Handle<sf_bundle_selftest, sf_bundle_selftest_close> stored;
  int code = sf_bundle_selftest_open(bundle_.get(), Made(stored));
  check(code, sf_bundle_selftest_error(stored.get()));
  const sf_tensor* arrays = nullptr;
  int32_t count = 0;
  check(sf_bundle_selftest_tensors(stored.get(), &arrays, &count), "the self-test cannot be read");
  const sf_backend table = engine->size > 0 ? engine.take() : make_engine();
  std::string report;
  const auto put = [](void* to, const void* json, size_t bytes) {
    static_cast<std::string*>(to)->assign(static_cast<const char*>(json), bytes);
    return int{SF_OK};
  };
  core_needs(sf_core_model_self_test(core_.get(), &table, arrays, count, put, &report));
  return report;
}

const char* Model::engine_facts() const {
  const char* json = nullptr;
  return program_ != nullptr && sf_program_describe(program_.get(), &json) == SF_OK ? json : "{}";
}

sf_backend Model::make_engine() const {
  if (program_ == nullptr) bad(folder_ + " was loaded with own_engine, so each session needs a backend in its options");
  const std::lock_guard<std::mutex> guard(making_engine_);
  sf_engine* engine = nullptr;
  program_needs(sf_engine_new(program_.get(), &engine));
  sf_backend backend{};
  sf_engine_backend(engine, &backend);
  return backend;
}

std::string Model::device(const char* own_engine) const {
  return machine_ + ", " + (own_engine != nullptr ? own_engine : "threads " + threads_);
}

}  // namespace streamfuse::native
