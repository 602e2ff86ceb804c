"""Chapter 11: right answers in other styles pass, wrong ones get their messages, and the claims of the prose hold."""

import itertools
import math

import numpy as np
import pytest
import torch

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.chapters.chapter_11 import exercises as chapter
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params, load_pretrained, load_tokenizer, qwen3_forward
from mlx_grpo_kit.qwen3.forward import attention, rms_norm, rope, visible
from mlx_grpo_kit.runtime import mx

F = torch.nn.functional
INF = float("inf")


def torch_of(array):
    return torch.tensor(np.array(array))


def test_the_solutions_against_torch():
    for queries, keys, values, mask in (case for case in chapter.GROUPED.cases if case[0].shape[1] < 32):
        expected = F.scaled_dot_product_attention(
            *map(torch_of, (queries, keys, values, mask)), enable_gqa=queries.shape[1] != keys.shape[1]
        )
        ours, seen = np.array(chapter.grouped_attention(queries, keys, values, mask)), np.array(mask).any(-1)
        seen = np.broadcast_to(seen, ours.shape[:3])
        np.testing.assert_allclose(ours[seen], expected.numpy()[seen], atol=1e-5)
    scores, mask = chapter.MASKED_SOFTMAX.cases[-1]
    expected = torch_of(scores).masked_fill(~torch_of(mask), -INF).softmax(-1).nan_to_num(0)
    ours = chapter._where_something_is_seen(chapter.masked_softmax, scores, mask)
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_the_solutions_against_the_kit():
    for case in chapter.VISIBLE.cases:
        assert np.array_equal(chapter.visible(*case), visible(*case))
    for case in chapter.ATTENTION.cases:
        assert mx.abs(chapter.attention(*case) - attention(*case)).max() < 1e-5


# -- right, in other styles --------------------------------------------------------------------------------------------


def scores_by_einsum(queries, keys):
    return mx.einsum("...td,...sd->...ts", queries, keys) * queries.shape[-1] ** -0.5


def scores_in_numpy(queries, keys):
    queries, keys = np.array(queries), np.array(keys)
    return np.einsum("...td,...sd->...ts", queries, keys) / np.sqrt(queries.shape[-1])


def scores_in_torch(queries, keys):
    return torch_of(queries) @ torch_of(keys).mT / math.sqrt(queries.shape[-1])


def scores_scaled_first(queries, keys):
    root = queries.shape[-1] ** 0.25
    return (queries / root) @ mx.swapaxes(keys / root, -2, -1)


def causal_in_numpy(num_queries, num_keys, offset):
    return np.tril(np.ones((num_queries, num_keys), dtype=bool), offset)


def causal_in_lists(num_queries, num_keys, offset):
    return [[j <= i + offset for j in range(num_keys)] for i in range(num_queries)]


def causal_by_tri(num_queries, num_keys, offset):
    return mx.tri(num_queries, num_keys, offset).astype(mx.bool_)


def softmax_added(scores, mask):
    return mx.softmax(scores + mx.where(mask, 0.0, -1e9), axis=-1)


def softmax_of_the_lowest(scores, mask):
    return mx.softmax(mx.where(mask, scores, mx.finfo(mx.float32).min), axis=-1)


def softmax_cleaned(scores, mask):
    weights = mx.softmax(mx.where(mask, scores, -INF), axis=-1)
    return mx.where(mx.isnan(weights), 0.0, weights)


def softmax_in_numpy(scores, mask):
    scores = np.where(np.array(mask), np.array(scores), -1e30)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def softmax_by_the_log_of_the_sum(scores, mask):
    scores = mx.where(mask, scores, -1e9)
    return mx.exp(scores - mx.logsumexp(scores, axis=-1, keepdims=True)) * mask


def visible_in_loops(num_queries, num_keys, offset, attention_mask=None):
    rows = [[1] * num_keys] if attention_mask is None else attention_mask.tolist()
    return np.array([
        [[[j <= i + offset and (j >= len(row) or bool(row[j])) for j in range(num_keys)] for i in range(num_queries)]]
        for row in rows
    ])  # fmt: skip


