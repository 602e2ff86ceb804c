"""Exercises of notebook 11: attention."""
# ruff: noqa: B023 (solutions are written as a beginner would write them)

import tracemalloc

import numpy as np

from mlx_grpo_kit.course.compare import Told
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params, qwen3_forward
from mlx_grpo_kit.qwen3.forward import rms_norm, rope
from mlx_grpo_kit.runtime import mx

SEVEN_PLUS_FIVE = mx.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
MASK = mx.array([[True, False, False], [True, True, False], [True, True, True]])


def _draw(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).normal(size=shape))


BY_HAND = Exercise(
    "11.1",
    "By hand",
    "Take the same three tokens and two other queries of the last token. What is the mixture for the query (0, 0), "
    "which looks for nothing? And for (1000, 0), which wants digits and nothing else? You need no code, only that e⁰ "
    "= 1 and that e¹⁰⁰⁰ is so large that nothing counts next to it. Set `by_hand` to the four numbers, `(first, "
    "second, first, second)`; you may write a fraction, such as `2 / 7`.",
    minutes=5,
    difficulty=1,
    solution=(4.0, 1 / 3, 6.0, 0.0),
    hints=(
        "Query (0, 0): its product with every key is 0, and e⁰ = 1. So all three weights are equal, and they sum to 1.",
        "Query (1000, 0): the scores are 1000, 0, 1000. The two large ones are equal, so they share the weight "
        "between them. Nothing is left for the plus sign.",
        "The first is the mean of (7, 0), (0, 1) and (5, 0): add them up and divide by 3. The second is the mean of "
        "(7, 0) and (5, 0).",
    ),
    mistakes=(
        *slips(
            (4.0, 1 / 3, 6.0, 0.0),
            r"""
sums
+ (12.0, 1.0, 12.0, 0.0)
! Those are sums. The weights sum to 1, so the result is a weighted mean.
one winner (2)
+ (4.0, 1 / 3, 7.0, 0.0)
! For (1000, 0) the 7 does not win alone: the 5 has the same key, so it has the same score and the same weight.
nothing comes of nothing
+ (0.0, 0.0, 6.0, 0.0)
! Scores of 0 are not weights of 0: e⁰ is 1. A query that looks for nothing in particular gets a bit of everything.
""",
        ),
        *(
            Mistake(
                f"{digits} digits",
                (4.0, round(1 / 3, digits), 6.0, 0.0),
                f"The right numbers, one of them rounded: {round(1 / 3, digits)} is not 1/3. Give the fraction itself.",
                3,
            )
            for digits in (1, 2, 3, 4)
        ),
    ),
    explain=(
        "Softmax cannot say no. A query that looks for nothing gets the mean of everything. Many models therefore "
        "learn to look at the first token when there is nothing to look for."
    ),
    also_right=r"""
import numpy as np

# a list
[4, 1 / 3, 6, 0]
# an array
np.array([4.0, 1 / 3, 6.0, 0.0])
""",
)


def scores(queries, keys):
    """The score of every query with every key: [..., T, D] and [..., S, D] -> [..., T, S]."""
    return queries @ keys.swapaxes(-1, -2) / queries.shape[-1] ** 0.5


SCORES = Exercise(
    "11.2",
    "Scores",
    "Write `scores(queries, keys)`: the product of every query with every key, divided by sqrt(D). Queries are [..., "
    "T, D] and keys [..., S, D], with any number of leading axes (none, or row and head); the result is [..., T, S]. "
    "You need no loop.",
    minutes=6,
    difficulty=1,
    solution=scores,
    hints=(
        "A matrix product multiplies rows of the first with columns of the second. You want rows with rows: swap the "
        "last two axes of the keys.",
        "`keys.T` reverses *all* axes, which is wrong as soon as there are more than two. `keys.swapaxes(-1, -2)` "
        "swaps only the last two.",
        "`queries @ keys.swapaxes(-1, -2) / queries.shape[-1] ** 0.5`",
    ),
    cases=(
        (mx.array([[1.0, 2.0]]), mx.array([[3.0, 0.5]])),
        (mx.array([[2.0, 0.0], [0.0, 0.0]]), SEVEN_PLUS_FIVE),
        (mx.array([[0.5]]), mx.array([[4.0], [-2.0]])),
        *drawn(2, lambda rng: (mx.array(rng.normal(size=(3, 5))), mx.array(rng.normal(size=(7, 5))))),
        *drawn(2, lambda rng: (mx.array(rng.normal(size=(2, 3, 4, 6))), mx.array(rng.normal(size=(2, 3, 4, 6)))), 1),
    ),
    mistakes=slips(
        scores,
        r"""
@ return queries @ keys.swapaxes(-1, -2) / queries.shape[-1] ** 0.5
not scaled (3)
+ return queries @ keys.swapaxes(-1, -2)
! The products are not divided by sqrt(D).
by D (3)
+ return queries @ keys.swapaxes(-1, -2) / queries.shape[-1]
! You divided by D. Divide by its square root: the *variance* grows like D.
by the number of keys (3)
+ return queries @ keys.swapaxes(-1, -2) / keys.shape[-2] ** 0.5
! You divided by the square root of the number of keys. D is the length of one query.
by the number of queries (3)
+ return queries @ keys.swapaxes(-1, -2) / queries.shape[-2] ** 0.5
! You divided by the square root of the number of queries. D is the length of one query.
all axes turned (2)
+ return queries @ keys.T / queries.shape[-1] ** 0.5
! `.T` reverses all axes, including those of the row and the head. Swap only the last two.
queries and keys swapped
+ return keys @ queries.swapaxes(-1, -2) / queries.shape[-1] ** 0.5
! Rows and columns are swapped: row i of the result belongs to query i, column j to key j.
times (3)
+ return queries @ keys.swapaxes(-1, -2) * queries.shape[-1] ** 0.5
! You multiplied by sqrt(D). Divide by it.
""",
    ),
    also_right=r"""
import math
import torch

# scores by einsum
lambda queries, keys: mx.einsum("...td,...sd->...ts", queries, keys) * queries.shape[-1] ** -0.5
# scores in numpy
def scores_in_numpy(queries, keys):
    queries, keys = np.array(queries), np.array(keys)
    return np.einsum("...td,...sd->...ts", queries, keys) / np.sqrt(queries.shape[-1])
# scores in torch
def torch_of(array):
    return torch.tensor(np.array(array))
def scores_in_torch(queries, keys):
    return torch_of(queries) @ torch_of(keys).mT / math.sqrt(queries.shape[-1])
# scores scaled first
def scores_scaled_first(queries, keys):
    root = queries.shape[-1] ** 0.25
    return (queries / root) @ mx.swapaxes(keys / root, -2, -1)
""",
    also_wrong=r"""
# scores into the queries
def scores_into_the_queries(queries, keys):
    queries /= queries.shape[-1] ** 0.5
    return queries @ keys.swapaxes(-1, -2)
! also new numbers in what it was given
""",
)


def causal(num_queries, num_keys, offset):
    """True where a query may look at a key: booleans [num_queries, num_keys]."""
    positions = mx.arange(num_queries)[:, None] + offset
    return mx.arange(num_keys)[None, :] <= positions


def _booleans(function, *arguments):
    """Return the result, or a `Told` if it is not boolean: `~` and `where` treat 1 and 0 differently."""
    result = function(*arguments)
    dtype = str(np.asarray(result).dtype if isinstance(result, (list, tuple)) else getattr(result, "dtype", "bool"))
    return result if "bool" in dtype else Told(f"an array of {dtype} (true and false should be booleans: compare)")


