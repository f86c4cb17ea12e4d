"""Batched plain decoding in PyTorch: many prompts at once, with the same results as one at a time.

It is fast because the common prefix of all prompts (the chat template's) is prefilled once; the rest is prefilled in
chunks that stay in the processor's cache; keys and values are stored in the layout that attention's two products need,
so that they are read in place; and a finished sequence is removed at once: the last one moves into its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.transformer import Block, Transformer, rotary_tables
from streamfuse.runtime.reference.random import uniform

from .config import DistillConfig

CHUNK_ROWS = 512  # prompt tokens per chunk; more do not fit into the processor's cache
MORE_COLUMNS = 32  # columns by which caches grow
NUCLEI = (64, 512)  # numbers of candidates that top-p tries before it sorts all tokens
BLOCK = 64  # tokens per block of the vocabulary, whose maxima are compared first


@torch.inference_mode()
def generate_batch(
    model: Transformer, prompts: Sequence[list[int]], config: DistillConfig, seeds: Sequence[int] | None = None
) -> list[list[int]]:
    """Completions of the prompts, decoded together: token ids, including end-of-sequence if it was generated.

    `seeds` (default: config.seed for each) determine the sampled text of each sequence, independently of the batch.
    """
    eos = set(model.config.eos_token_ids)
    seeds = seeds if seeds is not None else [config.seed] * len(prompts)
    out: list[list[int]] = [[] for _ in prompts]
    batch = _Batch(model, prompts, config.max_new_tokens)
    logits = batch.read_prompts(prompts)
    for step in range(config.max_new_tokens):
        uniforms = [uniform(seeds[row], step) for row in batch.rows] if config.temperature else []
        tokens = choose(logits, config.temperature, config.top_p, uniforms)
        going = []
        for i, (row, token) in enumerate(zip(batch.rows, tokens.tolist(), strict=True)):
            out[row].append(token)
            if token not in eos:
                going.append(i)
        if not going or step + 1 == config.max_new_tokens:
            break
        logits = batch.read(batch.keep(tokens, going))
    return out


class _Batch:
    """Sequences and their caches, keys [B, Hkv, D, C] and values [B, Hkv, C, D] per layer; what a convolution reads
    [B, 1, C, channels] is among the values, and its keys are empty. A layer with linear attention keeps its
    convolution's input among the values, and its state [B, Hv, key_dim, value_dim] in place of the keys.

    Columns of the caches are: the common prefix of all prompts, the padding of a sequence, the rest of its prompt, its
    text, and unused columns. `bias` [B, C] is 0 for a sequence's tokens, else -inf.
    """

    def __init__(self, model: Transformer, prompts: Sequence[list[int]], max_new_tokens: int) -> None:
        self.model = model
        config, weight = model.config, model.embed_tokens.weight
        self.device, self.dtype = weight.device, weight.dtype
        self.width = max(map(len, prompts))  # columns of the prompts
        self.shared = _shared(prompts)
        self.length = 0  # used columns of the caches
        self.rows = list(range(len(prompts)))  # index of each sequence's prompt
        self.padding = torch.tensor([self.width - len(prompt) for prompt in prompts], device=self.device)
        self.columns = torch.arange(self.width + max_new_tokens, device=self.device)
        columns = self.columns[: self.width]
        padded = (columns >= self.shared) & (columns < self.shared + self.padding[:, None])
        self.bias = torch.zeros(padded.shape, device=self.device).masked_fill(padded, float("-inf"))
        tables = rotary_tables(config, len(self.columns))
        self.rotary = [(cos.to(self.device), sin.to(self.device)) for cos, sin in tables]
        attending = [block for block in model.blocks if not (block.convolves or block.recurs)]
        self.windows = {block.window for block in attending}
        caches = [self._caches(block, len(prompts)) for block in model.blocks[: config.num_cached_layers]]
        self.keys, self.values = [keys for keys, _ in caches], [values for _, values in caches]

    def _caches(self, block: Block, count: int) -> tuple[Tensor, Tensor]:
        config, weight = self.model.config, self.model.embed_tokens.weight
        if block.recurs and (sizes := config.delta) is not None:
            state = weight.new_zeros(count, sizes.value_heads, sizes.key_dim, sizes.value_dim, dtype=torch.float32)
            return state, weight.new_zeros(count, 1, self.width, sizes.channels)
        heads, dim = config.num_kv_heads, block.mixer.head_dim
        if block.convolves:
            return weight.new_zeros(count, 0, dim, self.width), weight.new_zeros(
                count, 1, self.width, config.hidden_size
            )
        return weight.new_zeros(count, heads, dim, self.width), weight.new_zeros(count, heads, self.width, dim)

    def read_prompts(self, prompts: Sequence[list[int]]) -> Tensor:
        """Prefill the prompts: logits [B, V] after the last token of each."""
        start = self.shared
        if start:
            self._layers(torch.tensor([prompts[0][:start]], device=self.device), slice(0, 1), 0)
            for block, keys, values in zip(self.model.blocks, self.keys, self.values, strict=False):
                columns = slice(None) if block.recurs else slice(start)  # a state has none
                keys[1:, ..., columns], values[1:, :, :start] = keys[:1, ..., columns], values[:1, :, :start]
        last = []
        for some in _chunks([len(prompt) - start for prompt in prompts]):
            rests = [prompt[start:] for prompt in prompts[some]]
            width = max(map(len, rests))
            ids = torch.tensor([[0] * (width - len(rest)) + rest for rest in rests], device=self.device)
            last.append(self._layers(ids, some, self.width - width)[:, -1])
        self.length = self.width
        return self._logits(torch.cat(last))

    def read(self, tokens: Tensor) -> Tensor:
        """Process one more token [B] of each sequence: logits [B, V]."""
        if self.length == self.bias.shape[1]:
            self._grow()
        self.bias[:, self.length] = 0.0
        x = self._layers(tokens[:, None], slice(0, len(self.rows)), self.length)
        self.length += 1
        return self._logits(x[:, -1])

    def keep(self, tokens: Tensor, wanted: list[int]) -> Tensor:
        """Continue with these sequences only (ascending); returns their tokens [B]. The last ones fill the gaps."""
        count = len(wanted)
        free = sorted(set(range(count)) - set(wanted))
        moving = wanted[count - len(free) :]
        if free:
            for of_sequence in (tokens, self.padding, self.bias, *self.keys, *self.values):
                of_sequence[free] = of_sequence[moving]
        for place, row in zip(free, moving, strict=True):
            self.rows[place] = self.rows[row]
        if count < len(self.rows):
            del self.rows[count:]
            self.padding, self.bias = self.padding[:count], self.bias[:count]
            self.keys = [keys[:count] for keys in self.keys]
            self.values = [values[:count] for values in self.values]
        return tokens[:count]

    def _grow(self) -> None:
        """Add columns; the products use whole caches, without a copy, so caches are never much longer than needed."""
        self.bias = F.pad(self.bias, (0, MORE_COLUMNS), value=float("-inf"))
        for layer, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            if not self.model.blocks[layer].recurs:
                self.keys[layer] = F.pad(keys, (0, MORE_COLUMNS))
            self.values[layer] = F.pad(values, (0, 0, 0, MORE_COLUMNS))

    def _logits(self, x: Tensor) -> Tensor:
        return self.model.logits(self.model.norm(x))

    def _layers(self, ids: Tensor, some: slice, start: int) -> Tensor:
        """Hidden states [b, T, h] of tokens [b, T] of the sequences `some` at columns from `start` on."""
        stop = start + ids.shape[1]
        columns = self.columns[start:stop]
        padding = self.padding[some, None] if start >= self.shared else torch.zeros_like(self.padding[some, None])
        positions = (columns - padding).clamp(min=0)
        rotary = [(cos[positions], sin[positions]) for cos, sin in self.rotary]
        whole = self.bias[some, None, None]
        if stop - start > 1:
            whole = self._causal(whole, start, stop)
        biases = {window: self._within(whole, window, padding, start, stop) for window in self.windows}
        x, per_layer = self.model.embed(ids), self.model.per_layer(ids)
        for i, block in enumerate(self.model.blocks):
            keys, values = self.keys[block.kv_source], self.values[block.kv_source]
            q, k, v = block.qkv(x, *rotary[block.rotary])
            if k is None or v is None:
                attended = _attend(q, keys[some], values[some], biases[block.window])
                x = block.finish(x, attended, per_layer=per_layer[i])
                continue
            if block.convolves or block.recurs:
                gates, read = q.flatten(-2), torch.cat([k, v], -2).flatten(-2)
                if block.recurs:
                    gates, read = block.linear_attn.unpacked(read)
                values[some, 0, start:stop] = read
                taps = block.linear_attn.taps if block.recurs else block.conv.taps
                mixed = self._convolved(taps, values[some, 0], positions, padding)
                if block.recurs:
                    is_padding = (columns >= self.shared) & (columns < self.shared + padding)
                    mixed, keys[some] = block.linear_attn.recur(mixed, gates, keys[some], is_padding)
                x = block.finish(x, mixed if block.recurs else gates * mixed)
                continue
            keys[some, :, :, start:stop] = k.permute(0, 2, 3, 1)
            values[some, :, start:stop] = v.transpose(1, 2)
            attended = _attend(q, keys[some], values[some], biases[block.window])
            x = block.finish(x, attended, per_layer=per_layer[i])
        return x

    def _convolved(self, taps: nn.Conv1d, read: Tensor, positions: Tensor, padding: Tensor) -> Tensor:
        """The convolution of read [b, C, h] at positions [b, T] of sequences with padding [b, 1]: [b, T, h]."""
        out = torch.zeros_like(read[:, : positions.shape[1]])
        for back, tap in enumerate(taps.weight.squeeze(1).T.flip(0)):  # [h], the one of the row itself first
            place = positions - back
            column = place + torch.where(place < self.shared, 0, padding)
            rows = read.gather(1, column.clamp(min=0).unsqueeze(-1).expand(-1, -1, read.shape[-1]))
            out = out + rows * tap * (place >= 0).unsqueeze(-1)
        return out

    def _causal(self, bias: Tensor, start: int, stop: int) -> Tensor:
        """[b, 1, T, C] of bias [b, 1, 1, C]: no row attends to a later one. A padding row attends to itself, or it
        would be NaN."""
        keys, queries = self.columns[: bias.shape[-1]], self.columns[start:stop, None]
        return bias.masked_fill(keys > queries, float("-inf")).masked_fill(keys == queries, 0.0)

    def _within(self, bias: Tensor, window: int | None, padding: Tensor, start: int, stop: int) -> Tensor:
        """The bias [b, 1, 1 or T, C] of layers in which a row attends to the last `window` tokens only.

        Positions count the tokens of the common prefix, which is before a sequence's padding, without the padding.
        """
        if window is None:
            return bias
        columns = torch.arange(bias.shape[-1], device=self.device)
        positions = columns - torch.where(columns < self.shared, 0, padding)  # [b, C]
        own = self.columns[start:stop] - padding  # [b, T]
        left = positions[:, None, None] <= own[:, None, :, None] - window
        return bias.expand(-1, -1, stop - start, -1).masked_fill(left, float("-inf"))


def _attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """q [b, T, Hq, D], keys [b, Hkv, D, C], values [b, Hkv, C, D], bias [b, 1, 1 or T, C] -> [b, T, Hq * D].

    The query heads of a key head are rows of one product, so its keys are read once.
    """
    batch, length, heads, dim = q.shape
    kv_heads, columns = keys.shape[1], keys.shape[3]
    q = (q * dim**-0.5).unflatten(2, (kv_heads, heads // kv_heads)).permute(0, 2, 3, 1, 4)  # [b, Hkv, group, T, D]
    scores = torch.bmm(q.reshape(batch * kv_heads, -1, dim), keys.flatten(0, 1))
    weights = torch.softmax(scores.float().view(batch, heads, length, columns) + bias, -1).to(values.dtype)
    out = torch.bmm(weights.view(batch * kv_heads, -1, columns), values.flatten(0, 1))
    return out.view(batch, heads, length, dim).transpose(1, 2).reshape(batch, length, heads * dim)


def _shared(prompts: Sequence[list[int]]) -> int:
    """Length of the common prefix of all prompts; at least one token of each is left."""
    if len(prompts) == 1:
        return 0
    same = (len(set(column)) == 1 for column in zip(*(prompt[:-1] for prompt in prompts), strict=False))
    return len(list(takewhile(bool, same)))


def _chunks(lengths: Sequence[int]) -> Iterator[slice]:
    """Slices of consecutive prompts that have at most `CHUNK_ROWS` tokens, padded to the longest."""
    start = 0
    for stop in range(1, len(lengths) + 1):
        if stop == len(lengths) or max(lengths[start : stop + 1]) * (stop + 1 - start) > CHUNK_ROWS:
            yield slice(start, stop)
            start = stop


def choose(logits: Tensor, temperature: float, top_p: float, uniforms: Sequence[float]) -> Tensor:
    """Token ids [B] of logits [B, V]: the most probable, or sampled by inverting the cumulative distribution.

    With top_p below 1 only the fewest most probable tokens whose probabilities reach it are sampled from.
    """
    if temperature == 0:
        return logits.max(-1).indices  # several times faster than argmax in bfloat16
    probs = torch.softmax(logits.float() / temperature, -1)
    if probs.device.type == "mps":  # it has no float64
        probs = probs.cpu()
    numbers = torch.tensor(uniforms, dtype=torch.float64, device=probs.device)[:, None]
    tokens = _drawn(probs, numbers) if top_p == 1 else _drawn_of_nucleus(probs, numbers, top_p)
    return tokens.to(logits.device)


def _drawn_of_nucleus(probs: Tensor, numbers: Tensor, top_p: float) -> Tensor:
    """`_drawn` among the fewest most probable tokens of each row whose probabilities reach top_p."""
    chosen = torch.empty(len(probs), dtype=torch.int64, device=probs.device)
    rows = torch.arange(len(probs), device=probs.device)
    for count in (*NUCLEI, probs.shape[1]):
        best, ids = _likeliest(probs[rows], count)
        found = best.sum(-1) >= top_p if count < probs.shape[1] else torch.ones_like(rows, dtype=torch.bool)
        nucleus = best.masked_fill(best.cumsum(-1) - best >= top_p, 0.0)[found]
        chosen[rows[found]] = ids[found].gather(1, _drawn(nucleus, numbers[rows[found]])[:, None])[:, 0]
        rows = rows[~found]
        if not len(rows):
            break
    return chosen


def _drawn(probs: Tensor, numbers: Tensor) -> Tensor:
    """Indices [B] where the cumulative sums of probs [B, n] exceed these fractions [B, 1] of the total."""
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    chosen = torch.searchsorted(cumulative, numbers * cumulative[:, -1:], right=True)
    return chosen.clamp(max=probs.shape[1] - 1)[:, 0]


def _likeliest(probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row of probs [B, V], descending, and their ids. They are in the `count` blocks with
    the largest maxima, which are found in a fraction of the time that searching the whole rows would take."""
    whole = probs.shape[1] // BLOCK * BLOCK
    if count * BLOCK >= whole:
        return tuple(probs.topk(min(count, probs.shape[1])))  # type: ignore[return-value]
    blocks = probs[:, :whole].unflatten(1, (-1, BLOCK))
    best = blocks.amax(-1).topk(count).indices
    ids = (best[:, :, None] * BLOCK + torch.arange(BLOCK, device=probs.device)).flatten(1)
    rest = torch.arange(whole, probs.shape[1], device=probs.device).expand(len(probs), -1)
    ids = torch.cat([ids, rest], 1)
    values, places = probs.gather(1, ids).topk(count)
    return values, ids.gather(1, places)