def visible_padded(num_queries, num_keys, offset, attention_mask=None):
    mask = mx.tri(num_queries, num_keys, offset).astype(mx.bool_)
    if attention_mask is None:
        return mask.reshape(1, 1, num_queries, num_keys)
    real = mx.pad(attention_mask.astype(mx.int32), [(0, 0), (0, num_keys - attention_mask.shape[1])], constant_values=1)
    return mx.logical_and(mask, (real == 1).reshape(len(real), 1, 1, num_keys))


def heads_by_slices(x, num_heads):
    dim = x.shape[-1] // num_heads
    return mx.stack([x[:, :, h * dim : (h + 1) * dim] for h in range(num_heads)], axis=1)


def heads_by_split(x, num_heads):
    return mx.stack(mx.split(x, num_heads, axis=-1), axis=1)


def heads_in_numpy(x, num_heads):
    x = np.array(x)
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)


def grouped_fused(queries, keys, values, mask):
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=queries.shape[-1] ** -0.5, mask=mask)


def grouped_in_a_loop(queries, keys, values, mask):
    size, heads = queries.shape[1] // keys.shape[1], []
    for h in range(queries.shape[1]):
        scores = queries[:, h] @ keys[:, h // size].swapaxes(-1, -2) / queries.shape[-1] ** 0.5
        heads.append(mx.softmax(mx.where(mask[:, 0], scores, -1e9), axis=-1) @ values[:, h // size])
    return mx.stack(heads, axis=1)


def grouped_by_einsum(queries, keys, values, mask):
    batch, heads, tokens, dim = queries.shape
    grouped = queries.reshape(batch, keys.shape[1], -1, tokens, dim) / dim**0.5
    scores = mx.einsum("bkgtd,bksd->bkgts", grouped, keys)
    weights = mx.softmax(mx.where(mx.expand_dims(mask, 2), scores, -1e9), axis=-1)
    return mx.einsum("bkgts,bksd->bkgtd", weights, values).reshape(batch, heads, tokens, dim)


def grouped_in_numpy(queries, keys, values, mask):
    queries, keys, values, mask = map(np.array, (queries, keys, values, mask))
    grouped = queries.reshape(len(queries), keys.shape[1], -1, *queries.shape[2:])
    scores = np.einsum("bkgtd,bksd->bkgts", grouped, keys) / np.sqrt(keys.shape[-1])
    scores = np.where(mask[:, :, None], scores, -1e9)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bkgts,bksd->bkgtd", powers / powers.sum(-1, keepdims=True), values).reshape(queries.shape)


def grouped_with_nothing_for_the_blind(queries, keys, values, mask):
    grouped = queries.reshape(len(queries), keys.shape[1], -1, *queries.shape[2:])
    scores = grouped @ keys[:, :, None].swapaxes(-1, -2) / queries.shape[-1] ** 0.5
    weights = mx.softmax(mx.where(mask[:, :, None], scores, -INF), axis=-1)
    return (mx.where(mx.isnan(weights), 0.0, weights) @ values[:, :, None]).reshape(queries.shape)


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


def attention_of_the_kit(config, params, prefix, x, mask):
    return attention(config, params, prefix, x, mask)


def leaks_by_vjp(forward, x):
    out, found = forward(x), []
    for i, j in itertools.combinations(range(len(x)), 2):
        hots = (mx.zeros_like(out).at[i, c].add(1.0) for c in range(out.shape[1]))
        if any((mx.vjp(forward, [x], [hot])[1][0][j] != 0).any().item() for hot in hots):
            found.append([i, j])
    return found


def leaks_by_change(forward, x):
    before, found = np.array(forward(x)), set()
    for j in range(len(x)):
        for c in range(x.shape[1]):
            changed = np.array(x)
            changed[j, c] += 3.0
            moved = (np.array(forward(mx.array(changed))) != before).any(axis=1)
            found |= {(i, j) for i in range(j) if moved[i]}
    return found


def without_by_where(layer, head):
    def watch(name, value):
        if f"layers.{layer}." in name and name.endswith(".mixed"):
            return mx.where((mx.arange(value.shape[1]) == head).reshape(1, -1, 1, 1), 0.0, value)
        return value

    return watch


def without_its_weights(layer, head):
    def watch(name, value):
        if name != f"layers.{layer}.self_attn.weights":
            return value
        return mx.concatenate([value[:, :head], mx.zeros_like(value[:, :1]), value[:, head + 1 :]], axis=1)

    return watch


def without_in_a_copy(layer, head):
    def watch(name, value):
        if name == f"layers.{layer}.self_attn.mixed":
            value = mx.array(value)
            value[:, head] = 0
        return value

    return watch


@pytest.mark.parametrize(
    ("id", "answer"),
    [
        ("11.1", [4, 1 / 3, 6, 0]),
        ("11.1", np.array([4.0, 1 / 3, 6.0, 0.0])),
        *(("11.2", each) for each in (scores_by_einsum, scores_in_numpy, scores_in_torch, scores_scaled_first)),
        *(("11.3", each) for each in (causal_in_numpy, causal_in_lists, causal_by_tri)),
        *(("11.4", each) for each in (softmax_added, softmax_of_the_lowest, softmax_cleaned, softmax_in_numpy)),
        ("11.4", softmax_by_the_log_of_the_sum),
        *(("11.5", each) for each in (visible_in_loops, visible_padded, visible)),
        *(("11.6", each) for each in (heads_by_slices, heads_by_split, heads_in_numpy)),
        *(("11.7", each) for each in (grouped_fused, grouped_in_a_loop, grouped_by_einsum, grouped_in_numpy)),
        ("11.7", grouped_with_nothing_for_the_blind),
        *(("11.8", each) for each in (attention_fused, attention_of_the_kit)),
        *(("11.9", each) for each in (leaks_by_vjp, leaks_by_change)),
        *(("11.10", each) for each in (without_by_where, without_its_weights, without_in_a_copy)),
    ],
)
def test_right_answers_in_other_styles_pass(id, answer):
    note = check(id, answer)
    assert note.passed, note


# -- wrong, and told how -----------------------------------------------------------------------------------------------


def remembered_by_shapes(function):
    known = {}
    return lambda *arrays: known.setdefault(str([array.shape for array in arrays]), function(*arrays))


def scores_into_the_queries(queries, keys):
    queries /= queries.shape[-1] ** 0.5
    return queries @ keys.swapaxes(-1, -2)


def causal_of_numbers(num_queries, num_keys, offset):
    return mx.tri(num_queries, num_keys, offset)


def softmax_times_the_mask(scores, mask):
    return mx.softmax(scores, axis=-1) * mask


def softmax_nan(scores, mask):
    return mx.softmax(mx.where(mask, scores, -INF), axis=-1)


def softmax_powers_times_the_mask(scores, mask):
    powers = mx.exp(scores) * mask
    return powers / powers.sum(axis=-1, keepdims=True)


def softmax_shifted_by_the_hidden(scores, mask):
    powers = mx.exp(scores - scores.max(axis=-1, keepdims=True)) * mask
    return powers / mx.maximum(powers.sum(axis=-1, keepdims=True), 1e-30)


def softmax_of_all_divided_again(scores, mask):
    weights = mx.softmax(scores, axis=-1) * mask
    return weights / weights.sum(axis=-1, keepdims=True)


def softmax_shifted_together(scores, mask):
    powers = mx.exp(mx.where(mask, scores, -1e9) - mx.where(mask, scores, -1e9).max())
    return powers / powers.sum(axis=-1, keepdims=True)


def visible_of_queries(num_queries, num_keys, offset, attention_mask=None):
    mask = (mx.arange(num_keys) <= mx.arange(num_queries)[:, None] + offset)[None, None]
    if attention_mask is None:
        return mask
    real = mx.pad(attention_mask, [(0, 0), (0, num_keys - attention_mask.shape[1])], constant_values=1)
    return mask & (real[:, None, offset : offset + num_queries, None] != 0)


def visible_to_tokens_alone(num_queries, num_keys, offset, attention_mask=None):
    mask = visible(num_queries, num_keys, offset, attention_mask)
    if attention_mask is None:
        return mask
    real = mx.pad(attention_mask, [(0, 0), (0, num_keys - attention_mask.shape[1])], constant_values=1)
    return mask & (real[:, None, offset : offset + num_queries, None] != 0)


def visible_without_room(num_queries, num_keys, offset, attention_mask=None):
    mask = (mx.arange(num_keys) <= mx.arange(num_queries)[:, None] + offset)[None, None]
    return mask if attention_mask is None else mask & (attention_mask != 0)[:, None, None, :]


def heads_reshaped(x, num_heads):
    return x.reshape(x.shape[0], num_heads, x.shape[1], -1)


def grouped_repeated(queries, keys, values, mask):
    keys, values = (mx.repeat(each, queries.shape[1] // each.shape[1], axis=1) for each in (keys, values))
    return grouped_fused(queries, keys, values, mask)


def grouped_repeated_in_numpy(queries, keys, values, mask):
    keys, values = (np.repeat(np.array(each), queries.shape[1] // each.shape[1], axis=1) for each in (keys, values))
    return grouped_in_numpy(queries, mx.array(keys), mx.array(values), mask)


def grouped_tiled(queries, keys, values, mask):
    size = queries.shape[1] // keys.shape[1]
    keys, values = (mx.concatenate([each] * size, axis=1) for each in (keys, values))
    return grouped_fused(queries, keys, values, mask)


def grouped_masked_after(queries, keys, values, mask):
    grouped = queries.reshape(len(queries), keys.shape[1], -1, *queries.shape[2:])
    scores = grouped @ keys[:, :, None].swapaxes(-1, -2) / queries.shape[-1] ** 0.5
    return (mx.softmax(scores, axis=-1) * mask[:, :, None] @ values[:, :, None]).reshape(queries.shape)


def grouped_behind_the_first_mask(queries, keys, values, mask):
    return grouped_by_einsum(queries, keys, values, mask[:1])


def grouped_nan(queries, keys, values, mask):
    grouped = queries.reshape(len(queries), keys.shape[1], -1, *queries.shape[2:])
    scores = grouped @ keys[:, :, None].swapaxes(-1, -2) / queries.shape[-1] ** 0.5
    weights = mx.softmax(mx.where(mask[:, :, None], scores, -INF), axis=-1)
    return (weights @ values[:, :, None]).reshape(queries.shape)


def attention_with(each_other=False, both=True, over_all=False, divisor=1.0, theta=None, eps=None, turned="qk"):
    """Attention that differs from Qwen3's in one way."""

    def attention(config, params, prefix, x, mask):
        own_eps, parts = config.rms_norm_eps if eps is None else eps, {}
        for name, count in zip("qkv", (config.num_attention_heads, *2 * [config.num_key_value_heads]), strict=True):
            part = x @ params[f"{prefix}{name}_proj.weight"].T
            if over_all and name != "v":
                part = mx.fast.rms_norm(part, None, own_eps)
            part = chapter.split_heads(part, count)
            if name == "q" or (name == "k" and both):
                weight = params[prefix + ("kq"["qk".index(name)] if each_other else name) + "_norm.weight"]
                part = part * weight if over_all else rms_norm(part, weight, own_eps)
            parts[name] = rope(part, 0, config.rope_theta if theta is None else theta) if name in turned else part
        mixed = grouped_by_einsum(parts["q"] / divisor, parts["k"], parts["v"], mask)
        return mixed.swapaxes(1, 2).reshape(*x.shape[:2], -1) @ params[f"{prefix}o_proj.weight"].T

    return attention


def attention_from_the_wrong_side(config, params, prefix, x, mask):
    turned = {f"{prefix}{name}_proj.weight": params[f"{prefix}{name}_proj.weight"].T for name in "qkv"}
    return attention_with()(config, params | turned, prefix, x, mask)


def attention_divided_twice(config, params, prefix, x, mask):
    return attention_with(divisor=config.head_dim**0.5)(config, params, prefix, x, mask)


def attention_without_qk_norm(config, params, prefix, x, mask):
    ones = {prefix + name: mx.ones(config.head_dim) for name in ("q_norm.weight", "k_norm.weight")}
    return attention(config, params | ones, prefix, x, mask)


def attention_rope_first(config, params, prefix, x, mask):
    def heads(name, count):
        return chapter.split_heads(x @ params[f"{prefix}{name}_proj.weight"].T, count)

    queries, keys = heads("q", config.num_attention_heads), heads("k", config.num_key_value_heads)
    queries, keys = (
        rms_norm(rope(each, 0, config.rope_theta), params[f"{prefix}{name}_norm.weight"], config.rms_norm_eps)
        for each, name in ((queries, "q"), (keys, "k"))
    )
    mixed = grouped_fused(queries, keys, heads("v", config.num_key_value_heads), mask)
    return mixed.swapaxes(1, 2).reshape(*x.shape[:2], -1) @ params[f"{prefix}o_proj.weight"].T


def attention_in_numpy(config, params, prefix, x, mask):
    return np.array(attention(config, params, prefix, x, mask))


def attention_of_the_first_layer(config, params, prefix, x, mask):
    return attention(config, params, "layers.0.self_attn.", x, mask)


def leaks_by_a_small_change(forward, x):
    before, found = np.array(forward(x)), set()
    for j in range(len(x)):
        changed = np.array(x)
        changed[j] += 1e-4
        moved = np.abs(np.array(forward(mx.array(changed))) - before).max(axis=1) > 1e-6
        found |= {(i, j) for i in range(j) if moved[i]}
    return sorted(found)


def leaks_of_a_sum(forward, x):
    gradients = [mx.grad(lambda x, i=i: forward(x)[i].sum())(x) for i in range(len(x))]
    return [(i, j) for i in range(len(x)) for j in range(i + 1, len(x)) if mx.any(gradients[i][j] != 0)]


def leaks_where(number=lambda row: row, width=None, threshold=0.0, at=lambda x: x):
    """Find leaks by the gradient of a function of row i, or of each of its first `width` numbers, at some x."""

    def leaks(forward, x):
        out, found = forward(x), set()
        for i in range(len(x)):
            for c in range(np.atleast_1d(number(out[i])).size if width is None else min(width(x), out.shape[1])):
                gradient = mx.grad(lambda x, i=i, c=c: mx.reshape(number(forward(x)[i]), (-1,))[c])(at(x))
                found |= {(i, j) for j in range(i + 1, len(x)) if mx.abs(gradient[j]).max().item() > threshold}
        return sorted(found)

    return leaks


def without_in_layers_that_end_alike(layer, head):
    def watch(name, value):
        if name.endswith(f"{layer}.self_attn.mixed"):
            return value * (mx.arange(value.shape[1]) != head)[None, :, None, None]
        return value

    return watch


def without_for_four_heads(layer, head):
    def watch(name, value):
        if name == f"layers.{layer}.self_attn.mixed":
            return value * mx.array([float(h != head) for h in range(4)])[None, :, None, None]
        return value

    return watch


def without_once(layer, head):
    left = [f"layers.{layer}.self_attn.mixed"]

    def watch(name, value):
        if name in left:
            left.clear()
            return value * (mx.arange(value.shape[1]) != head)[None, :, None, None]
        return value

    return watch


def without_returning(layer, head):
    def watch(name, value):
        if name == f"layers.{layer}.self_attn.mixed":
            return value * (mx.arange(value.shape[1]) != head)[None, :, None, None]

    return watch


def without_in_place(layer, head):
    def watch(name, value):
        if name == f"layers.{layer}.self_attn.mixed":
            value[:, head] = 0
        return value

    return watch


@pytest.mark.parametrize(
    ("id", "answer", "told"),
    [
        ("11.1", (4.0, 1 / 3, 7.0, 0.0), "The 5 has the same key".lower()),
        ("11.1", (12, 1, 12, 0), "Those are sums"),
        ("11.1", (4, 0.333, 6, 0), "one of them rounded"),
        ("11.2", lambda q, k: q @ k.swapaxes(-1, -2) / q.shape[-2] ** 0.5, "square root of the number of queries"),
        ("11.2", scores_into_the_queries, "also new numbers in what it was given"),
        ("11.2", lambda q, k: q @ k.swapaxes(-1, -2) / k.shape[-2] ** 0.5, "square root of the number of keys"),
        ("11.3", causal_of_numbers, "should be booleans"),
        ("11.3", lambda q, k, o: mx.arange(k) < mx.arange(q)[:, None] + o, "may look at itself"),
        ("11.3", lambda q, k, o: mx.arange(k) > mx.arange(q)[:, None] + o, "true means that a query may *not* look"),
        ("11.3", lambda q, k, o: mx.tri(q, k, k - q).astype(mx.bool_), "The last query was aligned with the last key"),
        ("11.4", softmax_times_the_mask, "Mask first, then apply softmax"),
        ("11.4", softmax_nan, "minus infinity minus minus infinity"),
        ("11.4", softmax_powers_times_the_mask, "Subtract the largest score of each row first"),
        ("11.4", lambda scores, mask: mx.softmax(mx.where(mask, scores, -1e3), axis=-1), "not low enough"),
        ("11.4", softmax_shifted_by_the_hidden, "the weights of the row sum to 0"),
        ("11.4", softmax_of_all_divided_again, "0 / 0 is nan: take the largest"),
        ("11.4", softmax_shifted_together, "one largest score from all rows"),
        ("11.5", visible_of_queries, "the padded positions are keys"),
        ("11.5", visible_to_tokens_alone, "The rows of padding are hidden too"),
        ("11.5", visible_without_room, "raised ValueError"),
        ("11.6", heads_reshaped, "reshape alone gives head 0 the numbers of other tokens"),
        ("11.7", grouped_repeated, "every query head got its own copy"),
        ("11.7", grouped_repeated_in_numpy, "every query head got its own copy"),
        ("11.7", grouped_tiled, "the way cards are dealt"),
        ("11.7", grouped_masked_after, "You masked after softmax"),
        ("11.7", grouped_behind_the_first_mask, "the mask of the first"),
        ("11.7", grouped_nan, "A query that may see nothing got nan"),
        ("11.8", attention_with(both=False), "The keys are not normalized"),
        ("11.8", attention_with(each_other=True), "each other's norm weight"),
        ("11.8", attention_with(over_all=True), "Split first"),
        ("11.8", attention_divided_twice, "divided by sqrt(D) twice"),
        ("11.8", attention_with(theta=1e6), "use `config.rope_theta`"),
        ("11.8", attention_with(eps=1e-6), "use `config.rms_norm_eps`"),
        ("11.8", attention_with(turned="k"), "Only the keys were rotated"),
        ("11.8", lambda *given: attention_with()(*given) + given[3], "x was added at the end"),
        ("11.8", attention_from_the_wrong_side, "a projection is `x @ weight.T`."),
        ("11.8", attention_without_qk_norm, "part 1 is"),
        ("11.8", attention_rope_first, "apply the norm first"),
        ("11.8", attention_in_numpy, "the gradient is cut off"),
        ("11.8", attention_of_the_first_layer, "raised KeyError"),
        ("11.9", leaks_by_a_small_change, "expected [(0, 1)"),
        ("11.9", leaks_of_a_sum, "The sum of a row can stay the same"),
        ("11.9", leaks_where(lambda row: mx.abs(row).sum()), "two shares of a whole"),
        ("11.9", leaks_where(lambda row: row.max()), "only at the largest number"),
        ("11.9", leaks_where(lambda row: row[-1]), "only at the last number"),
        ("11.9", leaks_where(width=lambda x: x.shape[1]), "which may be more than the C numbers of a token"),
        ("11.9", leaks_where(threshold=1e-12), "Even the lowest threshold"),
        ("11.9", leaks_where(at=mx.ones_like), "expected [(0, 1)"),
        ("11.10", without_in_layers_that_end_alike, "also removed from layer 11"),
        ("11.10", without_for_four_heads, "raised ValueError"),
        ("11.10", without_once, "a different result in the second forward pass"),
        ("11.10", without_returning, "the watch returned None for 'embedding'"),
        ("11.10", without_in_place, "writes into the value it is given"),
        ("11.3", lambda q, k, o: [[int(j <= i + o) for j in range(k)] for i in range(q)], "should be booleans"),
        ("11.7", remembered_by_shapes(chapter.grouped_attention), "elements wrong"),
        ("11.9", lambda forward, x: chapter.leaks(forward, mx.full(x.shape, 0.5)), "`leaks(third_of_four"),
    ],
)
def test_wrong_answers_get_their_messages(id, answer, told):
    note = check(id, answer)
    assert not note.passed
    assert told in note.text, note


# -- what the prose says -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_token_that_sees_only_itself_knows_nothing_whatever_the_weights(seed):
    """900 sums, one answer: a token that looks at no other token knows only itself."""
    config = Qwen3Config(13, 16, 24, 2, 4, 2, 8)
    params = init_params(config, seed=seed, scale=0.5)
    ids = np.random.default_rng(seed).integers(0, 13, (9, 6))
    ids[:, -1] = 5

    def alone(name, value):
        return mx.zeros_like(value) + mx.eye(value.shape[-1]) if name.endswith("weights") else value

    logits = np.array(qwen3_forward(config, params, mx.array(ids), watch=alone))[:, -1]
    assert np.abs(logits - logits[0]).max() < 1e-4
    logits = np.array(qwen3_forward(config, params, mx.array(ids)))[:, -1]
    assert np.abs(logits - logits[0]).max() > 0.01


def test_a_head_looks_three_positions_back_and_not_at_the_same_digit():
    """Two digits plus one digit: three positions before the last token is the tens digit."""
    config, params = load_pretrained(TINY)
    tokenizer, record = load_tokenizer(TINY), {}
    ids = [tokenizer.encode(f"{a}+{b}=") for a in range(10, 90) for b in range(2, 10)]
    qwen3_forward(config, params, mx.array(ids), watch=record.setdefault)
    weights = np.array(record["layers.0.self_attn.weights"])[:, 3, 3]
    assert (weights.argmax(-1) == 0).all()
    assert weights[:, 0].mean() > 0.8 > 0.1 > weights[:, 1].max()


@pytest.mark.parametrize("seed", range(3))
def test_the_variance_of_a_product_is_its_length_and_a_saturated_softmax_passes_no_gradient(seed):
    rng = np.random.default_rng(seed)
    for size in (16, 256, 1024):
        products = torch.tensor(np.einsum("nd,nsd->ns", rng.normal(size=(400, size)), rng.normal(size=(400, 8, size))))
        assert products.var() / size == pytest.approx(1, abs=0.2)
        slopes = [(weights * (1 - weights)).mean() for weights in
                  (each.softmax(-1).max(-1).values for each in (products, products / size**0.5))]  # fmt: skip
        assert slopes[1] > 0.15
    assert slopes[0] < 0.05  # at 1024


def test_a_norm_bounds_the_scores():
    """A score is at most sqrt(D) times the largest weights of the two norms, however large the projections are."""
    config, params = load_pretrained(TINY)
    ids = mx.array(np.random.default_rng(0).integers(2, 60, (20, 24)))
    for factor in (1.0, 1000.0):
        larger = {n: v * factor if n.endswith(("q_proj.weight", "k_proj.weight")) else v for n, v in params.items()}
        record = {}
        qwen3_forward(config, larger, ids, watch=record.setdefault)
        for layer in range(config.num_hidden_layers):
            at = f"layers.{layer}.self_attn."
            limit = config.head_dim**0.5
            for name in ("q_norm", "k_norm"):
                limit *= np.abs(np.array(params[f"{at}{name}.weight"])).max()
            scores = np.array(record[f"{at}scores"])
            assert np.abs(scores[scores > -1e8]).max() < limit
