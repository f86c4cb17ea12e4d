// Tests of texts under a constraint, on a small grammar of token ids.
#include <algorithm>

#include "../error.h"
#include "../guide.h"
#include "../lookup.h"
#include "hash_engine.h"

using namespace streamfuse;

namespace {

// The texts ([5 6 7] word+ (8 | 9 | 19 9))*, which end after a 9: "5 6 7" is forced, but token 20 is another spelling
// of "6 7"; a word is a token from 10 to 19, 8 begins the next record, and nothing follows 9, the only token after 19.
// With `free_until`, everything is allowed up to the first token of that id.
struct RecordGrammar {
  std::vector<int32_t> states = {0};  // the last one is the present
  int64_t free_until = -1;
  bool dead_end = false;  // nothing may follow a word
  int releases = 0;
  int64_t fails_on = -1;  // accepting this token is a failure
  int failure = SF_BAD_GRAMMAR;
  int64_t state_fails_at = -1;  // this question for the state from now fails
  int32_t free_state = SF_MAY_END | SF_UNRESTRICTED;
  std::vector<int64_t> accepted;

  RecordGrammar() = default;
  explicit RecordGrammar(int64_t trigger) : states{-1}, free_until(trigger) {}

  // The state after a token, or -2 if it is refused. 0 to 2: in "5 6 7", 3: before the first word, 4: after a word,
  // 5: the end, 6: before the only 9, -1: unrestricted.
  int32_t after(int32_t state, int64_t token) const {
    if (state == -1) return token == free_until ? 0 : -1;
    if (state == 1 && token == 20) return 3;
    if (state <= 2) return token == 5 + state ? state + 1 : -2;
    if (state == 4 && dead_end) return -2;
    if (state <= 4 && token >= 10 && token < 20) return token == 19 ? 6 : 4;
    if (state == 6 && token == 9) return 5;
    if (state == 4 && token == 8) return 0;
    if (state == 4 && token == 9) return 5;
    return -2;
  }

  sf_constraint table() {
    sf_constraint constraint = {};
    constraint.size = sizeof constraint;
    constraint.context = this;
    constraint.accept = [](void* self, int64_t token) {
      RecordGrammar& own = *static_cast<RecordGrammar*>(self);
      if (token == own.fails_on) return own.failure;
      const int32_t next = own.after(own.states.back(), token);
      if (next == -2) return int{SF_BAD_GRAMMAR};
      own.states.push_back(next);
      own.accepted.push_back(token);
      return int{SF_OK};
    };
    constraint.rollback = [](void* self, int32_t n) {
      RecordGrammar& own = *static_cast<RecordGrammar*>(self);
      expect(n < static_cast<int32_t>(own.states.size()), "no more tokens are taken back than were accepted");
      own.states.resize(own.states.size() - static_cast<size_t>(n));
      own.accepted.resize(own.states.size() - 1);
      return int{SF_OK};
    };
    constraint.state = [](void* self, int32_t* state) {
      RecordGrammar& own = *static_cast<RecordGrammar*>(self);
      if (own.state_fails_at-- == 0) return int{SF_EXECUTION};
      const int32_t now = own.states.back();
      *state = now == 5 ? SF_MAY_END | SF_MUST_END : now == -1 ? own.free_state : 0;
      return int{SF_OK};
    };
    constraint.allows = [](void* self, const int64_t* tokens, int32_t n, uint8_t* allowed) {
      const RecordGrammar& own = *static_cast<RecordGrammar*>(self);
      for (int32_t i = 0; i < n; ++i) allowed[i] = own.after(own.states.back(), tokens[i]) != -2;
      return int{SF_OK};
    };
    constraint.mask = [](void* self, uint32_t* bits) {
      const RecordGrammar& own = *static_cast<RecordGrammar*>(self);
      for (int64_t token = 0; token < kVocabulary; ++token)
        if (own.after(own.states.back(), token) != -2) bits[token / 32] |= 1u << (token % 32);
      return int{SF_OK};
    };
    constraint.forced = [](void* self, int64_t* tokens, int32_t room, int32_t* n) {
      const int32_t now = static_cast<RecordGrammar*>(self)->states.back();
      *n = 0;
      for (int32_t state = now; now >= 0 && state <= 2 && *n < room; ++state) tokens[(*n)++] = 5 + state;
      if (now == 6 && room > 0) tokens[(*n)++] = 9;
      return int{SF_OK};
    };
    constraint.choice_key = [](void* self, uint64_t* key) {
      const int32_t now = static_cast<RecordGrammar*>(self)->states.back();
      *key = now == 3 || now == 4 ? static_cast<uint64_t>(now) : 0;
      return int{SF_OK};
    };
    constraint.error = [](void*) { return "refused by the test"; };
    constraint.release = [](void* self) { ++static_cast<RecordGrammar*>(self)->releases; };
    return constraint;
  }

