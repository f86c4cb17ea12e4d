// Any bytes as a .pte: it is refused with a sentence, or it opens and writes text. Run by tests/fuzz/run.py.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/streamfuse_engine.h"

namespace {

void need_message(const char* text) {
  if (text == nullptr || *text == 0) std::abort();
}

// Four tokens plainly and with each width, on sequences of their own.
void write_text(sf_program* program, sf_core_model* model, const sf_spec& spec) {
  for (int32_t way = -1; way < spec.verify_count; ++way) {
    sf_engine* engine = nullptr;
    if (sf_engine_new(program, &engine) != SF_OK) {
      if (engine != nullptr) need_message(sf_engine_error(engine));
      sf_engine_free(engine);
      return;
    }
    sf_backend backend = {};
    backend.size = sizeof backend;
    if (sf_engine_backend(engine, &backend) != SF_OK) std::abort();
    sf_sequence* session = nullptr;
    if (sf_sequence_new(model, &backend, nullptr, &session) == SF_OK) {
      sf_options options;
      sf_default_options(&options);
      options.max_new_tokens = 4;
      options.ignore_eos = 1;
      options.speculative = way >= 0;
      options.width = way < 0 ? 0 : spec.verify[way].rows;
      const int64_t prompt[] = {1 % spec.vocab_size, 2 % spec.vocab_size, 3 % spec.vocab_size};
      sf_token token;
      int code = sf_sequence_start(session, prompt, 3, &options);
      while (code == SF_OK) code = sf_sequence_next(session, &token);
      if (code != SF_END) need_message(sf_sequence_error(session));
    } else if (session != nullptr) {
      need_message(sf_sequence_error(session));
    }
    if (session != nullptr) sf_sequence_free(session);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = memfd_create("program", 0);
  if (file < 0 || ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  sf_program* program = nullptr;
  const int opened = sf_program_open(path.c_str(), 1, nullptr, &program);
  sf_spec spec = {};
  spec.size = sizeof spec;
  if (opened == SF_OK && sf_program_spec(program, &spec) == SF_OK) {
    sf_core_model* model = nullptr;
    if (sf_core_model_open(&spec, nullptr, 0, &model) == SF_OK)
      write_text(program, model, spec);
    else
      need_message(sf_core_model_error(model));
    sf_core_model_close(model);
  } else {
    need_message(sf_program_error(program));
  }
  sf_program_close(program);
  return 0;
}
