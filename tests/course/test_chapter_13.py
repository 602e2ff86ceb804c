"""Chapter 13 against transformers and mlx-lm, answers in other styles, and the claims of its prose."""

import copy
import itertools
import math
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.chapters.chapter_13 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_13.draws import DRAWS, Drawn, draw_often
from mlx_grpo_kit.grpo import per_token_logps
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params, load_pretrained, load_tokenizer, qwen3_forward, save_pretrained
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "13_generation.ipynb"
OTHER = Qwen3Config(
    vocab_size=29,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
    rope_theta=500.0,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)


def cells_of_the_notebook(*ids, **space):
    """The names that some cells of the notebook make."""
    sources = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells}
    space["__name__"] = "notebook"
    for id in ids:
        exec(sources[f"13-{id}"], space)
    return space


def own_model(config, params):
    """The forward pass that the notebook assembles from the solutions, for a model of any shape."""
    space = cells_of_the_notebook("setup", "whole")
    space |= {"config": config, "params": params}
    return space["forward"]


def other_model():
    params = init_params(OTHER, seed=3)
    for place, (name, value) in enumerate(params.items()):  # norms of 1 would hide a missing norm
        params[name] = value * (1 + 0.3 * mx.random.normal(value.shape, key=mx.random.key(place)))
    return OTHER, params


@pytest.fixture(params=["tiny", "other"])
def model(request):
    return load_pretrained(TINY) if request.param == "tiny" else other_model()


def prompts_for(config, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(2, min(config.vocab_size, 20), length).tolist() for length in (3, 7, 5, 7, 1)]


def test_logits_in_pieces_and_at_once_equal_those_of_transformers(model, tmp_path):
    transformers = pytest.importorskip("transformers")
    config, params = model
    save_pretrained(tmp_path / "model", config, params)
    theirs = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager")
    forward, ids = own_model(config, params), np.random.default_rng(1).integers(2, 20, (2, 9))
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()
    for chunks in ([9], [4, 1, 1, 1, 1, 1], [2, 7], [1] * 9):
        cache = chapter.Cache(config.num_hidden_layers)
        parts = [forward(mx.array(part), cache) for part in np.split(ids, np.cumsum(chunks)[:-1], axis=1)]
        got = np.concatenate([np.array(part) for part in parts], axis=1)
        assert np.abs(got - expected).max() < 1e-5 * max(1, np.abs(expected).max())


def test_greedy_completions_of_a_padded_batch_are_those_of_transformers(model, tmp_path):
    transformers = pytest.importorskip("transformers")
    config, params = model
    save_pretrained(tmp_path / "model", config, params)
    theirs = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path / "model")
    forward, prompts = own_model(config, params), prompts_for(config)
    got = chapter.generate(
        *(forward, chapter.Cache(config.num_hidden_layers), prompts, 8, {1}),
        lambda logits, row, step: int(mx.argmax(logits)),
    )
    for prompt, completion in zip(prompts, got, strict=True):
        out = theirs.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=1, pad_token_id=0)
        assert completion == out[0, len(prompt) :].tolist()
        alone = chapter.greedy(lambda tokens: qwen3_forward(config, params, mx.array([tokens]))[0, -1], prompt, 8, {1})
        assert completion == alone


def test_a_group_that_read_its_prompt_once(model):
    config, params = model
    forward, prompt = own_model(config, params), mx.array([[5, 2, 9, 4]])
    once = chapter.Cache(config.num_hidden_layers)
    forward(prompt, once)
    group = once.repeat(3)
    new = mx.array([[3], [7], [11]])
    whole = qwen3_forward(config, params, mx.concatenate([mx.repeat(prompt, 3, axis=0), new], axis=1))[:, -1]
    np.testing.assert_allclose(np.array(forward(new, group)[:, 0]), np.array(whole), atol=2e-5, rtol=1e-5)
    assert (once.length, group.length) == (4, 5)