  bool accepts(const std::vector<int64_t>& text, size_t from) const {
    int32_t state = states.front();
    for (size_t i = from; i < text.size() && state != -2; ++i) state = after(state, text[i]);
    return state != -2;
  }
};

const std::vector<int64_t> kPrompt = {3, 1, 4, 1, 5, 6, 7, 11, 12, 8, 5, 6, 7, 11};

// A session on an engine of its own, with the latency of its passes in plain passes.
struct Bench {
  HashEngine hashes;
  sf_backend table = hashes.table();
  Session session{model(), Backend(&table), {}};

  explicit Bench(double verify_4 = 1.05, double verify_8 = 1.1) {
    const double ms[] = {1.0, verify_4, verify_8};
    session.set_costs(ms, ms, 3, true);
  }
  std::vector<int64_t> text(const Generation& generation, RecordGrammar& grammar) {
    const sf_constraint constraint = grammar.table();
    return text_of(session, kPrompt, generation, &constraint);
  }
  int64_t counted(const std::string& name) const {
    const std::string json = session.statistics(), key = "\"" + name + "\": ";
    return std::stoll(json.substr(json.find(key) + key.size()));
  }
};

// What a call fails with: SF_OK and "" if it does not fail.
template <typename Call>
Failure failure_of(const Call& call) {
  try {
    call();
  } catch (const Failure& failure) {
    return failure;
  }
  return {SF_OK, ""};
}

void constrained_text_is_the_same_with_drafts() {
  for (const int64_t trigger : {int64_t{-1}, int64_t{12}}) {
    const auto grammar = [&] { return trigger < 0 ? RecordGrammar() : RecordGrammar(trigger); };
    for (Generation generation : generations()) {
      for (uint64_t seed = 0; seed < 12; ++seed) {
        generation.sampling.seed = seed;
        generation.max_new_tokens = 5 + static_cast<int64_t>(seed) * 5;
        Generation plain = generation;
        plain.speculative = false;
        RecordGrammar own = grammar();
        Bench one;
        const std::vector<int64_t> expected = one.text(plain, own);
        const std::string reason = one.session.finish_reason();
        expect(own.releases == 1, "a constraint is released at the end of the text");
        expect(own.accepts(expected, kPrompt.size()), "the text is in the grammar");
        expect(reason == (expected.back() == 9 && trigger < 0 ? "stop" : reason), "a complete text ends");
        for (const int64_t width : {0, 4, 8}) {
          generation.width = width;
          Bench other(1.0 + 0.02 * static_cast<double>(seed));
          RecordGrammar again = grammar();
          expect(other.text(generation, again) == expected, "drafts change no token of a constrained text");
          expect(other.session.finish_reason() == reason, "drafts do not change why a text ends");
          expect(again.releases == 1, "the constraint of a text with drafts is released");
        }
      }
    }
  }
}

void forced_tokens_are_drafted_and_refused_ones_are_not() {
  RecordGrammar grammar, again;
  Generation plain;
  plain.speculative = false;
  Bench one, other;
  one.text(plain, grammar);
  other.text({}, again);
  expect(one.counted("forced_tokens") == 0, "plain decoding drafts nothing");
  expect(other.counted("forced_tokens") > 0, "what the grammar forces is drafted");
  expect(other.counted("grammar") > 0, "drafts that the grammar forces are accepted");
  expect(other.counted("refused_drafts") > 0, "look-up offers tokens that the grammar refuses");
  expect(other.counted("target_forward_passes") < one.counted("target_forward_passes"), "drafts save passes");
}

void a_limit_inside_the_grammar_is_incomplete() {
  RecordGrammar grammar;
  Generation generation;
  generation.max_new_tokens = 2;
  Bench bench;
  bench.text(generation, grammar);
  expect(std::string(bench.session.finish_reason()) == "incomplete", "a limit inside the grammar is told");
}

void end_tokens_are_allowed_only_at_the_end() {
  Generation generation;
  generation.stop_ids = {5, 10, 11, 12, 13, 14, 15, 16, 17, 18};  // the grammar allows them, but not as ends
  RecordGrammar grammar;
  Bench bench;
  const Failure failure = failure_of([&] { bench.text(generation, grammar); });
  expect(failure.code == SF_BAD_GRAMMAR, "a grammar that cannot go on has its own code");
  expect(std::string(failure.what()).find("allows no token") != std::string::npos,
         "an end token does not end a text inside the grammar");
  expect(bench.session.tokens().size() == kPrompt.size(), "a refused end token is not part of the text");
}

void a_dead_end_fails_alike_with_and_without_drafts() {
  std::vector<std::vector<int64_t>> texts;
  for (const bool speculative : {false, true}) {
    RecordGrammar grammar;
    grammar.dead_end = true;
    Generation generation;
    generation.speculative = speculative;
    Bench bench;
    const std::string sentence = failure_of([&] { bench.text(generation, grammar); }).what();
    expect(sentence.find("after the first 4 tokens") != std::string::npos, "the message says where the grammar ends");
    texts.push_back(bench.session.tokens());
    expect(grammar.releases == 1, "a failed text's constraint is released");
  }
  expect(texts[0] == texts[1], "both deliver the tokens before the dead end");
}

void a_failing_constraint_fails_alike_with_and_without_drafts() {
  int failed = 0;
  for (int64_t token = 5; token < 20; ++token) {
    std::vector<std::vector<int64_t>> texts;
    std::vector<std::string> sentences;
    Bench bench;
    for (const bool speculative : {false, true}) {
      RecordGrammar grammar;
      grammar.fails_on = token;
      Generation generation;
      generation.speculative = speculative;
      sentences.push_back(failure_of([&] { bench.text(generation, grammar); }).what());
      texts.push_back(bench.session.tokens());
    }
    expect(texts[0] == texts[1] && sentences[0] == sentences[1], "drafts that lead to a failure change nothing");
    failed += sentences[0] == "refused by the test";
    RecordGrammar next;
    bench.text({}, next);
    expect(bench.counted("forced_tokens") > 0 && bench.counted("refused_drafts") > 0,
           "the next text is drafted from all sources");
  }
  expect(failed >= 3, "some texts fail");
}

void after_a_failure_the_constraint_is_where_the_text_is() {
  RecordGrammar grammar;
  Bench plain;
  const std::vector<int64_t> expected = plain.text({}, grammar);
  int whole = 0, cut = 0;
  for (int64_t at = 0; at < 400; ++at) {
    RecordGrammar failing;
    failing.state_fails_at = at;
    Bench bench;
    const Failure failure = failure_of([&] { bench.text({}, failing); });
    const bool failed = failure.code != SF_OK;
    expect(!failed || std::string(failure.what()) == "refused by the test", "only the failure itself ends a text");
    const std::vector<int64_t>& text = bench.session.tokens();
    expect(text.size() <= expected.size() && std::equal(text.begin(), text.end(), expected.begin()),
           "a failure that passes changes no token");
    expect(failed || text == expected, "a failure that passes does not change where the text ends");
    if (failing.state_fails_at < 0) ++(failed ? cut : whole);
  }
  expect(whole > 5 && cut > 5, "some failures end the text, others only a draft");
}

void the_code_of_a_failure_is_never_that_of_an_end() {
  RecordGrammar grammar;
  grammar.fails_on = 5;
  grammar.failure = SF_END;
  Bench bench;
  const Failure failure = failure_of([&] { bench.text({}, grammar); });
  expect(failure.code == SF_EXECUTION, "a constraint that fails does not end the text as if it were complete");
}

void end_tokens_wait_until_an_unrestricted_text_may_end() {
  int ended = 0, different = 0;
  for (Generation generation : generations()) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      generation.sampling.seed = seed;
      generation.stop_ids = {2, 13, 21, 30};
      generation.speculative = false;
      std::vector<std::vector<int64_t>> texts;
      for (const int32_t state : {int{SF_UNRESTRICTED}, SF_UNRESTRICTED | SF_MAY_END}) {
        RecordGrammar grammar(12), again(12);
        grammar.free_state = again.free_state = state;
        Bench one, other(1.0 + 0.02 * static_cast<double>(seed));
        texts.push_back(one.text(generation, grammar));
        const std::string reason = one.session.finish_reason();
        const bool triggered = std::find(texts.back().begin() + static_cast<ptrdiff_t>(kPrompt.size()),
                                         texts.back().end(), 12) != texts.back().end();
        expect(reason != "stop" || triggered || state != SF_UNRESTRICTED, "a text does not end before it may");
        ended += reason == "stop" && !triggered;
        Generation drafts = generation;
        drafts.speculative = true;
        expect(other.text(drafts, again) == texts.back(), "drafts change no token");
        expect(other.session.finish_reason() == reason, "drafts do not change why a text ends");
      }
      different += texts[0] != texts[1];
    }
  }
  expect(ended > 5 && different > 5, "some texts that may end do so");
}

