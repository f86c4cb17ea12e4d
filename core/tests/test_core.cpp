// Tests of the core by itself.
#include <cmath>
#include <cstdlib>
#include <new>
#include <string_view>

#include "../accept.h"
#include "../decide.h"
#include "../engine.h"
#include "../error.h"
#include "../suffix_index.h"
#include "hash_engine.h"

using namespace streamfuse;

namespace {
// Calls of `operator new` by the whole process while `counts_allocations` is set.
bool counts_allocations = false;
int64_t allocations = 0;
}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  allocations += counts_allocations;
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

// A random tree of at most `most` nodes; most of its tokens follow the greedy text.
void grow_any(std::vector<int64_t> text, int64_t most, std::mt19937& random, Tree& tree) {
  tree.set_root(text.back());
  std::vector<std::vector<int64_t>> texts = {std::move(text)};
  while (tree.size() < most) {
    const int64_t parent = static_cast<int64_t>(random()) % tree.size();
    std::vector<int64_t> path = texts[static_cast<size_t>(parent)];
    const int64_t token = random() % 4 > 0 ? greedy_after(path) : static_cast<int64_t>(random()) % kVocabulary;
    if (tree.child(parent, token) > 0 && random() % 4 > 0) break;
    path.push_back(token);
    texts.push_back(std::move(path));
    tree.add(token, parent, 0.0, SF_STREAMS);
  }
}

void any_tree_leaves_the_text_as_it_is() {
  const std::shared_ptr<const Model> bundle = model();
  const std::vector<int64_t> prompt = {3, 1, 4};
  std::mt19937 random(5);
  for (const Generation& generation : generations()) {
    Generation plain = generation;
    plain.speculative = false;
    HashEngine other;
    const sf_backend functions = other.table();
    Session session(bundle, Backend(&functions), {});
    const std::vector<int64_t> expected = text_of(session, prompt, plain);
    int64_t accepted = 0;
    for (int repeat = 0; repeat < 20; ++repeat) {
      HashEngine hashes;
      const sf_backend table = hashes.table();
      Engine engine(bundle->spec, Backend(&table));
      Acceptor acceptor(kVocabulary, kCapacity);
      Statistics statistics;
      Stopwatch watch(nullptr, nullptr);
      Path path;
      std::vector<int64_t> text = prompt;
      engine.prefill({text.data(), text.size() - 1});
      while (text.size() < expected.size()) {
        Tree tree;
        grow_any(text, 1 + static_cast<int64_t>(random() % 8), random, tree);
        const int64_t room = static_cast<int64_t>(expected.size() - text.size());
        const int64_t method = tree.size() == 1 ? kDecode : tree.size() <= 4 ? 0 : 1;
        const sf_results& results = engine.run(method, tree, tree.size(), generation.sampling.needs_logits());
        acceptor.accept(tree, tree.size(), results, generation, nullptr, text, room, statistics, watch, path);
        engine.commit(path.rows);
        text.insert(text.end(), path.tokens.begin(), path.tokens.end());
        accepted += static_cast<int64_t>(path.tokens.size()) - 1;
        expect(hashes.cache == std::vector<int64_t>(text.begin(), text.end() - 1), "the cache holds the text");
      }
      expect(text == expected, "a text under random trees is the plain one");
    }
    expect(accepted > 200 || generation.sampling.temperature > 0, "greedy drafts are accepted");
    expect(accepted > 20, "drafts are accepted");
  }
}

void whatever_passes_cost_the_text_is_the_plain_one() {
  const std::shared_ptr<const Model> bundle = model();
  std::mt19937 random(6);
  for (const Generation& generation : generations()) {
    HashEngine hashes;
    const sf_backend table = hashes.table();
    Session session(bundle, Backend(&table), {});
    Generation plain = generation;
    plain.speculative = false;
    const std::vector<int64_t> expected = text_of(session, {3, 1, 4, 1, 5, 3, 1, 4}, plain);
    for (int repeat = 0; repeat < 20; ++repeat) {
      double ms[3];
      for (double& one : ms) one = 1.0 + static_cast<double>(random() % 300) / 100.0;
      session.set_costs(ms, ms, 3, repeat % 2 == 0);
      session.reset();
      expect(text_of(session, {3, 1, 4, 1, 5, 3, 1, 4}, generation) == expected, "costs change no token");
    }
  }
}