# -- draws ------------------------------------------------------------------------------------------------------------


def categorical(logits, temperature, key):
    return mx.random.categorical(logits / temperature, key=key)


def gumbel(logits, temperature, key):
    return int(mx.argmax(logits / temperature - mx.log(-mx.log(mx.random.uniform(shape=logits.shape, key=key)))))


def numpy_choice(logits, temperature, key):
    powers = np.exp(np.array(logits, dtype=float) / temperature)
    return np.random.default_rng(np.array(key)).choice(len(powers), p=powers / powers.sum())


def subtracting(logits, temperature, key):
    left = mx.random.uniform(key=key).item()
    probs = mx.softmax(logits / temperature).tolist()
    for token, share in enumerate(probs):
        left -= share
        if left < 0:
            return token
    return max(range(len(probs)), key=probs.__getitem__)


def exponential_race(logits, temperature, key):
    """The token whose exponential clock rings first; the rates are the probabilities."""
    waits = -mx.log(mx.random.uniform(shape=logits.shape, key=key))
    return int(mx.argmin(waits / mx.softmax(logits / temperature)))


@pytest.mark.parametrize("answer", [categorical, gumbel, numpy_choice, subtracting, exponential_race])
def test_any_right_way_of_drawing_passes(answer):
    note = check("13.3", answer)
    assert note.passed, note


@pytest.mark.parametrize("seed", range(8))
def test_a_right_draw_is_right_whatever_the_seed(seed):
    rng = np.random.default_rng(seed)
    logits = mx.array(rng.normal(size=int(rng.integers(2, 12))).astype(np.float32) * 2)
    for temperature in (0.5, 1.0, 3.0):
        assert isinstance(draw_often(chapter.draw, logits, temperature, seed), str)


def slightly_cold(logits, temperature, key):
    return chapter.draw(logits, 0.7 * temperature, key)


def second_best_sometimes(logits, temperature, key):
    order = mx.argsort(-logits)
    return int(order[1 if mx.random.uniform(key=key).item() < 0.3 and len(order) > 1 else 0])


def from_the_first_key(logits, temperature, key):
    return chapter.draw(logits, temperature, mx.random.key(0))


@pytest.mark.parametrize("answer", [slightly_cold, second_best_sometimes, from_the_first_key])
def test_draws_with_other_shares_fail(answer):
    assert not check("13.3", answer).passed


def numpy_with_a_constant_seed(logits, temperature, key):
    probs = np.array(mx.softmax(logits / temperature), dtype=float)
    return np.random.default_rng(0).choice(len(probs), p=probs / probs.sum())


def gumbel_with_a_constant_key(logits, temperature, key):
    return gumbel(logits, temperature, mx.random.key(42))


@pytest.mark.parametrize("answer", [numpy_with_a_constant_seed, gumbel_with_a_constant_key, from_the_first_key])
def test_a_constant_seed_is_not_taken_for_the_likeliest_token(answer):
    note = check("13.3", answer)
    assert "A generator with a constant seed" in note.text
    assert "the likeliest token" not in note.text


def test_the_likeliest_token_and_a_constant_one_are_not_taken_for_a_constant_seed():
    note = check("13.3", lambda logits, temperature, key: int(mx.argmax(logits)))
    assert "That is always the likeliest token" in note.text
    for number in (0, 1):
        assert "constant seed" not in check("13.3", lambda logits, temperature, key, number=number: number).text


def top_p_that_stops_before_the_crossing(strict, keeps_first, all_at_1):
    def answer(logprobs, top_p):
        logprobs = np.array(logprobs)
        kept = np.full_like(logprobs, -np.inf)
        for row in np.ndindex(logprobs.shape[:-1]):
            probs, total = np.array(mx.softmax(mx.array(logprobs[row]))), np.float32(0)
            for place, token in enumerate(np.argsort(-probs)):
                total += probs[token]
                is_first = keeps_first and place == 0
                if is_first or (all_at_1 and top_p >= 1) or (total < top_p if strict else total <= top_p):
                    kept[row][token] = logprobs[row][token]
        return mx.array(kept)

    return answer