void stop_tokens_outside_the_vocabulary_are_no_tokens() {
  Generation generation;
  generation.stop_ids = {-1, kVocabulary, int64_t{1} << 40};
  RecordGrammar grammar;
  Bench bench;
  bench.text(generation, grammar);
  expect(grammar.accepts(bench.session.tokens(), kPrompt.size()), "such stop tokens are not looked for in a mask");
}

void a_refused_start_releases_the_constraint() {
  RecordGrammar grammar;
  Generation generation;
  generation.width = 5;
  Bench bench;
  const Failure failure = failure_of([&] { bench.text(generation, grammar); });
  expect(failure.code == SF_BAD_ARGUMENT, "a width that the bundle lacks is refused");
  expect(grammar.releases == 1, "a refused start releases the constraint");
}

void a_call_that_fails_releases_the_constraint() {
  RecordGrammar running, next;
  Bench bench;
  bench.hashes.keeps_rows = true;
  expect(failure_of([&] { bench.text({}, running); }).code == SF_EXECUTION, "a start fails with the engine");
  expect(running.releases == 1, "a start that fails releases the constraint");
  bench.hashes.keeps_rows = false;
  const sf_constraint first = running.table();
  bench.session.start(kPrompt.data(), static_cast<int64_t>(kPrompt.size()), {}, Owned<sf_constraint>(&first));
  sf_token token;
  bench.session.next(token);
  bench.hashes.keeps_rows = true;
  expect(failure_of([&] { bench.text({}, next); }).code == SF_EXECUTION, "the next start fails with the engine");
  expect(next.releases == 1, "a start that fails inside another text releases its own constraint");
  expect(running.releases == 2, "a start that fails inside another text releases that text's constraint");
}