CAUSAL = Exercise(
    "11.3",
    "No token sees the future",
    "Write `causal(num_queries, num_keys, offset)`: an array of booleans [num_queries, num_keys], true where a query "
    "may look at a key. Key j is at position j. Query i is at position `offset + i` (chapter 13 reads a text in "
    "pieces, and then the first query is not at position 0). A query may look at its own position and at all "
    "positions before it.",
    minutes=6,
    difficulty=1,
    solution=causal,
    hints=(
        "You need two lists of positions and a comparison: the positions of the queries as a column, the positions of "
        "the keys as a row. Broadcasting makes the table.",
        "`mx.arange(num_queries)[:, None] + offset` is the column of the queries' positions, "
        "`mx.arange(num_keys)[None, :]` the row of the keys'. Which of them must be smaller, and may they be equal?",
        "`mx.arange(num_keys)[None, :] <= mx.arange(num_queries)[:, None] + offset`",
    ),
    cases=((3, 3, 0), (1, 1, 0), (2, 5, 3), (1, 4, 3), (1, 6, 2), (4, 7, 1), (5, 5, 0)),
    mistakes=slips(
        causal,
        r"""
@ return mx.arange(num_keys)[None, :] <= positions
not itself (2)
+ return mx.arange(num_keys)[None, :] < positions
! A token may look at itself. The first token has nothing else to look at.
the past is hidden (2)
+ return mx.arange(num_keys)[None, :] >= positions
! It is the wrong way round: here a query sees the future and not the past.
true is forbidden (2)
+ return mx.arange(num_keys)[None, :] > positions
! Here true means that a query may *not* look. Invert it. (Some libraries have masks of that kind.)

@ positions = mx.arange(num_queries)[:, None] + offset
no offset (2)
+ positions = mx.arange(num_queries)[:, None]
! The offset is missing: the first query is at position `offset`, and all the keys before it are past.
one too far (2)
+ positions = mx.arange(num_queries)[:, None] + offset + 1
! Each query sees one key too many: the very next token.
ends together (2)
+ positions = mx.arange(num_queries)[:, None] + num_keys - num_queries
! The last query was aligned with the last key. The position of the first query is given by `offset`; there may be keys
! beyond the last query.

offset of the keys (2)
- positions = mx.arange(num_queries)[:, None] + offset
- return mx.arange(num_keys)[None, :] <= positions
+ positions = mx.arange(num_queries)[:, None]
+ return mx.arange(num_keys)[None, :] + offset <= positions
! The offset moved the keys. The keys begin at 0; the queries begin at `offset`.
""",
    ),
    run=_booleans,
    also_right=r"""
# causal in numpy
lambda num_queries, num_keys, offset: np.tril(np.ones((num_queries, num_keys), dtype=bool), offset)
# causal in lists
lambda num_queries, num_keys, offset: [[j <= i + offset for j in range(num_keys)] for i in range(num_queries)]
# causal by tri
lambda num_queries, num_keys, offset: mx.tri(num_queries, num_keys, offset).astype(mx.bool_)
""",
    also_wrong=r"""
# causal of numbers
lambda num_queries, num_keys, offset: mx.tri(num_queries, num_keys, offset)
! should be booleans
# whole numbers
lambda q, k, o: [[int(j <= i + o) for j in range(k)] for i in range(q)]
! should be booleans
""",
)


def masked_softmax(scores, mask):
    """Weights over the last axis: 0 where `mask` is false; the others are positive and sum to 1."""
    scores = mx.where(mask, scores, -1e9)
    powers = mx.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _where_something_is_seen(function, scores, mask):
    """Return the result with the rows of queries that may see nothing set to 0, unless they hold nan or inf."""
    result = function(scores, mask)
    if result is None or not hasattr(result, "shape") or tuple(result.shape[:-1]) != tuple(scores.shape[:-1]):
        return result
    result = np.array(result)
    blind = ~np.array(mask).any(axis=-1, keepdims=True)
    return np.where(blind & np.isfinite(result), np.float32(0), result)


MASKED_SOFTMAX = Exercise(
    "11.4",
    "Softmax with a mask",
    "Write `masked_softmax(scores, mask)`: softmax over the last axis, ignoring the scores where `mask` is false. "
    "These get weight 0, and the other weights sum to 1. The mask has the shape of the scores, or broadcasts to it. "
    "There are two traps. Scores may be as large as 1000, and e¹⁰⁰⁰ is infinite. And a query that may see *nothing* "
    "(there are such rows) must get numbers and not nan. It does not matter which numbers.",
    minutes=10,
    difficulty=2,
    solution=masked_softmax,
    hints=(
        "Mask first, then softmax: where the mask is false, put a score so low that its exponential is 0. "
        "`mx.where(mask, scores, low)` chooses.",
        "How low? With minus infinity, a row with nothing to see becomes inf - inf, which is nan. -1e9 is low enough, "
        "and a row that contains only -1e9 gives equal weights.",
        "Softmax does not change if you subtract the same number from all scores of a row. Subtract the largest of "
        "the row (after masking!), and no exponential can exceed 1. Then `powers / powers.sum(axis=-1, "
        "keepdims=True)`.",
    ),
    cases=(
        (mx.array([[2.0, 0.0, 2.0]]), mx.array([[True, True, False]])),
        (mx.zeros((3, 3)), MASK),
        (mx.array([[0.7]]), mx.array([[True]])),
        (mx.array([[1000.0, 999.0, -1000.0]]), mx.array([[True, True, True]])),
        (mx.array([[1.0, 5000.0], [1.0, 5000.0]]), mx.array([[True, False], [False, True]])),
        (mx.array([[3.0, 1.0], [0.5, 0.25]]), mx.array([[False, False], [True, True]])),
        # One visible score, far below the hidden one: e^(score - log of the sum) is exact in float32 as well.
        (mx.array([[-30000.0, 5.0]]), mx.array([[True, False]])),
        *drawn(2, lambda rng: (mx.array(rng.normal(size=(2, 3, 4, 5))), mx.array(rng.random((2, 1, 4, 5)) < 0.7))),
    ),
    mistakes=slips(
        masked_softmax,
        r'''
masked after softmax
- scores = mx.where(mask, scores, -1e9)
  powers = mx.exp(scores - scores.max(axis=-1, keepdims=True))
- return powers / powers.sum(axis=-1, keepdims=True)
+ return mx.where(mask, powers / powers.sum(axis=-1, keepdims=True), 0.0)
! The hidden scores still took part in the sum, so the remaining weights do not sum to 1, and their sum reveals the
! hidden scores. Mask first, then apply softmax.

@ scores = mx.where(mask, scores, -1e9)
not masked
+ scores = scores
! The mask is not used.
hidden scores are 0
+ scores = mx.where(mask, scores, 0.0)
! A score of 0 still has the exponential e⁰ = 1. To count for nothing it has to be very low.
not low enough (2)
+ scores = mx.where(mask, scores, -10.0)
! -10 is not low enough: e⁻¹⁰ is small but not 0, and scores of -1000 are still lower.
nearly low enough (2)
+ scores = mx.where(mask, scores, -1e4)
! That is not low enough: a visible score may be even lower, and then the hidden one wins. -1e9 is low enough.
turned round
+ scores = mx.where(mask, -1e9, scores)
! It is the wrong way round: the scores that the mask allows are hidden.
minus infinity (2)
+ scores = mx.where(mask, scores, -mx.inf)
! A row in which nothing is visible became nan, because minus infinity minus minus infinity is nan.

the largest of all scores (3)
  """Weights over the last axis: 0 where `mask` is false; the others are positive and sum to 1."""
+ largest = scores.max(axis=-1, keepdims=True)
- powers = mx.exp(scores - scores.max(axis=-1, keepdims=True))
+ powers = mx.exp(scores - largest)
! Hidden scores still count. Next to a hidden 5000 nothing is left of the visible scores, and 0 / 0 is nan: take the
! largest score and the sum after masking.
the largest of all scores, and 0 / 0 caught (3)
  """Weights over the last axis: 0 where `mask` is false; the others are positive and sum to 1."""
+ largest = scores.max(axis=-1, keepdims=True)
- powers = mx.exp(scores - scores.max(axis=-1, keepdims=True))
- return powers / powers.sum(axis=-1, keepdims=True)
+ powers = mx.exp(scores - largest)
+ return powers / mx.maximum(powers.sum(axis=-1, keepdims=True), 1e-30)
! Hidden scores still count. Next to a hidden 5000 nothing is left of the visible scores, and the weights of the row sum
! to 0: take the largest score and the sum after masking.

@ powers = mx.exp(scores - scores.max(axis=-1, keepdims=True))
one shift for all rows (3)
+ powers = mx.exp(scores - scores.max())
! You subtract one largest score from all rows: a row far below it becomes 0 / 0. Take the largest score of each row.
no shift (3)
+ powers = mx.exp(scores)
! e¹⁰⁰⁰ is infinite, and infinite / infinite is nan. Subtract the largest score of each row first.

no shift, powers times the mask (3)
- scores = mx.where(mask, scores, -1e9)
- powers = mx.exp(scores - scores.max(axis=-1, keepdims=True))
+ scores = scores
+ powers = mx.exp(scores)
+ powers = powers * mask
! e¹⁰⁰⁰ is infinite, and infinite times 0 is nan. Subtract the largest score of each row first, after masking.
over the queries (3)
- powers = mx.exp(scores - scores.max(axis=-1, keepdims=True))
- return powers / powers.sum(axis=-1, keepdims=True)
+ powers = mx.exp(scores - scores.max(axis=-2, keepdims=True))
+ return powers / powers.sum(axis=-2, keepdims=True)
! That sums down the columns. The weights of each *query*, a row, have to sum to 1.
''',
    ),
    run=_where_something_is_seen,
    also_right=r"""
# softmax added
lambda scores, mask: mx.softmax(scores + mx.where(mask, 0.0, -1e9), axis=-1)
# softmax of the lowest
lambda scores, mask: mx.softmax(mx.where(mask, scores, mx.finfo(mx.float32).min), axis=-1)
# softmax cleaned
def softmax_cleaned(scores, mask):
    weights = mx.softmax(mx.where(mask, scores, -mx.inf), axis=-1)
    return mx.where(mx.isnan(weights), 0.0, weights)
# softmax in numpy
def softmax_in_numpy(scores, mask):
    scores = np.where(np.array(mask), np.array(scores), -1e30)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
# softmax by the log of the sum
def softmax_by_the_log_of_the_sum(scores, mask):
    scores = mx.where(mask, scores, -1e9)
    return mx.exp(scores - mx.logsumexp(scores, axis=-1, keepdims=True)) * mask
""",
    also_wrong=r"""
# hidden by a thousand
lambda scores, mask: mx.softmax(mx.where(mask, scores, -1e3), axis=-1)
! not low enough
""",
)