@pytest.mark.parametrize("all_at_1", [True, False])
@pytest.mark.parametrize("keeps_first", [True, False])
@pytest.mark.parametrize("strict", [True, False])
def test_a_top_p_without_the_token_that_crosses_is_named(strict, keeps_first, all_at_1):
    note = check("13.5", top_p_that_stops_before_the_crossing(strict, keeps_first, all_at_1))
    assert "the one that crosses the threshold, stays too" in note.text


def test_draws_that_cannot_be_repeated_or_are_not_tokens_get_a_message():
    note = check("13.3", lambda logits, temperature, key: categorical(logits, temperature, None))
    assert "another token for the same key" in note.text
    assert "token ids go from 0 to 7" in check("13.3", lambda logits, temperature, key: 8).text
    assert "a token id is a whole number" in check("13.3", lambda logits, temperature, key: "a").text


def test_two_sets_of_draws_are_equal_where_one_distribution_may_have_given_both():
    rng = np.random.default_rng(0)
    one, two, other = (Drawn(rng.multinomial(DRAWS, p)) for p in ([0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [0.3, 0.6, 0.1]))
    assert one == two
    assert one != other
    assert one != Drawn(np.array([DRAWS, 0]))


# -- other answers ----------------------------------------------------------------------------------------------------


def greedy_backwards(next_logits, prompt, max_new_tokens, ends):
    new = []
    while len(new) < max_new_tokens and (not new or new[-1] not in ends):
        logits = np.array(next_logits([*prompt, *new]))
        new.append(np.argmax(logits))
    return new


def top_k_with_loops(logprobs, top_k):
    rows = np.array(logprobs).reshape(-1, logprobs.shape[-1])
    out = np.full_like(rows, -np.inf)
    for row, kept in zip(rows, out, strict=True):
        for token in sorted(range(len(row)), key=lambda token: row[token])[-top_k:]:
            kept[token] = row[token]
    return out.reshape(logprobs.shape)


def top_p_with_loops(logprobs, top_p):
    rows = np.array(logprobs, dtype=np.float64).reshape(-1, logprobs.shape[-1])
    out = np.full_like(rows, -np.inf)
    for row, kept in zip(rows, out, strict=True):
        probs = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        total = 0.0
        for token in np.argsort(-probs, kind="stable"):
            if total < top_p or top_p == 1:
                kept[token] = row[token]
            total += probs[token]
    return out.reshape(logprobs.shape).tolist()


def min_p_of_probabilities(logprobs, min_p):
    probs = mx.softmax(logprobs, axis=-1)
    return mx.where(probs < min_p * probs.max(axis=-1, keepdims=True) * (1 - 1e-6), float("-inf"), logprobs)


def logps_of_torch(logits, token_ids, temperature):
    spread = torch.distributions.Categorical(logits=torch.tensor(np.array(logits)) / temperature)
    logps = spread.log_prob(torch.tensor(np.array(token_ids)).long())
    probs = spread.probs
    return [logps.numpy(), -torch.where(probs > 0, probs * probs.log(), 0.0).sum(-1).numpy()]


def pad_with_numpy(prompts):
    ids, mask = np.zeros((2, len(prompts), max(map(len, prompts))), int)
    for row, prompt in enumerate(prompts):
        ids[row, ids.shape[1] - len(prompt) :] = prompt
        mask[row, ids.shape[1] - len(prompt) :] = 1
    return ids, mask.astype(bool)


class CacheOfLists:
    """A cache that keeps pieces and joins them on request."""

    def __init__(self, num_layers):
        self.pieces, self.length = [[] for _ in range(num_layers)], mx.array(0)

    def append(self, layer, keys, values):
        self.pieces[layer].append((keys, values))
        return [mx.concatenate(each, axis=2) for each in zip(*self.pieces[layer], strict=True)]

    def advance(self, num_tokens):
        self.length = self.length + num_tokens

    def repeat(self, times):
        other = CacheOfLists(len(self.pieces))
        rows = [row for row in range(self.pieces[0][0][0].shape[0]) for _ in range(times)]
        other.pieces = [[(k[mx.array(rows)], v[mx.array(rows)]) for k, v in each] for each in self.pieces]
        other.length = self.length
        return other


def attend_written_out(queries, keys, values, cache, layer, theta, attention_mask=None):
    fast = {"traditional": False, "base": theta, "scale": 1.0, "offset": cache.length}
    queries, keys = (mx.fast.rope(each, each.shape[-1], **fast) for each in (queries, keys))
    keys, values = cache.append(layer, keys, values)
    here = mx.arange(queries.shape[2]) + cache.length
    mask = mx.arange(keys.shape[2])[None] <= here[:, None]
    if attention_mask is not None:
        real = np.ones((len(attention_mask), keys.shape[2]), bool)
        real[:, : attention_mask.shape[1]] = np.array(attention_mask)
        mask = mask & mx.array(real)[:, None, None]
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=queries.shape[-1] ** -0.5, mask=mask)