void a_guide_visits_every_node_of_a_draft() {
  RecordGrammar grammar;
  const sf_constraint table = grammar.table();
  Constraint constraint(Owned<sf_constraint>(&table), kVocabulary, {2});
  Guide guide;
  guide.begin(&constraint);
  guide.begin_draft(3, 8);
  int32_t state = 0;
  for (const int64_t token : {5, 6, 7}) {
    expect(guide.forces(state) && guide.offers(state)[0].token == token, "a forced token is known at its place");
    state = guide.after(state, token);
  }
  expect(!guide.forces(state) && guide.offers(state).count == 0, "where there is a choice, nothing is forced");
  expect(guide.allows(state, 10) && !guide.allows(state, 8) && !guide.allows(state, 2),
         "the node's own state is asked");
  const int32_t first = guide.after(state, 10), second = guide.after(state, 11);
  expect(guide.allows(first, 8) && guide.allows(second, 9) && !guide.allows(0, 8),
         "the order of visits changes no state");
  const int32_t end = guide.after(second, 9);
  expect(!guide.allows(end, 5) && guide.offers(end).count == 0, "nothing follows the end");
  expect(guide.after(state, 10) == first, "a node is visited once");
  guide.end_draft();
  expect(grammar.accepted.empty(), "a draft leaves the constraint where it was");
  expect(guide.refused() == 4, "refused candidates are counted");
}

