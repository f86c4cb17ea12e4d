#include "model.h"

#include <chrono>
#include <string_view>

#include "device.h"

namespace streamfuse::native {

Model::Model(const char* folder, const sf_model_options& options)
    : folder_(folder),
      cost_folder_(options.cost_folder == nullptr ? "" : options.cost_folder),
      machine_(machine()),
      threads_(options.threads == 0 ? "default" : std::to_string(options.threads)) {
  const auto started = std::chrono::steady_clock::now();
  int code = options.public_key == nullptr ? sf_bundle_open(folder, options.skip_hashes == 0, Made(bundle_))
                                           : sf_bundle_open_signed(folder, options.public_key, Made(bundle_));
  bundle_needs(code);
  spec_.size = sizeof spec_;
  bundle_needs(sf_bundle_spec(bundle_.get(), &spec_));
  const std::string_view graph = sf_bundle_graph(bundle_.get());
  if (options.own_engine == 0 || (options.own_engine == 2 && graph.ends_with(".pte"))) load_program(options.threads);
  const sf_tensor* tensors = nullptr;
  int32_t count = 0;
  bundle_needs(sf_bundle_tensors(bundle_.get(), &tensors, &count));
  code = sf_core_model_open(&spec_, tensors, count, Made(core_));
  check(code, sf_core_model_error(core_.get()));
  if (options.memory_file != nullptr) {
    const char* file = *options.memory_file == 0 ? nullptr : options.memory_file;
    code = sf_core_model_remember(core_.get(), file, options.memory_tokens);
    check(code, sf_core_model_error(core_.get()));
  }
  load_ms_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
}

void Model::bundle_needs(int code) const { check(code, sf_bundle_error(bundle_.get())); }

void Model::load_program(int32_t threads) {
  const std::string_view graph = sf_bundle_graph(bundle_.get());
  if (!graph.ends_with(".pte"))
    throw Failure(SF_BAD_PROGRAM, folder_ + " is for " +
                                      (graph.ends_with(".mlpackage") ? "Core ML on Apple's devices" : "ONNX Runtime") +
                                      "; this library runs bundles exported with --target executorch");
  int code = sf_program_open(graph.data(), threads, Made(program_));
  check(code, sf_program_error(program_.get()));
  code = sf_program_check(program_.get(), &spec_);
  check(code, sf_program_error(program_.get()));
}

void Model::forget() const {
  const int code = sf_core_model_forget(core_.get());
  check(code, sf_core_model_error(core_.get()));
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

const char* Model::engine_facts() const {
  const char* json = nullptr;
  return program_ != nullptr && sf_program_describe(program_.get(), &json) == SF_OK ? json : "{}";
}

sf_backend Model::make_engine() const {
  if (program_ == nullptr) bad(folder_ + " was loaded with own_engine, so each session needs a backend in its options");
  const std::lock_guard<std::mutex> guard(making_engine_);
  sf_engine* engine = nullptr;
  const int code = sf_engine_new(program_.get(), &engine);
  check(code, sf_program_error(program_.get()));
  sf_backend backend{};
  sf_engine_backend(engine, &backend);
  return backend;
}

std::string Model::device(const char* own_engine) const {
  return machine_ + ", " + (own_engine != nullptr ? own_engine : "threads " + threads_);
}

}  // namespace streamfuse::native