def generate_column_by_column(forward, cache, prompts, max_new_tokens, ends, choose):
    ids, mask = pad_with_numpy(prompts)
    columns, logits = [], forward(mx.array(ids), cache, mx.array(mask))
    while True:
        columns.append([choose(row[-1], number, len(columns)) for number, row in enumerate(logits)])
        rows = list(zip(*columns, strict=True))
        if len(columns) == max_new_tokens or all(set(row) & set(ends) for row in rows):
            break
        logits = forward(mx.array(columns[-1]).reshape(-1, 1), cache, mx.array(mask))
    cut = [next((place + 1 for place, token in enumerate(row) if token in ends), len(row)) for row in rows]
    return [list(row[:length]) for row, length in zip(rows, cut, strict=True)]


@pytest.mark.parametrize(
    ("id", "answer"),
    [
        ("13.1", greedy_backwards),
        ("13.2", lambda logits, temperature: mx.softmax(logits / temperature, axis=-1)),
        ("13.2", lambda logits, temperature: torch.softmax(torch.tensor(np.array(logits)) / temperature, -1)),
        ("13.4", top_k_with_loops),
        ("13.5", top_p_with_loops),
        ("13.6", min_p_of_probabilities),
        ("13.7", logps_of_torch),
        ("13.7", lambda *given: mx.stack(chapter.logps_and_entropy(*given))),
        ("13.8", CacheOfLists),
        ("13.9", attend_written_out),
        ("13.10", pad_with_numpy),
        ("13.11", generate_column_by_column),
    ],
)
def test_right_answers_in_other_styles_pass(id, answer):
    note = check(id, answer)
    assert note.passed, note


def until_it_repeats_itself(next_logits, prompt, max_new_tokens, ends):
    tokens = chapter.greedy(next_logits, prompt, max_new_tokens, ends)
    same = (place for place in range(1, len(tokens)) if tokens[place] == tokens[place - 1])
    return tokens[: next(same, len(tokens)) + 1]


class CacheThatSharesItsLists(chapter.Cache):
    def repeat(self, times):
        other = copy.copy(self)
        for layer, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            other.keys[layer], other.values[layer] = (mx.repeat(each, times, axis=0) for each in (keys, values))
        return other


def with_a_batch_of_one(forward, cache, prompts, max_new_tokens, ends, choose):
    def one_row(logits, row, step):
        return choose(logits[None], row, step)

    return generate_column_by_column(forward, cache, prompts, max_new_tokens, ends, one_row)