def visible(num_queries, num_keys, offset, attention_mask=None):
    """Causal and not padding: booleans [1 or B, 1, num_queries, num_keys]."""
    positions = mx.arange(num_queries)[:, None] + offset
    mask = (mx.arange(num_keys)[None, :] <= positions)[None, None]
    if attention_mask is None:
        return mask
    real = attention_mask.astype(mx.bool_)
    room = num_keys - real.shape[1]
    if room:
        real = mx.concatenate([real, mx.ones((real.shape[0], room), dtype=mx.bool_)], axis=1)
    return mask & real[:, None, None, :]


def _by_name(function, *arguments):
    return _booleans(lambda: function(*arguments))


VISIBLE = Exercise(
    "11.5",
    "What each query may see",
    "Write `visible(num_queries, num_keys, offset, attention_mask=None)`: booleans [1 or B, 1, num_queries, num_keys] "
    "that say which keys each query may look at; the axis of length 1 is for the heads, which all see the same. A key "
    "is visible if two conditions hold: the causal one of 11.3, and, if there is an `attention_mask` [B, up to "
    "num_keys] with 1 for a token and 0 for padding, that the *key* is a token. If `attention_mask` is shorter than "
    "num_keys, the keys beyond its end are real tokens. Without an `attention_mask` the result is [1, 1, num_queries, "
    "num_keys].",
    minutes=10,
    difficulty=2,
    solution=visible,
    hints=(
        "Begin with your causal mask and give it two more axes: `mask[None, None]`. Without padding that is all.",
        "Padding concerns the keys: `real[:, None, None, :]` is [B, 1, 1, num_keys], the same for each query. `&` of "
        "the two masks broadcasts to [B, 1, num_queries, num_keys].",
        "Extend a short attention mask to num_keys with ones: `mx.concatenate([real, mx.ones((B, room))], axis=1)` or "
        "`mx.pad(real, [(0, 0), (0, room)], constant_values=1)`, before it becomes booleans.",
    ),
    cases=(
        (3, 3, 0),
        (2, 5, 3),
        (1, 1, 0, mx.array([[1]])),
        (4, 4, 0, mx.array([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]])),
        (3, 3, 0, mx.array([[1, 1, 0], [1, 0, 0]])),
        (1, 6, 4, mx.array([[0, 1, 1, 1], [1, 1, 1, 1]])),
        (2, 7, 3, mx.array([[0, 0, 1]])),
        (2, 3, 1, mx.array([[True, True, True], [False, True, True]])),
        *drawn(2, lambda rng: (3, 6, 2, mx.array((rng.random((4, 5)) < 0.6).astype(np.int32)))),
    ),
    mistakes=slips(
        visible,
        r"""
@ return mask & real[:, None, None, :]
padding alone (2)
+ return mx.broadcast_to(real[:, None, None, :], (len(real), 1, num_queries, num_keys))
! With padding the causal condition is lost: both conditions have to hold.
no padding (2)
+ return mask
! The attention mask is not used.
padded queries (2)
+ return mask & real[:, None, offset : offset + num_queries, None]
! That hides rows, so padding may not *look*. It does not matter what padding sees, because its rows are never used. But
! padding must not be *seen*: the padded positions are keys, the last axis.
padding may not look either (2)
+ return mask & real[:, None, None, :] & real[:, None, offset : offset + num_queries, None]
! The rows of padding are hidden too. It does not matter what padding *sees*; there are only two conditions, and both
! are about keys.
either (2)
+ return mask | real[:, None, None, :]
! `|` is true if one of the conditions holds. Both have to hold: use `&`.
no axis for heads (2)
+ return mask & real[:, None, :]
! The shape is wrong: with an attention mask it is [B, 1, num_queries, num_keys], with an axis for the heads.

keys beyond the mask hidden (3)
- real = mx.concatenate([real, mx.ones((real.shape[0], room), dtype=mx.bool_)], axis=1)
+ real = mx.concatenate([real, mx.zeros((real.shape[0], room), dtype=mx.bool_)], axis=1)
! Keys beyond the end of the attention mask are tokens that came later, not padding.
turned round (2)
- real = attention_mask.astype(mx.bool_)
+ real = attention_mask == 0
! In an attention mask 1 is a token and 0 is padding.
""",
    ),
    run=_by_name,
    explain=(
        "The kit's version is in qwen3/forward.py under the same name. It is the only place that decides which token "
        "sees which, for training and generation, with padding and with a cache."
    ),
    also_right=r"""
import mlx_grpo_kit.qwen3.forward as kit

# visible in loops
def visible_in_loops(num_queries, num_keys, offset, attention_mask=None):
    rows = [[1] * num_keys] if attention_mask is None else attention_mask.tolist()
    return np.array([
        [[[j <= i + offset and (j >= len(row) or bool(row[j])) for j in range(num_keys)] for i in range(num_queries)]]
        for row in rows
    ])  # fmt: skip
# visible padded
def visible_padded(num_queries, num_keys, offset, attention_mask=None):
    mask = mx.tri(num_queries, num_keys, offset).astype(mx.bool_)
    if attention_mask is None:
        return mask.reshape(1, 1, num_queries, num_keys)
    real = mx.pad(attention_mask.astype(mx.int32), [(0, 0), (0, num_keys - attention_mask.shape[1])], constant_values=1)
    return mx.logical_and(mask, (real == 1).reshape(len(real), 1, 1, num_keys))
# the kit's
kit.visible
""",
    also_wrong=r"""
# visible without room
def visible_without_room(num_queries, num_keys, offset, attention_mask=None):
    mask = (mx.arange(num_keys) <= mx.arange(num_queries)[:, None] + offset)[None, None]
    return mask if attention_mask is None else mask & (attention_mask != 0)[:, None, None, :]
""",
)


