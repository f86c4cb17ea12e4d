// Greedy generation without Python, to try the engine on another machine.
//
//   generate model.pte --tokens 1,504,29 [--count 16] [--method decode] [--threads 0]
//
// prints the new token ids, and to stderr what it took.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "greedy.h"

namespace {

using namespace streamfuse::greedy;

std::vector<int64_t> numbers(const char* text) {
  std::vector<int64_t> found;
  for (char* end; *text != 0; text = *end == ',' ? end + 1 : end) {
    found.push_back(std::strtoll(text, &end, 10));
    if (end == text) throw std::runtime_error("--tokens takes numbers with commas between them");
  }
  return found;
}

struct Options {
  std::string model, method = "decode";
  std::vector<int64_t> tokens;
  size_t count = 16;
  int threads = 0;
};

Options parse(int argc, char** argv) {
  Options options;
  if (argc > 1) options.model = argv[1];
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--tokens")
      options.tokens = numbers(argv[i + 1]);
    else if (name == "--count")
      options.count = std::strtoull(argv[i + 1], nullptr, 10);
    else if (name == "--method")
      options.method = argv[i + 1];
    else if (name == "--threads")
      options.threads = std::atoi(argv[i + 1]);
    else
      throw std::runtime_error("there is no option " + name);
  }
  if (options.tokens.empty())
    throw std::runtime_error("usage: generate model.pte --tokens 1,2,3 [--count 16] [--method decode] [--threads 0]");
  return options;
}

void run(const Options& options) {
  sf_program* program;
  sf_session* session;
  const char* text;
  check(sf_open(options.model.c_str(), options.threads, &program));
  check(sf_describe(program, &text));
  const std::string description = text;
  const int64_t prefill_rows = rows_of(description, "prefill"), width = rows_of(description, options.method);
  if (prefill_rows == 0 || width == 0)
    throw std::runtime_error("the program has no method prefill or " + options.method);
  check(sf_new_session(program, &session));
  prefill(session, options.tokens, static_cast<size_t>(prefill_rows));

  int passes;
  const auto start = std::chrono::steady_clock::now();
  const std::vector<int64_t> generated =
      generate(session, options.method, static_cast<size_t>(width), options.tokens.back(), options.count, &passes);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  for (size_t i = 0; i < generated.size(); ++i) std::printf(i ? " %lld" : "%lld", static_cast<long long>(generated[i]));
  std::fprintf(stderr, "\n%zu tokens in %d passes of %s, %.1f ms each\n", generated.size(), passes,
               options.method.c_str(), took.count() / std::max(passes, 1));
  std::printf("\n");
  sf_free_session(session);
  sf_close(program);
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