void refused_candidates_of_look_up_are_no_misses() {
  RecordGrammar grammar;
  const sf_constraint table = grammar.table();
  Constraint constraint(Owned<sf_constraint>(&table), kVocabulary, {});
  for (const int64_t token : {5, 6, 7}) constraint.accept(token);
  const std::vector<int64_t> tokens = {3, 30, 3};
  LookUp look_up(kCapacity, 8);
  look_up.begin(tokens, 0);
  const auto drafted = [&](Constraint* under) {
    Guide guide;
    guide.begin(under);
    guide.begin_draft(3, 8);
    Tree tree;
    tree.set_root(3);
    expect(look_up.join(8, 1, {}, guide, tree), "what followed the last token is found");
    guide.end_draft();
    return tree;
  };
  const double before = drafted(nullptr)[1].log_prob;
  for (const int64_t chosen : {11, 12, 13}) {
    expect(drafted(&constraint).size() == 1, "a candidate that the grammar refuses is not drafted");
    look_up.learn({&chosen, 1});
  }
  expect(drafted(nullptr)[1].log_prob == before, "a refused candidate leaves look-up as likely to be right");
  const int64_t other = 4;
  look_up.learn({&other, 1});
  expect(drafted(nullptr)[1].log_prob < before, "a miss makes look-up less likely to be right");
}

void the_models_own_spelling_is_drafted_next() {
  RecordGrammar grammar;
  const sf_constraint table = grammar.table();
  Constraint constraint(Owned<sf_constraint>(&table), kVocabulary, {});
  Guide guide;
  guide.begin(&constraint);
  const auto drafted_after_5 = [&] {
    guide.begin_draft(3, 8);
    expect(guide.offers(0)[0].token == 5, "text with one spelling is drafted in it");
    const int64_t token = guide.offers(guide.after(0, 5))[0].token;
    guide.end_draft();
    return token;
  };
  expect(drafted_after_5() == 6, "forced text is first drafted in the constraint's tokens");
  guide.learn(guide.after(0, 5), 20);
  expect(drafted_after_5() == 20, "forced text is drafted in the tokens that the model chose");
  guide.learn(guide.after(0, 5), 6);
  expect(drafted_after_5() == 6, "forced text is drafted in the tokens that the model chose last");
  guide.begin_draft(3, 8);
  expect(guide.offers(guide.after(0, 5)).count == 2, "the other way to split it is offered too");
}