def whole_numbers_only(logits, temperature):
    return mx.softmax((logits / temperature).astype(mx.int32).astype(mx.float32), axis=-1)


def top_p_without_the_likeliest(logprobs, top_p):
    kept = chapter.apply_top_p(logprobs, top_p)
    return mx.where(mx.softmax(logprobs, axis=-1) > top_p, -mx.inf, kept)


def written_over(logprobs, top_k):
    kept = chapter.apply_top_k(logprobs, top_k)
    logprobs[...] = kept
    return kept


def a_cache_in_the_class():
    store = {}

    class Shared(chapter.Cache):
        def append(self, layer, keys, values):
            before = store.get(layer)
            if before is not None:
                keys, values = (mx.concatenate(pair, axis=2) for pair in zip(before, (keys, values), strict=True))
            store[layer] = keys, values
            return keys, values

    return Shared


def one_key_a_step(forward, cache, prompts, max_new_tokens, ends, choose):
    def choose_for_row_0(logits, row, step):
        return choose(logits, 0, step)

    return chapter.generate(forward, cache, prompts, max_new_tokens, ends, choose_for_row_0)


def asks_to_the_limit(next_logits, prompt, max_new_tokens, ends):
    tokens = chapter.greedy(next_logits, prompt, max_new_tokens, set())
    stops = [place for place, token in enumerate(tokens) if token in ends]
    return tokens[: stops[0] + 1] if stops else tokens


def at_least_one(next_logits, prompt, max_new_tokens, ends):
    return chapter.greedy(next_logits, prompt, max(1, max_new_tokens), ends)


def powers_of_probabilities(logits, temperature):
    powers = mx.softmax(logits, axis=-1) ** (1 / temperature)
    return powers / powers.sum(axis=-1, keepdims=True)


def half_a_key(place):
    def draw(logits, temperature, key):
        half = mx.array([0, int(key[place])] if place else [int(key[place]), 0], mx.uint32)
        return chapter.draw(logits, temperature, half)

    return draw


def remembered_by_key():
    seen = {}

    def draw(logits, temperature, key):
        return seen.setdefault(tuple(key.tolist()), chapter.draw(logits, temperature, key))

    return draw


def min_p_of_powers(logprobs, min_p):
    powers = mx.exp(logprobs)
    return mx.where(powers >= min_p * powers.max(axis=-1, keepdims=True), logprobs, -mx.inf)


def log_of_softmax(logits, token_ids, temperature, eps=0.0):
    probs = mx.softmax(logits / temperature, axis=-1)
    logps = mx.log(probs + eps)
    picked = mx.take_along_axis(logps, token_ids[..., None], axis=-1)[..., 0]
    return picked, -mx.where(probs > 0, probs * logps, 0).sum(axis=-1)


def top_p_unsorted(logprobs, top_p):
    probs = mx.softmax(logprobs, axis=-1)
    return mx.where((mx.cumsum(probs, axis=-1) - probs < top_p) | mx.array(top_p >= 1), logprobs, -mx.inf)


class Forgetful(chapter.Cache):
    def advance(self, num_tokens):
        self.length += num_tokens

    def repeat(self, times): ...


class MovesItself(chapter.Cache):
    def append(self, layer, keys, values):
        self.length += keys.shape[2]
        return super().append(layer, keys, values)


def attend_and_advance(queries, keys, values, cache, *others):
    answer = chapter.attend(queries, keys, values, cache, *others)
    cache.advance(queries.shape[2])
    return answer


def small_ids(prompts):
    ids, mask = chapter.left_pad(prompts)
    return ids.astype(mx.uint8), mask


