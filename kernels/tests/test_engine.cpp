// Tests of the C interface on a real program, for the sanitizers and for other machines: test_engine model.pte WIDTH
// [ADAPTER], for a program, or an adapter in it, with prefill, decode and verify_WIDTH.
// tests/kernels/test_kernels_sanitizers.py makes a tiny one.
#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/streamfuse_engine.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

// Counts allocations of the whole process, including its libraries.
void* operator new(size_t bytes) {
  ++allocations;
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

int failures = 0;

void expect(bool condition, const std::string& what) {
  if (condition) return;
  std::printf("FAILED: %s\n", what.c_str());
  ++failures;
}

// Separate functions, because arguments of one call are evaluated in any order.
const char* error_of(const sf_program* handle) { return sf_program_error(handle); }
const char* error_of(const sf_engine* handle) { return sf_engine_error(handle); }
const char* error_of(const sf_core_model* handle) { return sf_core_model_error(handle); }
const char* error_of(const sf_sequence* handle) { return sf_sequence_error(handle); }

// The call failed with this code and an error message.
void expect_failure(int code, int expected, const sf_engine* engine, const std::string& what) {
  expect(code == expected, what + ": code " + std::to_string(code) + ", not " + std::to_string(expected));
  expect(std::strlen(error_of(engine)) > 0, what + " has no error message");
}

template <typename Handle>
void check(int code, const Handle* handle) {
  if (code != SF_OK) throw std::runtime_error(error_of(handle));
}
void check(int code, const sf_engine* handle) {
  if (code != SF_OK) throw std::runtime_error(error_of(handle));
}

// The rows of a method, read from the engine's description; 0 if there is no such method.
int64_t rows_of(const std::string& description, const std::string& method) {
  const size_t at = description.find("\"" + method + "\":");
  if (at == std::string::npos) return 0;
  const char* rows = std::strstr(description.c_str() + at, "\"rows\":");
  return rows == nullptr ? 0 : std::atoll(rows + 7);
}

int64_t number_of(const std::string& description, const std::string& name) {
  const size_t at = description.find("\"" + name + "\":");
  return at == std::string::npos ? 0 : std::atoll(description.c_str() + at + name.size() + 3);
}

struct Program {
  sf_program* handle = nullptr;
  sf_core_model* model = nullptr;
  std::string path, adapter, description, verify;
  int64_t prefill_rows, width, capacity, vocab_size;

  Program(const std::string& path, const std::string& verify, const std::string& adapter)
      : path(path), adapter(adapter), verify(verify) {
    const int code = sf_program_open(path.c_str(), 2, nullptr, &handle);
    check(code, handle);
    if (!adapter.empty()) {
      sf_program* const base = handle;
      const int found = sf_program_adapter(base, adapter.c_str(), &handle);
      check(found, handle);
      sf_program_close(base);
    }
    const char* text;
    check(sf_program_describe(handle, &text), handle);
    description = text;
    prefill_rows = rows_of(description, "prefill");
    width = rows_of(description, verify);
    capacity = number_of(description, "capacity");
    vocab_size = number_of(description, "vocab_size");
    if (prefill_rows == 0 || width < 2 || capacity < 32)
      throw std::runtime_error("not a program for this test: " + description);
    sf_spec spec;
    check(sf_program_spec(handle, &spec), handle);
    const int opened = sf_core_model_open(&spec, nullptr, 0, &model);
    check(opened, model);
  }
  ~Program() {
    sf_core_model_close(model);
    sf_program_close(handle);
  }
};

struct Engine {
  sf_engine* handle = nullptr;
  explicit Engine(const Program& program) { check(sf_engine_new(program.handle, &handle), program.handle); }
  ~Engine() { sf_engine_free(handle); }
  operator sf_engine*() const { return handle; }
  int64_t length() const {
    int64_t found;
    check(sf_engine_length(handle, &found), handle);
    return found;
  }
};

// A pass over a chain of tokens that follow the committed ones.
void run_chain(const Engine& engine, const std::string& method, const std::vector<int64_t>& tokens,
               bool want_logits = false) {
  const size_t n = tokens.size();
  std::vector<int64_t> positions(n);
  std::vector<uint8_t> ancestors(n * n);
  for (size_t i = 0; i < n; ++i) {
    positions[i] = engine.length() + static_cast<int64_t>(i);
    std::fill_n(&ancestors[i * n], i + 1, 1);
  }
  check(sf_engine_run(engine, method.c_str(), static_cast<int>(n), tokens.data(), positions.data(), ancestors.data(),
                      want_logits),
        engine);
}

void commit_first(const Engine& engine, size_t n) {
  std::vector<int32_t> rows(n);
  for (size_t i = 0; i < n; ++i) rows[i] = static_cast<int32_t>(i);
  check(sf_engine_commit(engine, rows.data(), static_cast<int>(n)), engine);
}

void prefill(const Engine& engine, const std::vector<int64_t>& prompt, size_t rows) {
  for (size_t start = 0; start + 1 < prompt.size(); start += rows) {
    const size_t end = std::min(start + rows, prompt.size() - 1);
    run_chain(engine, "prefill", {prompt.begin() + start, prompt.begin() + end});
    commit_first(engine, end - start);
  }
}

// The core on an engine of this program.
struct Session {
  sf_sequence* handle = nullptr;
  explicit Session(const Program& program) {
    sf_engine* engine = nullptr;
    sf_backend backend;
    check(sf_engine_new(program.handle, &engine), program.handle);
    check(sf_engine_backend(engine, &backend), engine);
    const int code = sf_sequence_new(program.model, &backend, nullptr, &handle);
    check(code, handle);
  }
  ~Session() { sf_sequence_free(handle); }
};

std::vector<int64_t> prompt_of(const Program& program, int64_t seed, size_t length) {
  std::vector<int64_t> tokens(length);
  for (size_t i = 0; i < length; ++i) tokens[i] = (seed + 37 * static_cast<int64_t>(i * i)) % program.vocab_size;
  return tokens;
}

std::vector<int64_t> text_of(const Program& program, const Session& session, int64_t seed, bool speculative) {
  const std::vector<int64_t> prompt = prompt_of(program, seed, 11);
  sf_options options;
  sf_default_options(&options);
  options.max_new_tokens = 12;
  options.speculative = speculative;
  options.width = static_cast<int32_t>(program.width);
  if (seed % 3 == 2) options.width = 0;  // chosen by the planner
  if (seed % 2 == 1) {
    options.temperature = 0.8;
    options.top_p = 0.9;
    options.seed = static_cast<uint64_t>(seed);
  }
  check(sf_sequence_reset(session.handle), session.handle);
  check(sf_sequence_start(session.handle, prompt.data(), static_cast<int64_t>(prompt.size()), &options),
        session.handle);
  std::vector<int64_t> text;
  sf_token token;
  int code;
  while ((code = sf_sequence_next(session.handle, &token)) == SF_OK) text.push_back(token.id);
  if (code != SF_END) throw std::runtime_error(error_of(session.handle));
  return text;
}

void speculation_changes_no_token(const Program& program) {
  const Session session(program);
  for (int64_t seed : {1, 2, 3})
    expect(text_of(program, session, seed, true) == text_of(program, session, seed, false),
           "speculative text differs from plain text");
}

void a_token_allocates_no_memory(const Program& program) {
  const Session session(program);
  (void)text_of(program, session, 1, true);  // scratch memory of the operators
  for (const int64_t seed : {1, 2, 4}) {
    const std::vector<int64_t> prompt = prompt_of(program, seed, 11);
    sf_options options;
    sf_default_options(&options);
    options.max_new_tokens = 12;
    options.width = seed == 2 ? 0 : static_cast<int32_t>(program.width);
    check(sf_sequence_reset(session.handle), session.handle);
    check(sf_sequence_start(session.handle, prompt.data(), static_cast<int64_t>(prompt.size()), &options),
          session.handle);
    sf_token token;
    check(sf_sequence_next(session.handle, &token), session.handle);
    const int64_t before = allocations;
    for (int count = 0; count < 8; ++count) check(sf_sequence_next(session.handle, &token), session.handle);
    const int64_t made = allocations - before;
    expect(made == 0, std::to_string(made) + " allocations in eight tokens");
  }
}

void sessions_of_one_program_do_not_disturb_each_other(const Program& program) {
  std::vector<std::vector<int64_t>> alone, together(4);
  for (int64_t seed = 0; seed < 4; ++seed) alone.push_back(text_of(program, Session(program), seed, seed % 2));
  std::vector<std::thread> threads;
  for (int64_t seed = 0; seed < 4; ++seed)
    threads.emplace_back([&, seed] {
      const Session session(program);
      for (int i = 0; i < 3; ++i) together[seed] = text_of(program, session, seed, seed % 2);
    });
  for (std::thread& thread : threads) thread.join();
  expect(together == alone, "sessions in threads disturb each other");
}

void a_session_outlives_its_neighbours(const Program& program) {
  const Session session(program);
  const std::vector<int64_t> expected = text_of(program, session, 5, false);
  for (int i = 0; i < 3; ++i) (void)Session(program);
  {
    const Program again(program.path, program.verify, program.adapter);
  }
  expect(text_of(program, session, 5, false) == expected, "closing others changed a session");
}

void wrong_passes_are_refused(const Program& program) {
  const Engine session(program);
  const int64_t id = 1, place = 0, ids[2] = {1, 2}, places[2] = {0, 1};
  const uint8_t self = 1, chain[4] = {1, 0, 1, 1}, above[4] = {1, 1, 1, 1}, blind[4] = {1, 0, 1, 0};
  const auto run = [&](const char* method, int n, const int64_t* i, const int64_t* p, const uint8_t* a) {
    return sf_engine_run(session, method, n, i, p, a, 0);
  };
  const char* verify = program.verify.c_str();
  expect_failure(run("verify_999", 1, &id, &place, &self), SF_BAD_ARGUMENT, session, "an unknown method");
  expect_failure(run(nullptr, 1, &id, &place, &self), SF_BAD_ARGUMENT, session, "no method");
  expect_failure(run("decode", 0, &id, &place, &self), SF_BAD_ARGUMENT, session, "no rows");
  expect_failure(run("decode", -3, &id, &place, &self), SF_BAD_ARGUMENT, session, "a negative number of rows");
  expect_failure(run("decode", 2, ids, places, chain), SF_BAD_ARGUMENT, session, "more rows than the method has");
  expect_failure(run("decode", 1, nullptr, &place, &self), SF_BAD_ARGUMENT, session, "no ids");
  expect_failure(run("decode", 1, &id, nullptr, &self), SF_BAD_ARGUMENT, session, "no positions");
  expect_failure(run("decode", 1, &id, &place, nullptr), SF_BAD_ARGUMENT, session, "no ancestors");
  expect_failure(run(verify, 2, ids, places, above), SF_BAD_ARGUMENT, session, "a row that sees a later one");
  expect_failure(run(verify, 2, ids, places, blind), SF_BAD_ARGUMENT, session, "a row that does not see itself");
  for (const int64_t wrong : {int64_t{-1}, program.vocab_size, int64_t{1} << 40})
    expect_failure(run("decode", 1, &wrong, &place, &self), SF_BAD_ARGUMENT, session, "an id outside the vocabulary");
  for (const int64_t wrong : {int64_t{-1}, program.capacity, int64_t{1} << 40})
    expect_failure(run("decode", 1, &id, &wrong, &self), SF_BAD_ARGUMENT, session, "a position outside the context");
}

void wrong_commits_and_lengths_are_refused(const Program& program) {
  const Engine session(program);
  const int32_t first = 0, far = 99, negative = -1;
  sf_results results;
  expect_failure(sf_engine_read(session, &results), SF_NOT_KEPT, session, "results before any pass");
  expect_failure(sf_engine_commit(session, &first, 1), SF_NOT_KEPT, session, "a commit before any pass");
  run_chain(session, "decode", {1});
  expect_failure(sf_engine_commit(session, &far, 1), SF_NOT_KEPT, session, "a row that was not in the pass");
  expect_failure(sf_engine_commit(session, &negative, 1), SF_NOT_KEPT, session, "a negative row");
  expect_failure(sf_engine_commit(session, nullptr, 1), SF_BAD_ARGUMENT, session, "no rows");
  expect_failure(sf_engine_commit(session, &first, -1), SF_BAD_ARGUMENT, session, "a negative number of rows");
  expect_failure(sf_engine_truncate(session, -1), SF_BAD_ARGUMENT, session, "a negative length");
  expect_failure(sf_engine_truncate(session, 1), SF_BAD_ARGUMENT, session, "a length beyond what is committed");
  expect(session.length() == 0, "a refused call changed the length");
  check(sf_engine_commit(session, &first, 1), session);
  check(sf_engine_truncate(session, 0), session);
  expect_failure(sf_engine_read(session, nullptr), SF_BAD_ARGUMENT, session, "no place for the results");
  expect_failure(sf_engine_streams(session, 99, 0), SF_BAD_ARGUMENT, session, "streams of a node that did not survive");
}

void a_full_context_is_refused_and_can_be_cut(const Program& program) {
  const Engine session(program);
  const int32_t row = 0;
  for (int64_t at = 0; at < program.capacity; ++at) {
    run_chain(session, "decode", {at % program.vocab_size});
    check(sf_engine_commit(session, &row, 1), session);
  }
  const int64_t id = 1, last = program.capacity - 1;
  const uint8_t self = 1;
  int code = sf_engine_run(session, "decode", 1, &id, &last, &self, 0);
  if (code == SF_OK) code = sf_engine_commit(session, &row, 1);
  expect_failure(code, SF_CONTEXT_FULL, session, "a row beyond the capacity");
  expect(session.length() == program.capacity, "a refused row was counted");
  check(sf_engine_truncate(session, 7), session);
  run_chain(session, program.verify, {3, 4});
  commit_first(session, 1);
  expect(session.length() == 8, "truncate and commit do not add up");
}

// A program may change its rounding mode, and a cache of int8 stores rounded rows.
void a_commit_does_not_follow_the_callers_rounding(const Program& program) {
  const size_t n = static_cast<size_t>(std::min(program.prefill_rows, int64_t{8}));
  std::vector<float> logits[2];
  for (const bool downward : {false, true}) {
    const Engine session(program);
    run_chain(session, "prefill", prompt_of(program, 7, n));
    if (downward) std::fesetround(FE_DOWNWARD);
    commit_first(session, n);
    expect(std::fegetround() == (downward ? FE_DOWNWARD : FE_TONEAREST), "a commit changes its caller's rounding");
    std::fesetround(FE_TONEAREST);
    run_chain(session, "decode", {5}, true);
    sf_results results;
    check(sf_engine_read(session, &results), session);
    logits[downward].assign(results.logits, results.logits + results.vocab_size);
  }
  expect(logits[0] == logits[1], "a commit depends on its caller's rounding mode");
}

// The bytes of the whole cache.
std::string saved(const Engine& session) {
  sf_backend backend;
  check(sf_engine_backend(session, &backend), session);
  const auto put = [](void* to, const void* data, uint64_t bytes) {
    static_cast<std::string*>(to)->append(static_cast<const char*>(data), static_cast<size_t>(bytes));
    return int{SF_OK};
  };
  uint64_t expected = 0;
  check(backend.bytes_of(backend.context, session.length(), &expected), session);
  std::string bytes;
  check(backend.save(backend.context, session.length(), put, &bytes), session);
  expect(bytes.size() == expected, "a cache is saved in other bytes than were announced");
  return bytes;
}

void a_saved_cache_has_nothing_of_an_earlier_text(const Program& program) {
  const Engine fresh(program), used(program);
  const size_t rows = static_cast<size_t>(program.prefill_rows);
  prefill(used, prompt_of(program, 3, static_cast<size_t>(program.capacity)), rows);
  for (const int64_t length : {int64_t{5}, program.capacity / 2 + 3, program.capacity - 1}) {
    for (const Engine* session : {&fresh, &used}) {
      check(sf_engine_truncate(*session, 0), *session);
      prefill(*session, prompt_of(program, 9, static_cast<size_t>(length) + 1), rows);
    }
    expect(saved(fresh) == saved(used), "a saved cache depends on the text before its own");
  }
}

void a_trimmed_engine_gives_the_results_of_a_new_one(const Program& program) {
  const Engine fresh(program), used(program);
  sf_results results;
  const auto logits_of = [&](const Engine& session) {
    prefill(session, prompt_of(program, 7, 12), static_cast<size_t>(program.prefill_rows));
    run_chain(session, program.verify, {3, 4}, true);
    check(sf_engine_read(session, &results), session);
    return std::vector<float>(results.logits, results.logits + results.survivors * results.vocab_size);
  };
  const std::vector<float> expected = logits_of(fresh);
  expect(logits_of(used) == expected, "two engines give different results");
  check(sf_engine_truncate(used, 0), used);
  sf_backend backend;
  check(sf_engine_backend(used, &backend), used);
  backend.trim(backend.context);
  expect_failure(sf_engine_read(used, &results), SF_NOT_KEPT, used, "results of before a trim");
  expect(logits_of(used) == expected, "a trimmed engine gives other results");
}

void damaged_files_are_refused(const Program& program) {
  std::ifstream file(program.path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::string path = program.path + ".damaged";
  const auto expect_refused = [](const char* name, int expected, const std::string& what) {
    sf_program* opened = nullptr;
    const int code = sf_program_open(name, 1, nullptr, &opened);
    expect(code != SF_OK && (expected == 0 || code == expected), what + " was opened");
    expect(std::strlen(error_of(opened)) > 0, what + " has no error message");
    sf_program_close(opened);
  };
  expect_refused((path + ".missing").c_str(), SF_BAD_PROGRAM, "a missing file");
  expect_refused(nullptr, SF_BAD_ARGUMENT, "no path");
  for (const size_t bytes : {size_t{0}, size_t{3}, size_t{40}, whole.size() / 3, whole.size() - whole.size() / 4}) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << whole.substr(0, bytes);
    expect_refused(path.c_str(), 0, "a file cut to " + std::to_string(bytes) + " bytes");
  }
  std::remove(path.c_str());
}

void a_manifest_that_is_not_the_programs_is_refused(const Program& program) {
  sf_spec spec;
  check(sf_program_spec(program.handle, &spec), program.handle);
  const std::vector<sf_method> verify(spec.verify, spec.verify + spec.verify_count);
  const auto expect_refused = [&](sf_spec manifest, const char* named) {
    expect(sf_program_check(program.handle, &manifest) == SF_BAD_PROGRAM, std::string(named) + " was not compared");
    const std::string sentence = error_of(program.handle);
    expect(sentence.find(named) != std::string::npos, sentence + " does not name " + named);
  };
  check(sf_program_check(program.handle, &spec), program.handle);
  for (const auto& [field, name] : {std::pair{&sf_spec::capacity, "capacity"},
                                    {&sf_spec::vocab_size, "vocab_size"},
                                    {&sf_spec::num_streams, "num_streams"},
                                    {&sf_spec::top_k, "top_k"},
                                    {&sf_spec::prefill_rows, "prefill_rows"}}) {
    sf_spec other = spec;
    ++(other.*field);
    expect_refused(other, name);
  }
  sf_spec other = spec;
  other.deferred = !spec.deferred;
  expect_refused(other, "deferred");
  for (const auto& [field, name] : {std::pair{&sf_method::rows, "rows of verify_"},
                                    {&sf_method::keep, "keep of verify_"},
                                    {&sf_method::carrying, "stream_nodes of verify_"}}) {
    std::vector<sf_method> changed = verify;
    ++(changed.back().*field);
    other = spec;
    other.verify = changed.data();
    expect_refused(other, name);
  }
  std::vector<sf_method> nameless = verify;
  nameless.back().name = nullptr;
  other = spec;
  other.verify = nameless.data();
  expect(sf_program_check(program.handle, &other) == SF_BAD_ARGUMENT, "a method without a name was taken");
  other.verify = nullptr;
  expect(sf_program_check(program.handle, &other) == SF_BAD_ARGUMENT, "a list that is a null pointer was taken");
  expect(sf_program_check(program.handle, nullptr) == SF_BAD_ARGUMENT, "no spec was taken");
  std::vector<sf_method> more = verify;
  more.push_back({"verify_999", 999, 999, 0});
  other = spec;
  other.verify = more.data();
  ++other.verify_count;
  expect_refused(other, "verify_999");
}

void the_number_of_threads_is_the_described_one(const Program& program) {
  int32_t threads = 0;
  check(sf_program_threads(program.handle, &threads), program.handle);
  expect(threads >= 1 && threads == number_of(program.description, "threads"), "another number is described");
  expect(sf_program_threads(program.handle, nullptr) == SF_BAD_ARGUMENT, "no place for the number was taken");
}

// FNV-1a over the bits of a drafted pass, and of the streams after it if they have a pass of their own. Equal on every
// machine for graphs of this project's operators.
uint64_t digest(const Program& program) {
  const Engine session(program);
  const std::vector<int64_t> prompt = prompt_of(program, 9, 13);
  prefill(session, prompt, static_cast<size_t>(program.prefill_rows));
  run_chain(session, program.verify, prompt_of(program, 4, static_cast<size_t>(program.width)), true);
  uint64_t hash = 1469598103934665603ull;
  const auto add = [&](const auto* values, int64_t count) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values);
    for (size_t i = 0; i < static_cast<size_t>(count) * sizeof *values; ++i)
      hash = (hash ^ bytes[i]) * 1099511628211ull;
  };
  sf_results r;
  const auto add_streams = [&] {
    check(sf_engine_read(session, &r), session);
    const int64_t candidates = r.carrying * r.num_streams * r.top_k;
    add(r.stream_ids, candidates);
    add(r.stream_log_probs, candidates);
  };
  check(sf_engine_read(session, &r), session);
  add(r.logits, r.survivors * r.vocab_size);
  add(r.best, r.survivors);
  add(r.kept, r.survivors);
  add_streams();
  sf_spec spec;
  check(sf_program_spec(program.handle, &spec), program.handle);
  if (spec.deferred != 0) {
    commit_first(session, 1);
    check(sf_engine_streams(session, 0, 5), session);
    add_streams();
  }
  return hash;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: test_engine model.pte WIDTH [ADAPTER]\n");
    return 2;
  }
  try {
    const Program program(argv[1], std::string("verify_") + argv[2], argc == 4 ? argv[3] : "");
    speculation_changes_no_token(program);
    a_token_allocates_no_memory(program);
    sessions_of_one_program_do_not_disturb_each_other(program);
    a_session_outlives_its_neighbours(program);
    wrong_passes_are_refused(program);
    wrong_commits_and_lengths_are_refused(program);
    a_full_context_is_refused_and_can_be_cut(program);
    a_commit_does_not_follow_the_callers_rounding(program);
    a_saved_cache_has_nothing_of_an_earlier_text(program);
    a_trimmed_engine_gives_the_results_of_a_new_one(program);
    damaged_files_are_refused(program);
    a_manifest_that_is_not_the_programs_is_refused(program);
    the_number_of_threads_is_the_described_one(program);
    std::printf("digest: %016llx\n", static_cast<unsigned long long>(digest(program)));
  } catch (const std::exception& error) {
    expect(false, error.what());
  }
  std::printf(failures == 0 ? "ok\n" : "failing: %d\n", failures);
  return failures != 0;
}
