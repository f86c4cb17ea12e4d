#include "rounding.h"

#include "tree.h"

#include <algorithm>
#include <numeric>

namespace streamfuse {

bool Candidates::after(const One& a, const One& b) {
  return a.log_prob != b.log_prob ? a.log_prob < b.log_prob : a.order > b.order;
}

void Candidates::add(double log_prob, int64_t parent, int64_t rank) {
  if (!(log_prob > kLeastPath)) return;
  heap_.push_back({log_prob, parent, rank, order_++});
  std::push_heap(heap_.begin(), heap_.end(), after);
}

Candidates::One Candidates::take() {
  std::pop_heap(heap_.begin(), heap_.end(), after);
  const One best = heap_.back();
  heap_.pop_back();
  return best;
}

TreeJoiner::TreeJoiner(int64_t widest) {
  const size_t most = 2 * static_cast<size_t>(widest);
  place_.reserve(most);
  order_.reserve(most);
  sorted_.reserve(most);
}

void TreeJoiner::join(const Tree& other, int64_t width, Tree& tree) {
  place_.assign(1, 0);  // for each row of the other tree, its row here
  for (int64_t row = 1; row < other.size(); ++row) {
    const Tree::Node& node = other[row];
    const int64_t parent = place_[static_cast<size_t>(node.parent)];
    int64_t mine = tree.child(parent, node.token);
    if (mine == 0) mine = tree.add(node.token, parent, node.log_prob, node.source, node.exact, node.state, node.forced);
    Tree::Node& known = tree.nodes[static_cast<size_t>(mine)];
    if (node.log_prob > known.log_prob) {
      known.log_prob = node.log_prob;
      known.exact = node.exact;
    }
    place_.push_back(mine);
  }
  order(width, tree);
}

void TreeJoiner::order(int64_t width, Tree& tree) {
  order_.resize(tree.nodes.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) {
    return tree[a].log_prob != tree[b].log_prob ? tree[a].log_prob > tree[b].log_prob : a < b;
  });
  place_.resize(order_.size());
  for (size_t i = 0; i < order_.size(); ++i) place_[static_cast<size_t>(order_[i])] = static_cast<int64_t>(i);
  sorted_.clear();
  for (size_t i = 0; i < order_.size() && static_cast<int64_t>(i) < width; ++i) {
    sorted_.push_back(tree[order_[i]]);
    if (i > 0) sorted_.back().parent = place_[static_cast<size_t>(sorted_.back().parent)];
  }
  tree.nodes.swap(sorted_);
}

}  // namespace streamfuse