def generate_with(**changed):
    """The solution with changed inputs or outputs of `forward`."""

    def generate(forward, cache, prompts, max_new_tokens, ends, choose):
        rounds = itertools.count()

        def other(ids, cache, mask):
            first = next(rounds) == 0
            if first and "pad" in changed:
                ids, mask = changed["pad"](prompts)
                other.mask = mask
            return forward(
                ids, cache, changed["mask"](mask, first) if "mask" in changed else getattr(other, "mask", mask)
            )

        rows = chapter.generate(other, cache, prompts, max_new_tokens, ends, choose)
        return changed["rows"](rows) if "rows" in changed else rows

    return generate


@pytest.mark.parametrize(
    ("id", "answer", "words"),
    [
        ("13.1", asks_to_the_limit, "what follows an end token is never used"),
        ("13.1", at_least_one, "0, {0})` gave [5], expected []"),
        ("13.1", lambda *arguments: list(map(float, chapter.greedy(*arguments))), "token ids are whole numbers"),
        (
            "13.2",
            lambda logits, t: (
                mx.exp(logits / t - (logits / t).max())
                / mx.exp(logits / t - (logits / t).max()).sum(axis=-1, keepdims=True)
            ),
            "the largest number of *all* rows",
        ),
        ("13.2", powers_of_probabilities, "stays 0 at every temperature"),
        ("13.3", half_a_key(0), "one token for all keys that differ in their second number"),
        ("13.3", half_a_key(1), "one token for all keys that differ in their first number"),
        ("13.3", remembered_by_key(), "where token ids go from 0 to 3"),
        ("13.5", top_p_unsorted, "Begin with the likeliest"),
        ("13.5", lambda x, p: mx.log(mx.softmax(chapter.apply_top_p(x, p), axis=-1)), "should keep their numbers"),
        ("13.6", min_p_of_powers, "Stay with the logarithms"),
        ("13.7", log_of_softmax, "The logits are logarithms already"),
        ("13.7", lambda *arguments: log_of_softmax(*arguments, eps=1e-6), "expected array([-150])"),
        ("13.8", Forgetful, "`repeat` returned None"),
        ("13.8", MovesItself, "1 layer, 1 row, pieces of 1, then repeated 2 times)` gave for `length` after `append`"),
        ("13.9", attend_and_advance, "a cache whose `length` changed"),
        ("13.10", small_ids, "expected array([[151643, 7], [0, 300]])"),
        ("13.11", generate_with(mask=lambda mask, first: mask if first else None), "in every round"),
        ("13.11", generate_with(pad=chapter._right_pad), "padded on the right"),
        ("13.11", generate_with(rows=lambda rows: [list(map(float, row)) for row in rows]), "whole numbers"),
        ("13.1", lambda f, prompt, n, ends: chapter.greedy(f, prompt, n, set()), "continues after the end token"),
        ("13.1", lambda f, prompt, n, ends: chapter.greedy(f, prompt[-1:], n, ends), "gave"),
        ("13.2", whole_numbers_only, "expected array([0.455054"),
        ("13.2", lambda logits, t: mx.softmax(logits / t, axis=0), "gave"),
        ("13.4", written_over, "new numbers in what it was given"),
        ("13.4", lambda logprobs, k: mx.where(logprobs > mx.sort(logprobs, axis=-1)[..., -k], logprobs, -mx.inf), ""),
        ("13.5", top_p_without_the_likeliest, "gave"),
        ("13.5", lambda logprobs, p: chapter.apply_top_p(logprobs, min(1, p + 0.1)), "gave"),
        ("13.6", lambda logprobs, p: chapter.apply_min_p(logprobs, p / 2), "gave"),
        ("13.7", lambda logits, ids, t: chapter.logps_and_entropy(logits, ids, 1.0), "softmax(logits / temperature)"),
        ("13.8", a_cache_in_the_class(), ""),
        ("13.9", lambda *arguments: chapter.attend(*arguments[:6]), "look at their padding"),
        ("13.10", lambda prompts: chapter.left_pad([prompt[::-1] for prompt in prompts]), "backwards"),
        ("13.11", one_key_a_step, "the number of the row"),
        ("13.1", until_it_repeats_itself, "gave [0, 0], expected [0, 0, 0]"),
        ("13.8", CacheThatSharesItsLists, "The two caches share their lists"),
        ("13.11", with_a_batch_of_one, "It takes one row's logits, [V]"),
        ("13.11", lambda *given: generate_column_by_column(*given[:4], set(list(given[4])[:1]), given[5]), "expected"),
    ],
)
def test_wrong_answers_get_their_messages(id, answer, words):
    note = check(id, answer)
    assert not note.passed
    assert words in note.text


