// Generates text without Python, to try the engine and the core on another machine.
//
//   generate model.pte --tokens 1,504,29 [--count 16] [--width 0] [--threads 0]
//
// prints the new token ids, and timings to stderr. Width 1 is plain decoding, 0 lets the planner choose; drafts come
// from streams and prompt look-up (the bundle's tables are not read).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/streamfuse_engine.h"

namespace {

std::vector<int64_t> numbers(const char* text) {
  std::vector<int64_t> found;
  for (char* end; *text != 0; text = *end == ',' ? end + 1 : end) {
    found.push_back(std::strtoll(text, &end, 10));
    if (end == text) throw std::runtime_error("--tokens takes numbers with commas between them");
  }
  return found;
}

struct Options {
  std::string model;
  std::vector<int64_t> tokens;
  int64_t count = 16;
  int width = 0, threads = 0;
};

Options parse(int argc, char** argv) {
  Options options;
  if (argc > 1) options.model = argv[1];
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--tokens")
      options.tokens = numbers(argv[i + 1]);
    else if (name == "--count")
      options.count = std::atoll(argv[i + 1]);
    else if (name == "--width")
      options.width = std::atoi(argv[i + 1]);
    else if (name == "--threads")
      options.threads = std::atoi(argv[i + 1]);
    else
      throw std::runtime_error("there is no option " + name);
  }
  if (options.tokens.empty())
    throw std::runtime_error("usage: generate model.pte --tokens 1,2,3 [--count 16] [--width 0] [--threads 0]");
  return options;
}

void run(const Options& options) {
  sf_program* program;
  sf_spec spec;
  sf_core_model* model;
  sf_engine* engine;
  sf_backend backend;
  sf_sequence* session;
  if (sf_program_open(options.model.c_str(), options.threads, nullptr, &program) != SF_OK ||
      sf_program_spec(program, &spec) != SF_OK || sf_engine_new(program, &engine) != SF_OK)
    throw std::runtime_error(sf_program_error(program));
  sf_engine_backend(engine, &backend);
  if (sf_core_model_open(&spec, nullptr, 0, &model) != SF_OK) throw std::runtime_error(sf_core_model_error(model));
  if (sf_sequence_new(model, &backend, nullptr, &session) != SF_OK)
    throw std::runtime_error(sf_sequence_error(session));
  sf_options wishes;
  sf_default_options(&wishes);
  wishes.max_new_tokens = options.count;
  wishes.speculative = options.width != 1;
  wishes.width = options.width == 1 ? 0 : options.width;
  if (sf_sequence_start(session, options.tokens.data(), static_cast<int64_t>(options.tokens.size()), &wishes) != SF_OK)
    throw std::runtime_error(sf_sequence_error(session));
  sf_token token;
  int code;
  for (const char* space = ""; (code = sf_sequence_next(session, &token)) == SF_OK; space = " ")
    std::printf("%s%lld", space, static_cast<long long>(token.id));
  if (code != SF_END) throw std::runtime_error(sf_sequence_error(session));
  std::printf("\n");
  std::fprintf(stderr, "%s\n", sf_sequence_statistics(session));
  sf_sequence_free(session);
  sf_core_model_close(model);
  sf_program_close(program);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