def split_heads(x, num_heads):
    """Cut the last axis into heads: [B, T, num_heads * D] -> [B, num_heads, T, D]."""
    batch, num_tokens, width = x.shape
    return x.reshape(batch, num_tokens, num_heads, width // num_heads).swapaxes(1, 2)


SPLIT_HEADS = Exercise(
    "11.6",
    "Several heads",
    "Write `split_heads(x, num_heads)`: cut each token's `num_heads * D` numbers into `num_heads` pieces of D. The "
    "first D numbers go to head 0, the next D to head 1, and so on. [B, T, num_heads * D] becomes [B, num_heads, T, "
    "D], so that every head is a little matrix [T, D] of its own.",
    minutes=5,
    difficulty=1,
    solution=split_heads,
    hints=(
        "There are two steps: cut the last axis into two, `[B, T, num_heads, D]`, then move an axis.",
        "`reshape` never moves a number, it only changes the shape. After it, `swapaxes(1, 2)` puts the heads before "
        "the tokens.",
    ),
    cases=(
        (mx.arange(12.0).reshape(1, 2, 6), 2),
        (mx.arange(12.0).reshape(1, 2, 6), 3),
        (mx.arange(4.0).reshape(1, 1, 4), 4),
        *drawn(2, lambda rng: (mx.array(rng.normal(size=(2, 3, 8))), 4)),
        *drawn(1, lambda rng: (mx.array(rng.normal(size=(3, 4, 5))), 1), 2),
    ),
    mistakes=slips(
        split_heads,
        r"""
@ return x.reshape(batch, num_tokens, num_heads, width // num_heads).swapaxes(1, 2)
reshape alone (2)
+ return x.reshape(batch, num_heads, num_tokens, width // num_heads)
! The shape is right, but the numbers are not: reshape alone gives head 0 the numbers of other tokens. Cut first, then
! move the axis.
every second number
+ return x.reshape(batch, num_tokens, width // num_heads, num_heads).transpose(0, 3, 1, 2)
! Head 0 got every num_heads-th number. It should get the first D numbers.
not moved (2)
+ return x.reshape(batch, num_tokens, num_heads, width // num_heads)
! That is [B, T, num_heads, D]. The heads come before the tokens.
""",
    ),
    also_right=r"""
# heads by slices
def heads_by_slices(x, num_heads):
    dim = x.shape[-1] // num_heads
    return mx.stack([x[:, :, h * dim : (h + 1) * dim] for h in range(num_heads)], axis=1)
# heads by split
lambda x, num_heads: mx.stack(mx.split(x, num_heads, axis=-1), axis=1)
# heads in numpy
def heads_in_numpy(x, num_heads):
    x = np.array(x)
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)
""",
)


def grouped_attention(queries, keys, values, mask):
    """Softmax(Q K^T / sqrt(D)) V: [B, H, T, D] and twice [B, K, S, D] -> [B, H, T, D]."""
    batch, num_heads, num_tokens, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    grouped = queries.reshape(batch, num_kv_heads, -1, num_tokens, head_dim)
    scores = grouped @ keys[:, :, None].swapaxes(-1, -2) / head_dim**0.5
    scores = mx.where(mask[:, :, None], scores, -1e9)
    powers = mx.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = powers / powers.sum(axis=-1, keepdims=True)
    return (weights @ values[:, :, None]).reshape(batch, num_heads, num_tokens, head_dim)


# Memory is measured if the keys have this many bytes; an answer may use this multiple of the keys and values.
LARGE, MOST_MEMORY = 2**18, 4


def _with_little_memory(function, queries, keys, values, mask):
    """Return the result, or a `Told` if every query head got a copy of keys or values, in MLX or in NumPy."""
    if keys.nbytes < LARGE:
        return _where_something_is_seen(lambda *_: function(queries, keys, values, mask), queries, mask)
    mx.eval(queries, keys, values, mask)
    mx.synchronize()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    tracemalloc.start()
    try:
        result = function(queries, keys, values, mask)
        if isinstance(result, mx.array):
            mx.eval(result)
        taken = max(mx.get_peak_memory() - before, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    if taken > MOST_MEMORY * (keys.nbytes + values.nbytes):
        return Told("a result, but it used many times the memory of keys and values: every query head got its own copy")
    return result


def _grouped(batch, heads, kv_heads, tokens, keys, head_dim, seed=0):
    """Random queries, keys and values, and a causal mask for the last `tokens` of the keys."""
    rng = np.random.default_rng(seed)
    shapes = (batch, heads, tokens, head_dim), (batch, kv_heads, keys, head_dim), (batch, kv_heads, keys, head_dim)
    mask = np.tril(np.ones((tokens, keys), bool), keys - tokens)[None, None]
    return *(mx.array(rng.normal(size=shape)) for shape in shapes), mx.array(mask)


PADDED = mx.array(np.tril(np.ones((4, 4), bool)) & np.array([[[[0, 1, 1, 1]]], [[[1, 1, 1, 1]]]], bool))

GROUPED = Exercise(
    "11.7",
    "Shared keys, no copies",
    "Write `grouped_attention(queries, keys, values, mask)`, the whole of attention after the projections: scaled "
    "scores, mask, softmax, mixture. Queries are [B, H, T, D], keys and values [B, K, S, D], the mask is [1 or B, 1, "
    "T, S]; the result is [B, H, T, D]. H is a multiple of K, and neighbours share: with H = 4 and K = 2, query heads "
    "0 and 1 use head 0 of keys and values, query heads 2 and 3 use head 1. Do *not* repeat keys and values in "
    "memory: the largest case measures the memory.",
    minutes=20,
    difficulty=3,
    solution=grouped_attention,
    hints=(
        "Do not give the keys more heads; give the queries one more axis. [B, H, T, D] reshaped to [B, K, H // K, T, "
        "D] has for each key head the group of query heads that share it.",
        "`keys[:, :, None]` is [B, K, 1, S, D]. A matrix product broadcasts that 1 to H // K without copying, like "
        "broadcasting in chapter 04. The mask needs one more axis too: `mask[:, :, None]`.",
        "`grouped = queries.reshape(B, K, -1, T, D)`, `scores = grouped @ keys[:, :, None].swapaxes(-1, -2) / D**0.5`, "
        "then mask and softmax as in 11.4, `weights @ values[:, :, None]`, and reshape back to [B, H, T, D].",
    ),
    cases=(
        _grouped(1, 2, 1, 1, 1, 2),
        _grouped(1, 4, 2, 3, 3, 4, seed=1),
        _grouped(2, 6, 2, 2, 5, 3, seed=2),
        _grouped(2, 3, 3, 4, 4, 8, seed=3),
        (*_grouped(2, 4, 2, 4, 4, 5, seed=4)[:3], PADDED),
        _grouped(1, 4, 2, 3, 3, 4, seed=6),  # the same shapes as before: results cached from them are wrong here
        _grouped(1, 32, 2, 1, 1000, 64, seed=5),
    ),
    mistakes=slips(
        grouped_attention,
        r"""
@ grouped = queries.reshape(batch, num_kv_heads, -1, num_tokens, head_dim)
repeated
+ keys, values = (mx.repeat(x, num_heads // num_kv_heads, axis=1) for x in (keys, values))
+ grouped = queries[:, :, None]
! The numbers are right, but sharing was meant to save this memory. Leave keys and values as they are, and give the
! queries another axis.
dealt, and copied
+ keys, values = (mx.tile(x, (1, num_heads // num_kv_heads, 1, 1)) for x in (keys, values))
+ grouped = queries[:, :, None]
! Query head h got a copy of key head h % K, the way cards are dealt. Neighbours share key head h // (H / K), and they
! need no copies.

dealt like cards
- grouped = queries.reshape(batch, num_kv_heads, -1, num_tokens, head_dim)
+ grouped = queries.reshape(batch, -1, num_kv_heads, num_tokens, head_dim).swapaxes(1, 2)
- return (weights @ values[:, :, None]).reshape(batch, num_heads, num_tokens, head_dim)
+ return (weights @ values[:, :, None]).swapaxes(1, 2).reshape(batch, num_heads, num_tokens, head_dim)
! Query head h used key head h % K, the way cards are dealt. Neighbours share: use key head h // (H / K).

@ return (weights @ values[:, :, None]).reshape(batch, num_heads, num_tokens, head_dim)
heads in the wrong order (3)
+ return (weights @ values[:, :, None]).swapaxes(1, 2).reshape(batch, num_heads, num_tokens, head_dim)
! The heads come out in a different order: [B, K, H // K, T, D] only needs a reshape.
keys are mixed (3)
+ return (weights @ keys[:, :, None]).reshape(batch, num_heads, num_tokens, head_dim)
! Mix the *values*. The keys only decide the weights.

@ scores = grouped @ keys[:, :, None].swapaxes(-1, -2) / head_dim**0.5
the first head's keys (2)
+ scores = grouped @ keys[:, :1, None].swapaxes(-1, -2) / head_dim**0.5
! All query heads use the keys of key head 0.
not scaled (3)
+ scores = grouped @ keys[:, :, None].swapaxes(-1, -2)
! The scores are not divided by sqrt(D).

@ scores = mx.where(mask[:, :, None], scores, -1e9)
not masked (2)
+ scores = scores
! The mask is not used.
the first row's mask (2)
+ scores = mx.where(mask[:1, :, None], scores, -1e9)
! Every row of the batch got the mask of the first row, but the rows are padded differently.
minus infinity (3)
+ scores = mx.where(mask[:, :, None], scores, -mx.inf)
! A query that may see nothing got nan. 11.4 had the same trap.

masked after softmax (3)
- scores = mx.where(mask[:, :, None], scores, -1e9)
+ pass
- weights = powers / powers.sum(axis=-1, keepdims=True)
+ weights = powers / powers.sum(axis=-1, keepdims=True) * mask[:, :, None]
! You masked after softmax, so hidden scores took part in the sum. Mask first, as in 11.4.
weights over queries (3)
- powers = mx.exp(scores - scores.max(axis=-1, keepdims=True))
- weights = powers / powers.sum(axis=-1, keepdims=True)
+ powers = mx.exp(scores - scores.max(axis=-2, keepdims=True))
+ weights = powers / powers.sum(axis=-2, keepdims=True)
! Apply softmax over the keys, the last axis.
""",
    ),
    run=_with_little_memory,
    explain=(
        "The kit folds the group into the rows of one matrix product instead, [B, K, (H / K) * T, D]: fewer and "
        "larger products with the same numbers (`attention_scores` in qwen3/kernels.py)."
    ),
    also_right=r"""
# grouped fused
def grouped_fused(queries, keys, values, mask):
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=queries.shape[-1] ** -0.5, mask=mask)
# grouped in a loop
def grouped_in_a_loop(queries, keys, values, mask):
    size, heads = queries.shape[1] // keys.shape[1], []
    for h in range(queries.shape[1]):
        scores = queries[:, h] @ keys[:, h // size].swapaxes(-1, -2) / queries.shape[-1] ** 0.5
        heads.append(mx.softmax(mx.where(mask[:, 0], scores, -1e9), axis=-1) @ values[:, h // size])
    return mx.stack(heads, axis=1)
# grouped by einsum
def grouped_by_einsum(queries, keys, values, mask):
    batch, heads, tokens, dim = queries.shape
    grouped = queries.reshape(batch, keys.shape[1], -1, tokens, dim) / dim**0.5
    scores = mx.einsum("bkgtd,bksd->bkgts", grouped, keys)
    weights = mx.softmax(mx.where(mx.expand_dims(mask, 2), scores, -1e9), axis=-1)
    return mx.einsum("bkgts,bksd->bkgtd", weights, values).reshape(batch, heads, tokens, dim)
# grouped in numpy
def grouped_in_numpy(queries, keys, values, mask):
    queries, keys, values, mask = map(np.array, (queries, keys, values, mask))
    grouped = queries.reshape(len(queries), keys.shape[1], -1, *queries.shape[2:])
    scores = np.einsum("bkgtd,bksd->bkgts", grouped, keys) / np.sqrt(keys.shape[-1])
    scores = np.where(mask[:, :, None], scores, -1e9)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bkgts,bksd->bkgtd", powers / powers.sum(-1, keepdims=True), values).reshape(queries.shape)
# grouped with nothing for the blind
def grouped_with_nothing_for_the_blind(queries, keys, values, mask):
    grouped = queries.reshape(len(queries), keys.shape[1], -1, *queries.shape[2:])
    scores = grouped @ keys[:, :, None].swapaxes(-1, -2) / queries.shape[-1] ** 0.5
    weights = mx.softmax(mx.where(mask[:, :, None], scores, -mx.inf), axis=-1)
    return (mx.where(mx.isnan(weights), 0.0, weights) @ values[:, :, None]).reshape(queries.shape)
""",
    also_wrong=r"""
# grouped repeated in numpy
def repeated_in_numpy(queries, keys, values, mask):
    keys, values = (np.repeat(np.array(each), queries.shape[1] // each.shape[1], axis=1) for each in (keys, values))
    return grouped_attention(queries, mx.array(keys), mx.array(values), mask)
! every query head got its own copy
# remembered by shapes
known = {}
lambda *arrays: known.setdefault(str([array.shape for array in arrays]), grouped_attention(*arrays))
""",
)


def attention(config, params, prefix, x, mask):
    """Qwen3's attention, [B, T, hidden] -> [B, T, hidden]."""
    batch, num_tokens, _ = x.shape

    def heads(name, count):
        projected = x @ params[prefix + name + ".weight"].T
        return projected.reshape(batch, num_tokens, count, config.head_dim).swapaxes(1, 2)

    queries = heads("q_proj", config.num_attention_heads)
    keys = heads("k_proj", config.num_key_value_heads)
    values = heads("v_proj", config.num_key_value_heads)
    queries = rms_norm(queries, params[prefix + "q_norm.weight"], config.rms_norm_eps)
    keys = rms_norm(keys, params[prefix + "k_norm.weight"], config.rms_norm_eps)
    queries = rope(queries, 0, config.rope_theta)
    keys = rope(keys, 0, config.rope_theta)
    mixed = grouped_attention(queries, keys, values, mask)
    mixed = mixed.swapaxes(1, 2).reshape(batch, num_tokens, -1)
    return mixed @ params[prefix + "o_proj.weight"].T


def _result_and_gradient(function, config, params, prefix, x, mask):
    """Return the result and the gradient of the sum of its squares: gradients are half of the exercise.

    The rows of queries that may see nothing are left out of both, unless they hold nan or inf.
    """
    sees = mx.any(mask, axis=-1).swapaxes(1, 2)  # [1 or B, T, 1]

    def seen(result):
        return mx.where(sees | ~mx.isfinite(result), result, 0.0)

    result = function(config, params, prefix, x, mask)
    if result is None or not hasattr(result, "shape"):
        return result
    if tuple(result.shape) != x.shape:
        return Told(f"an array of shape {tuple(result.shape)} (it should have that of x, {x.shape})")
    squares = mx.grad(lambda x: (seen(mx.array(function(config, params, prefix, x, mask))) ** 2).sum())
    return {"the result": seen(mx.array(result)), "the gradient of x": squares(x)}


def _layer(batch, tokens, heads, kv_heads, head_dim, hidden, prefix, seed, padded=False):
    """A configuration, random weights under `prefix` with norms away from 1, an x and its mask."""
    config = Qwen3Config(
        vocab_size=11,
        hidden_size=hidden,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rope_theta=100.0,
        rms_norm_eps=0.01,
    )
    rng = np.random.default_rng(seed)
    shapes = {
        "q_proj": (heads * head_dim, hidden),
        "k_proj": (kv_heads * head_dim, hidden),
        "v_proj": (kv_heads * head_dim, hidden),
        "o_proj": (hidden, heads * head_dim),
    }
    params = {f"{prefix}{name}.weight": mx.array(rng.normal(size=shape) / 3) for name, shape in shapes.items()}
    params |= {f"{prefix}{name}_norm.weight": mx.array(rng.uniform(0.3, 2, head_dim)) for name in "qk"}
    mask = np.tril(np.ones((tokens, tokens), bool))[None, None]
    if padded:
        mask = mask & (np.arange(tokens) >= np.arange(batch)[:, None])[:, None, None, :]
    return config, params, prefix, mx.array(rng.normal(size=(batch, tokens, hidden))), mx.array(mask)


ATTENTION = Exercise(
    "11.8",
    "The whole of Qwen3's attention",
    "Write `attention(config, params, prefix, x, mask)`: it takes x [B, T, hidden] and returns [B, T, hidden], by the "
    'seven steps of the list above. The weights are `params[prefix + "q_proj.weight"]`, `k_proj`, `v_proj`, `o_proj`, '
    "of shape [out, in], and `q_norm.weight`, `k_norm.weight`, of length D. The sizes are "
    "`config.num_attention_heads`, `config.num_key_value_heads` and `config.head_dim`; you also need "
    "`config.rms_norm_eps` and `config.rope_theta`. Use what you have: `split_heads`, `grouped_attention`, and "
    "chapter 10's `rms_norm(x, weight, eps)` and `rope(x, offset, theta)` (on [B, heads, T, D], with offset 0). Every "
    "number has to agree with the kit's to 1e-5, and so has the gradient: `check` looks at the pair (result, gradient "
    "of the sum of its squares with respect to x).",
    minutes=25,
    difficulty=3,
    solution=attention,
    hints=(
        "A projection is `x @ weight.T`. Then split it into heads: H heads for the queries, K for keys and values. "
        "Print the shape after every step.",
        "Only queries and keys get norms and RoPE; the norm comes first. `rope` rotates by the position along the "
        "axis before the last, so move the heads before that axis first.",
        "`grouped_attention` gives [B, H, T, D]. Back to [B, T, H * D]: `mixed.swapaxes(1, 2).reshape(B, T, -1)`, and "
        "then `@ o_proj.T`.",
    ),
    cases=(
        _layer(1, 1, 2, 1, 4, 6, "layers.0.self_attn.", 0),
        _layer(2, 5, 4, 2, 4, 6, "layers.3.self_attn.", 1),
        _layer(1, 4, 3, 3, 2, 6, "", 2),
        _layer(3, 4, 4, 1, 6, 10, "a.", 3, padded=True),
    ),
    mistakes=slips(
        attention,
        r"""
@ queries = rms_norm(queries, params[prefix + "q_norm.weight"], config.rms_norm_eps)
@ keys = rms_norm(keys, params[prefix + "k_norm.weight"], config.rms_norm_eps)
no norm (2)
+ pass
+ pass
! Queries and keys are not normalized: that is Qwen2. Qwen3 has a norm for each, before RoPE.
each other's norm (2)
+ queries = rms_norm(queries, params[prefix + "k_norm.weight"], config.rms_norm_eps)
+ keys = rms_norm(keys, params[prefix + "q_norm.weight"], config.rms_norm_eps)
! Queries and keys got each other's norm weight.
rms_norm_eps by heart (2)
+ queries = rms_norm(queries, params[prefix + "q_norm.weight"], 1e-6)
+ keys = rms_norm(keys, params[prefix + "k_norm.weight"], 1e-6)
! 1e-6 is one model's `rms_norm_eps`. Other models have other values: use `config.rms_norm_eps`.

no norm of the queries (2)
- queries = rms_norm(queries, params[prefix + "q_norm.weight"], config.rms_norm_eps)
+ pass
! The queries are not normalized. Normalize both queries and keys, each with its own weight.
no norm of the keys (2)
- keys = rms_norm(keys, params[prefix + "k_norm.weight"], config.rms_norm_eps)
+ pass
! The keys are not normalized. Normalize both queries and keys, each with its own weight.
a norm over all heads (2)
  projected = x @ params[prefix + name + ".weight"].T
+ if name[0] != "v":
+     projected = rms_norm(projected, None, config.rms_norm_eps)
- queries = rms_norm(queries, params[prefix + "q_norm.weight"], config.rms_norm_eps)
- keys = rms_norm(keys, params[prefix + "k_norm.weight"], config.rms_norm_eps)
+ queries = queries * params[prefix + "q_norm.weight"]
+ keys = keys * params[prefix + "k_norm.weight"]
! The norm was taken over the numbers of all heads together. Split first: normalize the D numbers of each head
! separately.

@ mixed = grouped_attention(queries, keys, values, mask)
divided twice (3)
+ mixed = grouped_attention(queries / config.head_dim**0.5, keys, values, mask)
! The scores are divided by sqrt(D) twice: `grouped_attention` does it already.
not masked (3)
+ mixed = grouped_attention(queries, keys, values, mask | True)
! The mask is not used.

@ queries = rope(queries, 0, config.rope_theta)
@ keys = rope(keys, 0, config.rope_theta)
rope_theta by heart (2)
+ queries = rope(queries, 0, 1000000.0)
+ keys = rope(keys, 0, 1000000.0)
! 1000000.0 is one model's `rope_theta`. Other models have other values: use `config.rope_theta`.
no rope (2)
+ pass
+ pass
! Nothing was rotated by its position, so this attention cannot tell first from last.

queries alone are turned (2)
- keys = rope(keys, 0, config.rope_theta)
+ pass
! Only the queries were rotated. A score depends on the *difference* of positions only if both are.
keys alone are turned (2)
- queries = rope(queries, 0, config.rope_theta)
+ pass
! Only the keys were rotated. A score depends on the *difference* of positions only if both are.
values turned (2)
  keys = rope(keys, 0, config.rope_theta)
+ values = rope(values, 0, config.rope_theta)
! The values were rotated too. Positions are only for the scores; leave the values as they are.
rope first (2)
  values = heads("v_proj", config.num_key_value_heads)
+ queries = rope(queries, 0, config.rope_theta)
+ keys = rope(keys, 0, config.rope_theta)
- queries = rope(queries, 0, config.rope_theta)
- keys = rope(keys, 0, config.rope_theta)
! RoPE came before the norm. The norm's weight differs from number to number, and RoPE has already mixed the numbers:
! apply the norm first.
heads as positions (2)
- return projected.reshape(batch, num_tokens, count, config.head_dim).swapaxes(1, 2)
+ return projected.reshape(batch, num_tokens, count, config.head_dim)
- queries = rope(queries, 0, config.rope_theta)
- keys = rope(keys, 0, config.rope_theta)
- mixed = grouped_attention(queries, keys, values, mask)
+ queries = rope(queries, 0, config.rope_theta).swapaxes(1, 2)
+ keys = rope(keys, 0, config.rope_theta).swapaxes(1, 2)
+ mixed = grouped_attention(queries, keys, values.swapaxes(1, 2), mask)
! RoPE took the heads for positions: it uses the axis before the last. Move the heads to the front first.
tokens and heads mixed (3)
- mixed = mixed.swapaxes(1, 2).reshape(batch, num_tokens, -1)
+ mixed = mixed.reshape(batch, num_tokens, -1)
! On the way back the heads were not moved after the tokens before the reshape.

@ return mixed @ params[prefix + "o_proj.weight"].T
no output projection (3)
+ return mixed @ mx.eye(mixed.shape[-1], x.shape[-1])
! The output projection is missing.
x is added (3)
+ return x + mixed @ params[prefix + "o_proj.weight"].T
! x was added at the end. The block does that, in chapter 12: attention returns only its own output.

@ projected = x @ params[prefix + name + ".weight"].T
projected from the wrong side
+ projected = x @ params[prefix + name + ".weight"].reshape(x.shape[-1], -1)
! The weights have the shape [out, in], so a projection is `x @ weight.T`. A reshape to a shape that fits puts the
! numbers in the wrong places.
not transposed
+ projected = x @ params[prefix + name + ".weight"]
! The weights have the shape [out, in]: a projection is `x @ weight.T`.

cut from its graph (3)
  mixed = grouped_attention(queries, keys, values, mask)
+ mixed = mx.array(np.array(mixed))
! The numbers are right, but the gradient is cut off: NumPy keeps no graph. Use only `mx`.
""",
    ),
    run=_result_and_gradient,
    explain="Chapter 12 puts it into the whole model, and chapter 13 gives it a memory.",
    also_right=r"""
import math
import mlx_grpo_kit.qwen3.forward as kit

# attention fused
def attention_fused(config, params, prefix, x, mask):
    weight = {name.removeprefix(prefix): value for name, value in params.items()}
    shape = (*x.shape[:2], -1, config.head_dim)
    q, k, v = ((x @ weight[f"{name}_proj.weight"].T).reshape(shape) for name in "qkv")
    q = mx.fast.rms_norm(q, weight["q_norm.weight"], config.rms_norm_eps).transpose(0, 2, 1, 3)
    k = mx.fast.rms_norm(k, weight["k_norm.weight"], config.rms_norm_eps).transpose(0, 2, 1, 3)
    settings = {"traditional": False, "base": config.rope_theta, "scale": 1.0, "offset": 0}
    q, k = (mx.fast.rope(each, config.head_dim, **settings) for each in (q, k))
    mixed = mx.fast.scaled_dot_product_attention(
        q, k, v.transpose(0, 2, 1, 3), scale=1 / math.sqrt(config.head_dim), mask=mask
    )
    return mixed.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1) @ weight["o_proj.weight"].T
# attention of the kit
kit.attention
""",
    also_wrong=r"""
import mlx_grpo_kit.qwen3.forward as kit

# attention without qk norm
def attention_without_qk_norm(config, params, prefix, x, mask):
    ones = {prefix + name: mx.ones(config.head_dim) for name in ("q_norm.weight", "k_norm.weight")}
    return kit.attention(config, params | ones, prefix, x, mask)
! gave for the result
# attention of the first layer
lambda config, params, prefix, x, mask: kit.attention(config, params, "layers.0.self_attn.", x, mask)
""",
)


def leaks(forward, x):
    """The results that depend on a later token: sorted pairs (i, j) with j > i."""
    num_tokens, width = forward(x).shape
    found = set()
    for i in range(num_tokens):
        for c in range(width):
            gradient = mx.grad(lambda x: forward(x)[i, c])(x)
            for j in range(i + 1, num_tokens):
                if mx.any(gradient[j] != 0):
                    found.add((i, j))
    return sorted(found)


def _weighted(x, hidden):
    return masked_softmax(scores(x, x), hidden) @ x


def honest(x):
    """causal attention"""
    return _weighted(x, causal(len(x), len(x), 0))


def one_too_far(x):
    """attention with j <= i + 1"""
    return _weighted(x, causal(len(x), len(x), 1))


def masked_after_softmax(x):
    """mx.softmax(scores) * mask @ x"""
    return (mx.softmax(scores(x, x), axis=-1) * causal(len(x), len(x), 0)) @ x


def rolled(x):
    """x + mx.roll(x, 1, axis=0), which wraps around"""
    return x + mx.roll(x, 1, axis=0)


def whispering(x):
    """the next token, times 1e-6, added to each"""
    return x + 1e-6 * mx.concatenate([x[1:], x[-1:]])


def faint(x):
    """1e-20 times the next token, and nothing else"""
    return 1e-20 * mx.concatenate([x[1:], x[-1:]])


def opposites(x):
    """u and -u, where u is the sum of all tokens"""
    u = x.sum(axis=0, keepdims=True)[:, :1] * mx.ones((len(x), 1))
    return mx.concatenate([u, -u], axis=1)


def shares(x):
    """u and 1 - u, two shares, where u is the sigmoid of the sum of all tokens"""
    u = mx.sigmoid(x.sum(axis=0, keepdims=True)[:, :1]) * mx.ones((len(x), 1))
    return mx.concatenate([u, 1 - u], axis=1)


def third_of_four(x):
    """four numbers a row: x[0], x[1], ((the next token's x[0] - 1) * (the next token's x[0] - x[0]))², 100 + x[0]"""
    after = mx.concatenate([x[1:, :1], x[-1:, :1]])  # no slope at ones, and none where all tokens are alike
    leak = ((after - 1) * (after - x[:, :1])) ** 2
    return mx.concatenate([x[:, :2], leak, 100 + x[:, :1]], axis=1)


def differences(x):
    """the last token's x[0] - x[1], in the second number of the first row alone"""
    leak = mx.concatenate([x[:1, :1], x[-1:, :1] - x[-1:, 1:2]], axis=1)
    return mx.concatenate([leak, x[1:, :2]])


def second_alone(x):
    """x, but the last token's x[1] minus 100 is added to the second number of the first row"""
    return mx.concatenate([x[:1] + (x[-1:] - 100) * mx.array([[0.0, 1.0]]), x[1:]])


def first_alone(x):
    """[the next token's x[0], 100 + x[1]]"""
    return mx.concatenate([mx.concatenate([x[1:, :1], x[-1:, :1]]), 100 + x[:, 1:2]], axis=1)


def on_a_circle(x):
    """cos(u) and sin(u), where u is the sum of all tokens' first numbers"""
    u = x[:, :1].sum(axis=0, keepdims=True) * mx.ones((len(x), 1))
    return mx.concatenate([mx.cos(u), mx.sin(u)], axis=1)


def _pairs(function, forward, x):
    result = function(forward, x)
    try:
        return sorted((int(i), int(j)) for i, j in result)
    except (TypeError, ValueError):
        return result


LEAKS = Exercise(
    "11.9",
    "Find the leak",
    "Write `leaks(forward, x)`: `forward` maps x [T, C] to results [T, C'], one row per token, and it may let a token "
    "see the future. Return all pairs `(i, j)` with j > i for which row i of the result depends on token j, as a "
    "list. A gradient shows it: if the gradient of *any* number in row i with respect to token j is not exactly 0, "
    "there is a leak. `mx.grad(f)(x)` gives the gradient of a function that returns one number.",
    minutes=15,
    difficulty=3,
    solution=leaks,
    hints=(
        "One number of the result at a time: `mx.grad(lambda x: forward(x)[i, c])(x)` has the shape of x, and its row "
        "j says how that number depends on token j.",
        "Sums hide leaks: two numbers of a row may move in opposite directions, and so may two gradients of a token. "
        "Look at each number of the result, and check `mx.any(gradient[j] != 0)`.",
        "Use three loops: i over tokens, c over the numbers of row i, j from i + 1 on. Collect the pairs in a set.",
    ),
    cases=tuple(
        (forward, _draw(*shape, seed=seed))
        for seed, (forward, shape) in enumerate(
            (
                (one_too_far, (4, 3)),
                (honest, (4, 3)),
                (masked_after_softmax, (3, 2)),
                (rolled, (4, 2)),
                (whispering, (3, 2)),
                (opposites, (3, 2)),
                (on_a_circle, (3, 2)),
                (differences, (3, 2)),
                (second_alone, (3, 2)),
                (first_alone, (3, 2)),
                (faint, (3, 2)),
                (shares, (3, 2)),
                (third_of_four, (4, 2)),
                (honest, (1, 2)),
            )
        )
    ),
    mistakes=slips(
        leaks,
        r"""
@ gradient = mx.grad(lambda x: forward(x)[i, c])(x)
a sum over the row (2)
+ gradient = mx.grad(lambda x: forward(x)[i].sum())(x)
! The sum of a row can stay the same while its numbers move in opposite directions. Take each number by itself.
a sum of squares (2)
+ gradient = mx.grad(lambda x: (forward(x)[i] ** 2).sum())(x)
! A sum of squares can stay the same too, as for a point that moves around a circle. Take each number by itself.
a sum without signs (2)
+ gradient = mx.grad(lambda x: mx.abs(forward(x)[i]).sum())(x)
! A sum of absolute values can stay the same too, as for two shares of a whole. Take each number by itself.
the largest of the row (2)
+ gradient = mx.grad(lambda x: forward(x)[i].max())(x)
! You looked only at the largest number of each row. Take each number by itself.

@ if mx.any(gradient[j] != 0):
a sum over the token (2)
+ if gradient[j].sum() != 0:
! The sum of a token's gradients can be 0 although the gradients are not: x[0] - x[1] has the gradients 1 and -1.
a threshold
+ if mx.any(mx.abs(gradient[j]) > 1e-4):
! A small leak is a leak, and a model will learn to read it. A masked token has a gradient of exactly 0.
a tiny threshold
+ if mx.any(mx.abs(gradient[j]) > 1e-12):
! Even the lowest threshold lets some leaks through. A masked token has a gradient of exactly 0.

@ for j in range(i + 1, num_tokens):
itself (3)
+ for j in range(i, num_tokens):
! A token may look at itself: begin with j = i + 1.
next token alone (3)
+ for j in range(i + 1, min(i + 2, num_tokens)):
! You looked only at the very next token. A leak can skip tokens.
the past (3)
+ for j in range(i):
! Those are tokens *before* i, which token i may see. The future is j > i.

turned round
- found.add((i, j))
+ found.add((j, i))
! The pairs are reversed: i is the token that looks, j the token that it sees.

@ for c in range(width):
the first number of a row
+ for c in range(1):
! You looked only at the first number of each row.
the last number of a row
+ for c in range(width - 1, width):
! You looked only at the last number of each row.
as many numbers as a token has
+ for c in range(min(width, x.shape[1])):
! A row of the result has C' numbers, which may be more than the C numbers of a token. Check them all.

the last row (3)
- for i in range(num_tokens):
+ for i in range(num_tokens - 1, num_tokens):
! You checked only the last token, and that one has no future.
""",
    ),
    run=_pairs,
    explain=(
        "Why not change a token and look at the results? That works too, but it needs luck: a change may be too small "
        "to show in float32, or fall where a softmax is flat. A gradient needs less luck, but still some: the "
        "gradient of (x - 1)² is 0 at 1. So evaluate at random inputs."
    ),
    also_right=r"""
import itertools

# leaks by vjp
def leaks_by_vjp(forward, x):
    out, found = forward(x), []
    for i, j in itertools.combinations(range(len(x)), 2):
        hots = (mx.zeros_like(out).at[i, c].add(1.0) for c in range(out.shape[1]))
        if any((mx.vjp(forward, [x], [hot])[1][0][j] != 0).any().item() for hot in hots):
            found.append([i, j])
    return found
# leaks by change
def leaks_by_change(forward, x):
    before, found = np.array(forward(x)), set()
    for j in range(len(x)):
        for c in range(x.shape[1]):
            changed = np.array(x)
            changed[j, c] += 3.0
            moved = (np.array(forward(mx.array(changed))) != before).any(axis=1)
            found |= {(i, j) for i in range(j) if moved[i]}
    return found
""",
    also_wrong=r"""
# leaks by a small change
def leaks_by_a_small_change(forward, x):
    before, found = np.array(forward(x)), set()
    for j in range(len(x)):
        changed = np.array(x)
        changed[j] += 1e-4
        moved = np.abs(np.array(forward(mx.array(changed))) - before).max(axis=1) > 1e-6
        found |= {(i, j) for i in range(j) if moved[i]}
    return sorted(found)
# only at ones
lambda forward, x: leaks(forward, mx.ones_like(x))
! expected [(0, 1)
# only at one half
lambda forward, x: leaks(forward, mx.full(x.shape, 0.5))
! `forward = third_of_four
""",
)


def without_head(layer, head):
    """A watch for `qwen3_forward` that puts 0 in place of the mixture of one head."""

    def watch(name, value):
        if name != f"layers.{layer}.self_attn.mixed":
            return value
        keep = mx.arange(value.shape[1]) != head
        return value * keep[None, :, None, None]

    return watch


SMALL = Qwen3Config(
    vocab_size=13,
    hidden_size=12,
    intermediate_size=16,
    num_hidden_layers=12,  # the name of layer 11 contains a 1 too
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=4,
)


def _logits_without(function, layer, head, ids):
    """The logits of a small random model with the watch that `function(layer, head)` returns."""
    params = {name: value * 8 if value.ndim > 1 else value for name, value in init_params(SMALL, seed=0).items()}
    watch = function(layer, head)
    if not callable(watch):
        return watch
    changed = []

    def careful(name, value):
        before = np.array(value)
        result = watch(name, value)
        if result is None:
            raise TypeError(
                f"the watch returned None for {name!r}; it has to return unchanged every value that it does not change"
            )
        changed.append(not np.array_equal(np.array(value), before))
        return result

    logits, again = (qwen3_forward(SMALL, params, mx.array(ids), watch=each) for each in (careful, watch))
    if any(changed):
        return Told("a watch that writes into the value it is given (work on a copy)")
    if not mx.array_equal(logits, again):
        return Told("a watch that gives a different result in the second forward pass")
    return logits


WITHOUT_HEAD = Exercise(
    "11.10",
    "Remove a head",
    "Write `without_head(layer, head)`: it returns a *watch*, a function `watch(name, value)`, for "
    "`qwen3_forward(..., watch=...)`. The forward pass calls it with the name of every inner value and the value, and "
    'continues with its return value. In layer 1, for example, the value `"layers.1.self_attn.mixed"` [B, H, T, D] is '
    "the mixture of each head, before the output projection. Return the mixture of your layer with zeros for `head`, "
    "and every other value unchanged.",
    minutes=8,
    difficulty=2,
    solution=without_head,
    hints=(
        "Write a function that returns a function: `def without_head(layer, head):`, inside it `def watch(name, "
        "value):`, and at the end `return watch`.",
        "Every inner value goes through your watch, about forty in this model. Return `value` itself unless the name "
        "is that of your layer's mixture.",
        "`keep = mx.arange(value.shape[1]) != head` is true for all heads except one; `value * keep[None, :, None, "
        "None]` is a new array.",
    ),
    cases=((0, 0, [[3, 1, 4, 1, 5]]), (1, 2, [[3, 1, 4], [2, 6, 5]]), (0, 5, [[7]])),
    mistakes=slips(
        without_head,
        r"""
every other value is None (2)
- return value
+ return None
! `watch` has to return something at every call: for every other name, return `value`.

@ if name != f"layers.{layer}.self_attn.mixed":
in every layer (2)
+ if not name.endswith("self_attn.mixed"):
! The head was removed from every layer. The name says which layer it is.
layer 11 as well (2)
+ if not name.endswith(f"{layer}.self_attn.mixed"):
! The head was also removed from layer 11, whose name ends in the same way. Compare the whole name.
the weights (2)
+ if name != f"layers.{layer}.self_attn.scores":
! With scores of 0 a head is not silent: it mixes all tokens evenly, even the future ones. `mixed` is what it passes on.

a token taken out (3)
- keep = mx.arange(value.shape[1]) != head
- return value * keep[None, :, None, None]
+ keep = mx.arange(value.shape[2]) != head
+ return value * keep[None, None, :, None]
! That removed a token. The heads are axis 1 of [B, H, T, D].
the others (3)
- keep = mx.arange(value.shape[1]) != head
+ keep = mx.arange(value.shape[1]) == head
! All heads except this one were removed.
nothing is taken out (3)
- return value * keep[None, :, None, None]
+ return value
! The logits are those of the whole model: no head was removed.
""",
    ),
    run=_logits_without,
    also_right=r"""
# by where
- if name != f"layers.{layer}.self_attn.mixed":
+ if not (f"layers.{layer}." in name and name.endswith(".mixed")):
- keep = mx.arange(value.shape[1]) != head
- return value * keep[None, :, None, None]
+ return mx.where((mx.arange(value.shape[1]) == head).reshape(1, -1, 1, 1), 0.0, value)
# without its weights
- if name != f"layers.{layer}.self_attn.mixed":
+ if name != f"layers.{layer}.self_attn.weights":
- keep = mx.arange(value.shape[1]) != head
- return value * keep[None, :, None, None]
+ return mx.concatenate([value[:, :head], mx.zeros_like(value[:, :1]), value[:, head + 1 :]], axis=1)
# in a copy
- keep = mx.arange(value.shape[1]) != head
- return value * keep[None, :, None, None]
+ value = mx.array(value)
+ value[:, head] = 0
+ return value
""",
    also_wrong=r'''
# for four heads
- keep = mx.arange(value.shape[1]) != head
+ keep = mx.array([h != head for h in range(4)])
# only once
  """A watch for `qwen3_forward` that puts 0 in place of the mixture of one head."""
+ left = [f"layers.{layer}.self_attn.mixed"]
- if name != f"layers.{layer}.self_attn.mixed":
+ if name not in left:
- keep = mx.arange(value.shape[1]) != head
+ left.clear()
+ keep = mx.arange(value.shape[1]) != head
! a different result in the second forward pass
# in place
- keep = mx.arange(value.shape[1]) != head
- return value * keep[None, :, None, None]
+ value[:, head] = 0
+ return value
! writes into the value it is given
''',
)
