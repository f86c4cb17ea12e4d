#include "rounding.h"

#include "draft.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "numbers.h"

namespace streamfuse {

void Draft::reserve(size_t nodes) {
  for (Tree* one : {&tree, &streams, &table}) one->nodes.reserve(nodes);
}

void Draft::set_root(int64_t token) {
  for (Tree* one : {&tree, &streams, &table}) one->set_root(token);
  from_streams = from_lookup = false;
}

Drafter::Drafter(const Model& model, std::shared_ptr<const Memory> memory)
    : spec_(model.spec),
      grower_(model),
      table_(model),
      look_up_(model.spec.capacity, model.spec.widest(), std::move(memory)),
      joiner_(model.spec.widest()),
      of_streams_(model.tables.calibration, model.spec.num_streams),
      of_table_({}, kTableDepth) {
  ids_.resize(static_cast<size_t>(spec_.num_streams * spec_.top_k));
  log_probs_.resize(ids_.size());
}

void Drafter::begin(const std::vector<int64_t>& tokens, int64_t kept, Constraint* constraint,
                    const Generation& generation) {
  sources_ = generation.sources;
  coupling_ = Coupling(generation.sampling, spec_.vocab_size);
  streams_ready_ = false;
  look_up_.begin(tokens, kept, uses(SF_LOOKUP), uses(SF_MEMORY));
  guide_.begin(constraint);
}

void Drafter::begin_draft(const std::vector<int64_t>& tokens) {
  look_up_.follow(tokens);
  coupling_.begin_draft(static_cast<int64_t>(tokens.size()));
  guide_.begin_draft(tokens.back(), spec_.widest());
}

void Drafter::draft(const std::vector<int64_t>& tokens, int64_t depth, Draft& out) {
  const int64_t widest = spec_.widest();
  begin_draft(tokens);
  grow_streams(tokens.back(), widest, depth, out.streams);
  out.from_streams = streams_ready_;
  out.table.set_root(tokens.back());
  // Beside deferred streams, nodes from the table would displace better ones. Beside fused streams they help.
  if (uses(SF_TABLE) && !(streams_ready_ && spec_.deferred))
    attempt(table_failed_, out.table, [&] { table_.grow(tokens, widest, depth, coupling_, guide_, out.table); });
  out.tree.nodes = out.streams.nodes;
  joiner_.join(out.table, widest, out.tree);
  out.from_lookup = false;
  if (uses(SF_LOOKUP) || uses(SF_MEMORY))
    attempt(look_up_failed_, out.tree,
            [&] { out.from_lookup = look_up_.join(widest, depth, coupling_, guide_, out.tree); });
  guide_.end_draft();
}

void Drafter::draft_nothing(const std::vector<int64_t>& tokens, Draft& out) {
  begin_draft(tokens);
  out.set_root(tokens.back());
}

bool Drafter::draft_at_width(const std::vector<int64_t>& tokens, int64_t width, int64_t depth, Tree& out) {
  begin_draft(tokens);
  bool found = true;
  if ((!uses(SF_LOOKUP) && !uses(SF_MEMORY)) || (spec_.num_streams > 0 && uses(SF_STREAMS))) {
    grow_streams(tokens.back(), width, depth, out);
    found = !streams_failed_ || out.size() > 1;
  } else {
    out.set_root(tokens.back());
    found = false;
    attempt(look_up_failed_, out, [&] {
      found = look_up_.join(width, depth, coupling_, guide_, out) && out.size() > 1;  // all candidates may be refused
    });
  }
  guide_.end_draft();
  return found;
}

// Without streams, or if they fail: only what the constraint forces.
void Drafter::grow_streams(int64_t root, int64_t width, int64_t depth, Tree& out) {
  out.set_root(root);
  const auto grow = [&](const int64_t* ids) {
    grower_.grow(root, ids, log_probs_.data(), width, depth, coupling_, guide_, out);
  };
  if (streams_ready_) attempt(streams_failed_, out, [&] { grow(ids_.data()); });
  streams_ready_ = streams_ready_ && !streams_failed_;
  if (!streams_ready_) grow(nullptr);
}

// Runs one source of drafts. If it fails, `tree` is only the root.
template <typename Grow>
void Drafter::attempt(bool& failed, Tree& tree, const Grow& grow) {
  if (failed) return;
  try {
    grow();
  } catch (const std::exception& error) {
    fail(failed, error.what());
    tree.nodes.resize(1);
  }
}

void Drafter::fail(bool& failed, const std::string& why) {
  failed = true;
  if (damage_.empty()) damage_ = "drafts are damaged: " + why;
}

void Drafter::expect(const Draft& draft, std::vector<double>& hits) const {
  hits.clear();
  for (const Tree::Node& node : draft.tree.nodes) {
    if (node.source == SF_GRAMMAR) {
      const Tree::Node& parent = draft.tree[node.parent];
      hits.push_back(hits[static_cast<size_t>(node.parent)] * exponential(node.log_prob - parent.log_prob));
      continue;
    }
    const Calibration& calibration = node.source == SF_TABLE ? of_table_ : of_streams_;
    hits.push_back(exponential(node.log_prob) * (node.exact ? 1.0 : calibration.ratio(node.depth)));
  }
}

void Drafter::learn(const Draft& draft, std::span<const int64_t> chosen) {
  if (draft.from_streams) of_streams_.learn(draft.streams, chosen);
  if (draft.table.size() > 1) of_table_.learn(draft.table, chosen);
  if (draft.from_lookup) look_up_.learn(chosen);
  int64_t row = 0;
  for (const int64_t token : chosen) {
    guide_.learn(draft.tree[row].state, token);
    row = draft.tree.child(row, token);
    if (row == 0) return;
  }
}

void Drafter::take(const Streams& streams) {
  streams_ready_ = streams.ids != nullptr && streams.log_probs != nullptr && streams_usable();
  if (!streams_ready_) return;
  std::copy_n(streams.ids, ids_.size(), ids_.begin());
  std::copy_n(streams.log_probs, log_probs_.size(), log_probs_.begin());
}

}  // namespace streamfuse
