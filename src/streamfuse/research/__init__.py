"""Other methods of speculative decoding in the reference loop, with any engine, for comparison with this project's.

The product does not import it. It needs numpy; drafters that run a model need PyTorch, and the optimal transport plan
needs SciPy (extra `research`). `compare/` measures the methods, `external/` other programs, `cli/` has the commands;
the trained adapters of other methods are only in a clone of the repository.

Drafters and acceptors. A drafter (the protocol of `runtime/reference/draft.py`) returns a tree to `Loop`. If its
children are sampled, or an acceptor needs their probabilities, the tree is a `ProposedTree` (`proposal.py`). Besides
the rows it has, for each row with draws, a `Proposal` with

* `draws`, the tokens in the order drawn, including repeats (equal draws share a row, and a draw may have no row);
* `how` they were drawn: independently, without replacement, or chosen by a rule (the best few, look-up);
* the draft distribution q that they were drawn from, over given ids or over the whole vocabulary.

`propose` draws them, and `Grower` builds the tree:

    tree = Grower(tokens[-1], seed, len(tokens) - 1)
    rows = tree.propose(0, probs, count=2, how=How.INDEPENDENT)  # children of the root
    for row in rows: ...                                         # q of each child, and so on
    return tree.done()

The children of a row without a proposal were chosen by a rule, so every other `Tree` can be used as it is. An acceptor
(`acceptors/`) gets the target's distribution at the kept rows from the loop's `Target`, and the proposals from the
tree. It rejects trees that were drawn differently than its proof assumes.

Trees of other rules than the runtime's, static (`trees.py`) or built from probabilities at run time (`growth.py`), need
no proposals: their children are chosen.

Losslessness requires that the number of draws of a row, and which rows have draws, only depend on what is known before
they are drawn, never on the drawn tokens themselves. So a tree that is too wide drops rows and keeps the draws:
`ProposedTree.first` does that, and a pruner in the engine does not affect losslessness.
"""