# -- what the chapter says --------------------------------------------------------------------------------------------


def test_the_table_of_temperatures():
    source = "\n".join(cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells)
    for row, logit in enumerate((2, 1, 0, -1)):
        shares = [np.array(chapter.tempered(chapter.FOUR, t))[row] for t in (0.5, 1.0, 2.0)]
        assert f"| {logit} | " + " | ".join(f"{100 * share:.1f}%" for share in shares) + " |" in source


def kept(logits):
    return [token for token, logit in enumerate(logits.tolist()) if logit > -math.inf]


def test_three_libraries_keep_different_tokens():
    """The chapter's example with the libraries' own filters."""
    probs = np.array([0.5, 0.2, 0.15, 0.1, 0.05], np.float32)
    logits = mx.log(mx.array(probs))
    ours = chapter.apply_top_p(chapter.apply_top_k(logits, 3), 0.75)
    assert kept(ours) == [0, 1]

    sample_utils = pytest.importorskip("mlx_lm.sample_utils")
    row = logits[None]
    theirs = sample_utils.apply_top_k(sample_utils.apply_top_p(row, 0.75), 3)
    assert kept(theirs[0]) == [0, 1, 2]

    transformers = pytest.importorskip("transformers")
    scores = torch.tensor(np.log(probs))[None]
    for each in (
        transformers.TemperatureLogitsWarper(0.5),
        transformers.TopKLogitsWarper(3),
        transformers.TopPLogitsWarper(0.75),
    ):
        scores = each(None, scores)
    assert kept(scores[0]) == [0]


def test_with_one_filter_and_temperature_1_the_libraries_agree():
    transformers = pytest.importorskip("transformers")
    sample_utils = pytest.importorskip("mlx_lm.sample_utils")
    logprobs = np.log(np.random.default_rng(4).dirichlet(np.ones(12), 5)).astype(np.float32)
    for ours, warper, theirs, value in (
        (chapter.apply_top_k, transformers.TopKLogitsWarper, sample_utils.apply_top_k, 4),
        (chapter.apply_top_p, transformers.TopPLogitsWarper, sample_utils.apply_top_p, 0.7),
        (chapter.apply_min_p, transformers.MinPLogitsWarper, sample_utils.apply_min_p, 0.3),
    ):
        got = np.isfinite(np.array(ours(mx.array(logprobs), value)))
        np.testing.assert_array_equal(got, np.isfinite(warper(value)(None, torch.tensor(logprobs)).numpy()))
        np.testing.assert_array_equal(got, np.isfinite(np.array(theirs(mx.array(logprobs), value))))


def test_the_tokens_that_the_filters_keep_of_the_shipped_model():
    config, params = load_pretrained(TINY)
    tokenizer = load_tokenizer(TINY)

    def logits_after(text):
        return qwen3_forward(config, params, mx.array([tokenizer.encode(text)]))[0, -1]

    counts = [len(kept(chapter.apply_min_p(logits_after(text), 0.1))) for text in ("27+38=", "12+34=4", "8+")]
    assert counts == [2, 2, 6]
    best = [set(tokenizer.decode(kept(chapter.apply_top_k(logits_after(text), 2)))) for text in ("27+38=", "12+34=4")]
    assert best == [{"5", "6"}, {"6", "7"}]