// Passes of random durations, so that any width may first be chosen at any token.
void a_token_allocates_no_memory_whatever_passes_cost() {
  struct RandomClock {
    std::mt19937 random{7};
    double seconds = 0.0;
    double now() { return seconds += 1e-3 * std::pow(static_cast<double>(1 + random() % 1000) / 100.0, 3.0); }
  } clock;
  sf_sequence_options options = {};
  options.clock = [](void* self) { return static_cast<RandomClock*>(self)->now(); };
  options.clock_context = &clock;
  const std::shared_ptr<const Model> bundle = model();
  static int64_t verified = 0;
  for (const Generation& generation : generations())
    for (int repeat = 0; repeat < 40; ++repeat) {
      HashEngine hashes;
      sf_backend table = hashes.table();
      static const auto run = table.run;
      table.run = [](void* self, const char* method, auto... arguments) {
        verified += counts_allocations && std::string_view(method).starts_with("verify");
        counts_allocations = false;  // the test's engine allocates
        const int code = run(self, method, arguments...);
        counts_allocations = true;
        return code;
      };
      static const auto commit = table.commit;
      table.commit = [](auto... arguments) {
        counts_allocations = false;
        const int code = commit(arguments...);
        counts_allocations = true;
        return code;
      };
      Session session(bundle, Backend(&table), options);
      for (const int64_t first : {3, 9}) {
        const std::vector<int64_t> prompt = {first, 1, 4, 1, 5, first, 1, 4};
        session.start(prompt.data(), static_cast<int64_t>(prompt.size()), generation, Owned<sf_constraint>(nullptr));
        sf_token token;
        session.next(token);  // the prompt, and buffers that depend on the options
        allocations = 0;
        counts_allocations = true;
        while (session.next(token)) {
        }
        counts_allocations = false;
        expect(allocations == 0, std::to_string(allocations) + " allocations in a text after its first token");
      }
    }
  expect(verified > 100, "drafts are verified");
}

void a_failing_engine_leaves_text_and_cache_together() {
  const std::shared_ptr<const Model> bundle = model();
  for (int64_t at = 0; at < 12; ++at) {
    HashEngine hashes;
    {
      const sf_backend table = hashes.table();
      Session session(bundle, Backend(&table), {});
      const double ms[] = {1.0, 1.0, 1.0};
      session.set_costs(ms, ms, 3, true);
      hashes.fail_at = at;
      std::string sentence;
      try {
        text_of(session, {3, 1, 4}, {});
      } catch (const Failure& failure) {
        sentence = failure.what();
      }
      expect(sentence == "no power", "the engine's own sentence is thrown");
      expect(hashes.idles, "the engine is idle after an error");
      const auto& tokens = session.tokens();
      expect(static_cast<int64_t>(hashes.cache.size()) == session.cached(),
             "the cache is as long as the session knows");
      expect(std::equal(hashes.cache.begin(), hashes.cache.end(), tokens.begin()), "the cache holds the text's begin");
      HashEngine fresh;
      const sf_backend again = fresh.table();
      Session other(bundle, Backend(&again), {});
      expect(text_of(session, {3, 1, 4}, {}) == text_of(other, {3, 1, 4}, {}), "the session goes on as a new one");
    }
    expect(hashes.releases == 1, "an engine is given back once");
  }
}

void an_engine_is_idle_after_measuring() {
  HashEngine hashes;
  const sf_backend table = hashes.table();
  Session session(model(), Backend(&table), {});
  session.prepare();
  expect(hashes.furthest == 0 && !hashes.rows.empty(), "passes are measured, none is kept");
  expect(hashes.idles, "the engine is idle after measuring");
}

// The number of nodes is 1; the numbers of streams and candidates are the bundle's.
void streams_of_one_node_are_two_arrays() {
  static const int64_t ids[] = {4, 5};
  static const float log_probs[] = {-1.0f, -2.0f};
  HashEngine hashes;
  sf_backend table = hashes.table();
  table.streams = [](void*, int32_t, int64_t, sf_results* out) {
    out->stream_ids = ids;
    out->stream_log_probs = log_probs;
    return int{SF_OK};
  };
  Spec spec = model()->spec;
  spec.num_streams = 1;
  spec.top_k = 2;
  Engine engine(spec, Backend(&table));
  expect(engine.streams(0, 3).ids == ids, "no more than the two arrays is needed");
}

// ---- decisions ----

struct Situation {
  std::shared_ptr<const Model> bundle = model();
  Costs costs{bundle->spec};
  PlanState state;
  Tree tree;
  std::vector<double> hits = {1.0};

