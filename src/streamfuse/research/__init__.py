"""Other methods of speculative decoding in the readable loop, over any engine, to be compared with ours.

Nothing of the product imports it. It needs numpy; drafters that run a model need PyTorch, and the optimal transport
plan needs SciPy (extra `research`). `compare/` measures the methods, `external/` other programs, `cli/` has the
commands; the trained adapters of other methods are in a clone of the repository only.

How drafter and acceptor meet. A drafter (the protocol of `runtime/reference/draft.py`) gives `Loop` a tree. Where its
children are drawn at random, or an acceptor must know their probabilities, the tree is a `ProposedTree`
(`proposal.py`): besides the rows it has, for each row where something was drawn, a `Proposal` with

* `draws`, the tokens in the order drawn, repeats included (equal draws share a row, and a draw may have no row);
* `how` they were drawn: independently, without replacement, or chosen by a rule (the best few, look-up);
* the draft distribution q that they were drawn from, over given ids or over the whole vocabulary.

`propose` draws them, and `Grower` makes the tree:

    tree = Grower(tokens[-1], seed, len(tokens) - 1)
    rows = tree.propose(0, probs, count=2, how=How.INDEPENDENT)  # children of the root
    for row in rows: ...                                         # q of each child, and so on
    return tree.done()

A row without a proposal has children that were chosen by a rule; so every other `Tree` serves as it is. An acceptor
(`acceptors/`) takes the target's distribution at the surviving rows from the loop's `Target`, and the proposals from
the tree. It refuses trees that were drawn in another way than its proof assumes.

Trees of other rules than the runtime's, static (`trees.py`) or grown from live probabilities (`growth.py`),
need no proposals: their children are chosen.

What keeps a text lossless: how many draws a row has, and which rows have any, may depend on all that is known before
they are drawn, never on the drawn tokens themselves. So a tree that is too wide drops rows and keeps the draws:
`ProposedTree.first` does, and a pruner in the engine does no harm.
"""