void what_was_chosen_in_such_a_state_is_offered() {
  RecordGrammar grammar;
  const sf_constraint table = grammar.table();
  Constraint constraint(Owned<sf_constraint>(&table), kVocabulary, {});
  for (const int64_t token : {5, 6, 7, 11}) constraint.accept(token);
  Guide guide;
  guide.begin(&constraint);
  const auto offers = [&](int64_t root) {
    guide.begin_draft(root, 8);
    const Guide::Offers found = guide.offers(0);
    guide.end_draft();
    return found;
  };
  expect(offers(11).count == 0, "nothing is known at first");
  for (const int64_t chosen : {12, 13, 13}) {
    offers(11);
    guide.learn(0, chosen);
  }
  const Guide::Offers found = offers(14);
  expect(found.count == 2 && found[0].token == 13 && found[1].token == 12, "the most frequent token comes first");
  expect(found[0].log_prob < 0.0 && found[1].log_prob < found[0].log_prob, "the probabilities are below 1 and fall");
  expect(offers(11)[0].log_prob > found[0].log_prob, "the probability is larger after the same token");
  guide.begin_draft(11, 8);
  const int32_t word = guide.after(0, 12), next = guide.after(0, 8);
  expect(guide.offers(word)[0].token == 13, "earlier choices are offered deeper in the draft too");
  expect(guide.offers(next)[0].token == 5, "earlier choices are not offered in a state of another kind");
  guide.end_draft();
  offers(11);
  guide.learn(0, 30);  // which this grammar does not allow, as another one's did
  for (const Guide::Offer& offer : offers(11)) expect(offer.token != 30, "only what may follow is offered");
  guide.forget();
  expect(offers(11).count == 0, "nothing is offered after it was forgotten");
}

// A grammar that allows only the token `next`, of 2^20, at each position.
struct OnlyOne {
  int64_t next = 0;

  sf_constraint table() {
    sf_constraint constraint = RecordGrammar().table();
    constraint.context = this;
    constraint.accept = [](void*, int64_t) { return int{SF_OK}; };
    constraint.rollback = [](void*, int32_t) { return int{SF_OK}; };
    constraint.forced = [](void* self, int64_t* tokens, int32_t, int32_t* n) {
      tokens[0] = static_cast<OnlyOne*>(self)->next;
      *n = 1;
      return int{SF_OK};
    };
    constraint.release = nullptr;
    return constraint;
  }
};

void an_offer_is_at_most_certain() {
  OnlyOne grammar;
  const sf_constraint table = grammar.table();
  Constraint constraint(Owned<sf_constraint>(&table), 1 << 20, {});
  Guide guide;
  guide.begin(&constraint);
  const auto choose = [&](int64_t token) {
    grammar.next = token;
    guide.begin_draft(3, 8);
    const double log_prob = guide.offers(0)[0].log_prob;
    guide.learn(0, token);
    guide.end_draft();
    return log_prob;
  };
  for (int64_t token = 0; token < 3000; ++token) choose(token);
  double largest = -1.0;
  for (int times = 0; times < 200; ++times) largest = std::max(largest, choose(5000));
  expect(largest == 0.0, "no rounding makes an offer more probable than 1");
}