  Situation(double plain, double verify_4, double verify_8) {
    const double ms[] = {plain, verify_4, verify_8};
    costs.set(ms, ms, 3, true);
    tree.set_root(1);
  }
  // A chain of drafts, each accepted with this probability.
  Situation& chain(int64_t length, double probability) {
    for (int64_t i = 0; i < length; ++i) {
      tree.add(2 + i, tree.size() - 1, 0.0, SF_LOOKUP);
      hits.push_back(hits.back() * probability);
    }
    return *this;
  }
  Step decide() const { return streamfuse::decide(state, {bundle->spec, costs, false, false}, tree, hits); }
};

void what_an_engine_cannot_go_back_to_is_read_again() {
  const std::shared_ptr<const Model> bundle = model();
  std::mt19937 random(8);
  int reread = 0;
  for (int repeat = 0; repeat < 40; ++repeat) {
    HashEngine hashes;
    hashes.goes_back = 1 + static_cast<int64_t>(random() % 12);
    const sf_backend table = hashes.table();
    Session session(bundle, Backend(&table), {});
    std::vector<int64_t> text = {3, 1, 4, 1, 5};
    for (int turn = 0; turn < 6; ++turn) {
      text.resize(1 + random() % text.size());
      text.push_back(static_cast<int64_t>(random()) % kVocabulary);
      Generation generation;
      generation.max_new_tokens = 10;
      HashEngine fresh;
      const sf_backend functions = fresh.table();
      Session other(bundle, Backend(&functions), {});
      const std::vector<int64_t> expected = text_of(other, text, generation);
      text = text_of(session, text, generation);
      expect(text == expected, "a text after another one is the same");
      expect(hashes.cache == std::vector<int64_t>(text.begin(), text.end() - 1), "the cache holds the text");
      reread += session.statistics().find("\"reread_tokens\": 0") == std::string::npos;
    }
  }
  expect(reread > 20 && reread < 220, "some texts read tokens again");
}

void decisions_follow_expected_gain_and_budget() {
  expect(Situation(1.0, 1.1, 1.2).chain(3, 0.9).decide().method == 0, "a likely draft on a cheap pass is verified");
  expect(Situation(1.0, 1.1, 1.2).chain(7, 0.95).decide().method == 1, "a long one takes the wider pass");
  const Step refused = Situation(1.0, 3.0, 4.0).chain(3, 0.3).decide();
  expect(refused.method == kDecode && refused.reason == kVerifyingCosts, "a costly pass is refused, with the reason");
  expect(Situation(1.0, 1.1, 1.2).decide().reason == kNothingToDraft, "without a draft, the reason is that");
  Situation narrow(1.0, 1.1, 1.2);
  narrow.chain(2, 0.9).chain(5, 0.001);
  expect(narrow.decide().method == 0 && narrow.decide().nodes <= 4,
         "unlikely rows are cut, and the narrower pass taken");
  Situation broke(1.0, 2.0, 2.5);
  broke.chain(3, 0.8).state.budget = -0.3;
  expect(broke.decide().method == kDecode, "what the budget cannot pay is not run");
  broke.state.budget = 1.0;
  expect(broke.decide().method == 0, "and is run where it can");
  const PlanState before = broke.state;
  broke.decide();
  expect(before.budget == broke.state.budget && before.worth == broke.state.worth, "deciding changes no state");
}

void streams_that_do_not_pay_are_backed_off() {
  Situation one(1.0, 1.5, 2.0);
  one.chain(3, 0.5);
  const Facts facts = {one.bundle->spec, one.costs, true, true};
  PlanState state;
  int64_t tried = 0;
  for (int step = 0; step < 200; ++step) {
    const bool in_trial = state.trials < 4;  // outside of trials nobody asks for streams
    const Outcome outcome = {{0, 4, nullptr}, 1, in_trial, 0.2, 100, std::nullopt};
    tried += record(state, facts, outcome);
  }
  expect(state.reason == kRejected, "the reason is that drafts were rejected");
  expect(tried > 0 && tried < 8, "trials are repeated ever more seldom");
  expect(state.budget >= -0.3, "debts are bounded");
  state.retry = state.position + 768;
  Situation cheap(1.0, 1.1, 1.2);
  PlanState other = state;
  begin_text(other, {cheap.bundle->spec, cheap.costs, true, true});
  expect(other.retry <= state.position + 25, "cheap streams are tried soon in a new text");
  begin_text(state, facts);
  expect(state.retry == state.position + 125, "streams that cost half a plain pass once plain passes paid for them");
}