def test_the_numbers_worked_out_by_hand():
    assert round(0.98**40, 2) == 0.45
    assert round(math.log(64), 2) == 4.16
    squares = np.array([0.5, 0.2, 0.15, 0.1, 0.05]) ** 2
    assert (squares[0] / squares.sum()).round(2) == 0.77
    assert (squares[0] / squares[:3].sum()).round(2) == 0.80
    for prompt, new in itertools.product((1, 4, 9), (1, 4, 30)):
        without = sum(prompt + step for step in range(new))
        assert without == new * (prompt + (prompt + new - 1)) / 2
    from mlx_grpo_kit.qwen3.cache import kv_cache_bytes_per_position

    assert kv_cache_bytes_per_position(load_pretrained(TINY)[0]) == 1024
    size = kv_cache_bytes_per_position(Qwen3Config.from_name("0.6B"))
    assert size == 224 * 1024
    assert size * 8 * 1024 / 2**30 == 1.75


def test_the_temperature_at_which_sampling_beats_greedy_decoding():
    """The shipped model forgets carries; the shares are of the 256 sums of the chapter's exam."""
    config, params = load_pretrained(TINY)
    tokenizer = load_tokenizer(TINY)
    exam = Addition().held_out(256)
    questions = [tokenizer.encode(each.prompt) for each in exam]
    right = [[*tokenizer.encode(each.answer), min(tokenizer.eos_token_ids)] for each in exam]
    carry = np.array([each.data["a"] % 10 + each.data["b"] % 10 > 9 for each in exam])
    assert (carry.sum(), (~carry).sum()) == (116, 140)
    nearly_greedy, drawn = (
        np.array(mx.exp((logps * mask).sum(axis=1)))
        for logps, mask in (per_token_logps(config, params, questions, right, each) for each in (0.02, 0.4))
    )
    assert (nearly_greedy > 0.5)[carry].sum() == 0
    assert (nearly_greedy > 0.5)[~carry].all()
    assert (round(drawn[carry].mean(), 2), round(drawn[~carry].mean(), 2)) == (0.17, 0.97)
    text = "\n".join(cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells)
    for claim in ("116 of the 256 sums", "(0% right)", "(17% at T = 0.4)", "In the other 140 sums", "from 100% to 97%"):
        assert claim in text


def test_the_parts_of_earlier_chapters_are_the_ones_the_notebook_names():
    names = {"10.4": "rms_norm", "10.5": "mlp", "10.8": "rope", "11.5": "visible", "11.7": "grouped_attention"}
    assert {id: find(id).solution.__name__ for id in names} == names


def test_the_effects_of_the_broken_caches():
    space = cells_of_the_notebook("setup", "steps", "greedy-use", "draw-use", "whole", "left", "own")
    sources = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells}
    exec(sources["13-break"].partition("with fold")[0], space)
    prompts, right = space["prompts"], space["theirs"].completions
    answers = {}
    for what, attend, cache in (
        ("offset", space["at_zero"], space["own_cache"]),
        ("advance", space["whole"], space["Stuck"]),
        ("mask", space["no_mask"], space["own_cache"]),
    ):
        space.update(attend=attend, Cache=cache)
        answers[what] = space["write"](prompts)
    changed = {what: [a != b for a, b in zip(each, right, strict=True)] for what, each in answers.items()}
    padded = [len(prompt) < max(map(len, prompts)) for prompt in prompts]
    assert sum(padded) == 18
    assert sum(changed["offset"]) > 50
    assert sum(changed["advance"]) > 50
    assert 0 < sum(changed["mask"]) < 18
    assert all(was_padded for was_padded, is_changed in zip(padded, changed["mask"], strict=True) if is_changed)
    for what in ("offset", "advance"):
        assert sum(answer[-1] == 1 for answer in answers[what]) < 32  # most completions no longer end
        assert [answer[0] for answer in answers[what]] == [answer[0] for answer in right]