void a_certain_end_needs_no_pass() {
  for (const int64_t room : {int64_t{1}, int64_t{8}}) {
    RecordGrammar grammar;
    const sf_constraint table = grammar.table();
    Constraint constraint(Owned<sf_constraint>(&table), kVocabulary, {});
    expect(constraint.take_certain_end(room).empty(), "forced text that does not end is not certain");
    for (const int64_t token : {5, 6, 7, 12, 19}) constraint.accept(token);
    expect(constraint.take_certain_end(room) == std::vector<int64_t>{9} && constraint.must_end(), "the end is taken");
  }
  RecordGrammar grammar;
  const sf_constraint table = grammar.table();
  Constraint constraint(Owned<sf_constraint>(&table), kVocabulary, {});
  for (const int64_t token : {5, 6, 7, 19}) constraint.accept(token);
  grammar.fails_on = 9;
  expect(constraint.take_certain_end(8).empty() && grammar.accepted.size() == 4, "a failure leaves the constraint");
  expect(constraint.take_certain_end(0).empty(), "nothing fits into no room");

  int saved = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Generation generation;
    generation.sampling.temperature = 1.0;
    generation.sampling.seed = seed;
    generation.speculative = false;
    RecordGrammar own;
    Bench bench;
    const std::vector<int64_t> text = bench.text(generation, own);
    if (text.size() < 2 || text[text.size() - 2] != 19) continue;
    ++saved;
    expect(std::string(bench.session.finish_reason()) == "stop", "such a text is complete");
    expect(bench.counted("target_forward_passes") == bench.counted("generated_tokens") - 1, "the end takes no pass");
    expect(bench.session.cached() == static_cast<int64_t>(text.size()) - 2, "the last two tokens are not cached");
    std::vector<int64_t> prompt = text;
    prompt.push_back(4);
    RecordGrammar same;
    Bench shortened;
    shortened.text(generation, same);
    Generation dropping;
    dropping.max_new_tokens = 1;
    dropping.dropped_turns = 1;
    dropping.dropped_tokens = 2;
    text_of(shortened.session, {prompt.begin() + 2, prompt.end()}, dropping, nullptr);
    // The prompt without the dropped tokens would have read the end and the token after it.
    expect(shortened.counted("reread_tokens") == shortened.counted("prefilled_tokens") - 2,
           "tokens that were never cached are not read again");
    RecordGrammar again;
    const sf_constraint next = again.table();
    Bench fresh;
    expect(
        text_of(bench.session, prompt, generation, &next) ==
            [&] {
              RecordGrammar other;
              const sf_constraint third = other.table();
              return text_of(fresh.session, prompt, generation, &third);
            }(),
        "the next text reads the tokens that were not cached");
  }
  expect(saved > 3, "some texts end without a pass");
}

void a_reset_forgets_what_was_chosen() {
  int64_t forgotten = 0, remembered = 0;  // accepted drafts of the second text
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Generation generation;
    generation.max_new_tokens = 40;
    generation.sampling.temperature = 1.0;
    generation.sampling.seed = seed;
    for (const bool resets : {false, true}) {
      Bench bench(1.0, 1.0);
      for (int text = 0; text < 2; ++text) {
        if (resets) bench.session.reset();
        RecordGrammar grammar;
        bench.text(generation, grammar);
      }
      (resets ? forgotten : remembered) += bench.counted("draft_tokens_accepted");
    }
  }
  expect(remembered > forgotten + 20, "only without a reset the same text is drafted from what was chosen before");
}

}  // namespace

int main() {
  constrained_text_is_the_same_with_drafts();
  forced_tokens_are_drafted_and_refused_ones_are_not();
  a_limit_inside_the_grammar_is_incomplete();
  end_tokens_are_allowed_only_at_the_end();
  a_dead_end_fails_alike_with_and_without_drafts();
  a_failing_constraint_fails_alike_with_and_without_drafts();
  after_a_failure_the_constraint_is_where_the_text_is();
  the_code_of_a_failure_is_never_that_of_an_end();
  end_tokens_wait_until_an_unrestricted_text_may_end();
  stop_tokens_outside_the_vocabulary_are_no_tokens();
  a_call_that_fails_releases_the_constraint();
  a_refused_start_releases_the_constraint();
  a_guide_visits_every_node_of_a_draft();
  refused_candidates_of_look_up_are_no_misses();
  the_models_own_spelling_is_drafted_next();
  what_was_chosen_in_such_a_state_is_offered();
  an_offer_is_at_most_certain();
  a_certain_end_needs_no_pass();
  a_reset_forgets_what_was_chosen();
  if (failures > 0) return EXIT_FAILURE;
  std::puts("constraints: all tests passed");
  return EXIT_SUCCESS;
}