void an_expensive_trial_is_postponed_and_not_restarted() {
  Situation expensive(1.0, 9.0, 10.0), cheap(1.0, 1.5, 2.0);
  Spec spec = expensive.bundle->spec;
  spec.num_streams = 3;
  PlanState state;
  const Outcome plain = {{kDecode, 1, nullptr}, 1, false, 1.0, 100, std::nullopt};
  for (int step = 0; step < 100; ++step)
    expect(!record(state, {spec, expensive.costs, true, false}, plain), "no trial begins");
  state.trials = 2;
  record(state, {spec, expensive.costs, true, false}, plain);
  expect(state.trials == 2, "an unfinished trial is kept");
  const Step step = decide(state, {spec, cheap.costs, true, false}, cheap.tree, cheap.hits);
  expect(step.method == 0, "and continues when its price falls");
}

void plain_passes_are_measured_now_and_then() {
  Situation one(1.0, 1.2, 1.4);
  one.chain(3, 0.9);
  const double ms[] = {1.0, 1.2, 1.4};
  const auto verified = [&] {  // passes until a plain one runs
    int64_t passes = 0;
    while (passes < 1000 && one.decide().method != kDecode) {
      one.costs.observe(0, 4, 1.2);
      ++passes;
    }
    return passes;
  };
  one.costs.set(ms, ms, 3, true);
  expect(one.decide().method == 0 && !one.costs.plain_is_due(), "frozen costs are never measured");
  one.costs.set(ms, ms, 3, false);
  const int64_t first = verified();
  one.costs.observe(kDecode, 1, 1.0);
  const int64_t second = verified();
  expect(first > 0 && second == 2 * first, "the interval doubles if the cost was as expected");
  one.costs.observe(kDecode, 1, 0.5);
  expect(one.costs.of(kDecode) < 0.9, "the first plain pass after many others is weighted more");
  expect(verified() == first, "the interval is halved if it was not");
  const Step step = one.decide();
  const PlanState before = one.state;
  record(one.state, {one.bundle->spec, one.costs, true, true}, {step, 1, true, 1.0, 100, std::nullopt});
  expect(step.measures && one.state.worth == before.worth && one.state.trials == before.trials,
         "a measuring pass does not count as a step with streams");
  one.costs.observe(kDecode, 1, 0.0);
  expect(!one.costs.plain_is_due(), "a plain pass of 0 ms counts as a measurement");
}

// What an index finds, by comparing all places.
std::vector<size_t> places_of_the_longest_match(const SuffixIndex& index, const std::vector<int64_t>& path) {
  std::vector<size_t> places;
  size_t longest = 1;
  for (size_t place = index.size() - 1; place > 0 && place < index.size(); --place) {
    size_t same = 0;
    while (same < std::min({SuffixIndex::kLongest, path.size(), place}) && index[place - 1 - same] == path[same])
      ++same;
    if (same < longest || index[place] == SuffixIndex::kBoundary) continue;
    if (same > longest) places.clear();
    longest = same;
    places.push_back(place);
  }
  return places;
}

void an_index_finds_the_longest_match_after_any_changes() {
  std::mt19937 random(3);
  for (int repeat = 0; repeat < 300; ++repeat) {
    const int64_t tokens = 1 + static_cast<int64_t>(random() % 5);
    const size_t capacity = 1 + random() % 120;
    SuffixIndex index(capacity);
    for (int change = 0; change < 20; ++change) {
      if (random() % 3 == 0) index.shorten(random() % (index.size() + 2));
      for (size_t more = random() % 40; more > 0 && index.size() < capacity; --more)
        index.add(random() % 12 == 0 ? SuffixIndex::kBoundary : static_cast<int32_t>(random() % 5) % tokens);
      std::vector<int64_t> path(random() % 10);
      for (int64_t& token : path) token = static_cast<int64_t>(random() % 5) % tokens;
      SuffixIndex::Match found = index.longest(path);
      std::vector<size_t> places;
      for (; found.place > 0; found.place = index.before(found.length, found.place)) places.push_back(found.place);
      expect(places == places_of_the_longest_match(index, path), "all places of the longest match, the latest first");
    }
  }
}

}  // namespace

int main() {
  any_tree_leaves_the_text_as_it_is();
  whatever_passes_cost_the_text_is_the_plain_one();
  a_token_allocates_no_memory_whatever_passes_cost();
  a_failing_engine_leaves_text_and_cache_together();
  what_an_engine_cannot_go_back_to_is_read_again();
  an_engine_is_idle_after_measuring();
  streams_of_one_node_are_two_arrays();
  decisions_follow_expected_gain_and_budget();
  streams_that_do_not_pay_are_backed_off();
  an_expensive_trial_is_postponed_and_not_restarted();
  plain_passes_are_measured_now_and_then();
  an_index_finds_the_longest_match_after_any_changes();
  if (failures > 0) return EXIT_FAILURE;
  std::puts("core: all tests passed");
  return EXIT_SUCCESS;
}
