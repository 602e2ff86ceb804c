"""Batched generation: transformers' greedy tokens, and log-probabilities that are one, however they are computed."""

from functools import partial
from importlib import import_module

import numpy as np
import pytest
import torch
import transformers

from mlx_grpo_kit.assets import TINY_CHAT
from mlx_grpo_kit.generation import SamplingConfig, decoder, generate, generate_tokens, stop_at
from mlx_grpo_kit.generation.padding import fold_groups
from mlx_grpo_kit.grpo import per_token_logps
from mlx_grpo_kit.qwen3 import load_tokenizer
from mlx_grpo_kit.runtime import mx
from tests.generation.small_model import GROUPS, NOISE, PROMPTS, SHAPE, V, transformers_logps, transformers_tokens

MODULE = import_module("mlx_grpo_kit.generation.generate")  # the package has a function of this name


@pytest.fixture(scope="module")
def both(make_qwen3):
    return make_qwen3(NOISE, **SHAPE)


@pytest.fixture(scope="module")
def sampled(model):
    """80 tokens a row: the cache grows twice beyond the prompt, and unequal prompts are padded."""
    return generate(*model, GROUPS, sampling=SamplingConfig(max_new_tokens=80), seed=3)


def flat(rows) -> np.ndarray:
    return np.concatenate([np.asarray(row) for row in rows])


# Against transformers.


@pytest.mark.parametrize("lengths", ["unequal", "equal"])
def test_greedy_tokens_equal_transformers(reference, model, lengths):
    prompts = PROMPTS if lengths == "unequal" else [prompt[:1] * 4 for prompt in PROMPTS]
    arrays = [np.array(prompt) for prompt in prompts]
    rollout = generate(*model, arrays, sampling=SamplingConfig(max_new_tokens=50, temperature=0))
    assert rollout.completions == transformers_tokens(reference, prompts, 50)
    assert rollout.finished == [False] * 4


def test_greedy_tokens_stop_where_transformers_stops(reference, model):
    free = generate(*model, PROMPTS, sampling=SamplingConfig(max_new_tokens=30, temperature=0)).completions
    ends = [free[0][9], free[2][3]]
    rollout = generate(*model, PROMPTS, sampling=SamplingConfig(max_new_tokens=30, temperature=0), eos_token_ids=ends)
    for prompt, completion in zip(PROMPTS, rollout.completions, strict=True):
        theirs = reference.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=30, eos_token_id=ends,
                                    pad_token_id=0)  # fmt: skip
        assert completion == theirs[0, len(prompt) :].tolist()


@pytest.mark.parametrize("temperature", [0.7, 1.6])
def test_logps_equal_transformers(reference, model, temperature):
    sampling = SamplingConfig(max_new_tokens=40, temperature=temperature, top_k=9, top_p=0.9)
    rollout = generate(*model, PROMPTS, sampling=sampling, seed=1)
    for prompt, completion, logps in zip(PROMPTS, rollout.completions, rollout.logps, strict=True):
        theirs = transformers_logps(reference, prompt, completion, temperature)
        np.testing.assert_allclose(logps, theirs, atol=2e-5)


# One result, however it is computed.


def test_cached_logps_equal_teacher_forced(model, sampled):
    logps, mask = per_token_logps(*model, GROUPS, sampled.completions)
    np.testing.assert_allclose(flat(sampled.logps), np.array(logps)[np.array(mask)], atol=1e-5)
    assert len(flat(sampled.logps)) == 12 * 80


def test_a_prompt_read_once_for_its_group_equals_one_read_for_every_row(model, monkeypatch):
    sampling = SamplingConfig(max_new_tokens=40)
    grouped = generate(*model, GROUPS, sampling=sampling, seed=5)
    monkeypatch.setattr(MODULE, "fold_groups", lambda prompts: (list(prompts), 1))
    ungrouped = generate(*model, GROUPS, sampling=sampling, seed=5)
    assert grouped.completions == ungrouped.completions
    np.testing.assert_allclose(flat(grouped.logps), flat(ungrouped.logps), atol=1e-5)


@pytest.mark.parametrize(
    ("prompts", "folded"),
    [
        ("aaabbb", ("ab", 3)), ("aaaa", ("a", 4)), ("abc", ("abc", 1)), ("a", ("a", 1)), ("aabbaa", ("aba", 2)),
        ("aab", ("aab", 1)), ("abb", ("abb", 1)), ("aabbbb", ("aabbbb", 1)), ("aaabbc", ("aaabbc", 1)),
        ("aabbccc", ("aabbccc", 1)), ("aaaabb", ("aaaabb", 1)),
    ],
)  # fmt: skip
def test_only_runs_of_one_length_are_folded(prompts, folded):
    assert fold_groups([[ord(letter)] for letter in prompts]) == ([[ord(letter)] for letter in folded[0]], folded[1])


def test_frequencies_of_the_first_token_match_the_policy(reference, model):
    from scipy.stats import chisquare

    rollout = generate(*model, [PROMPTS[0]] * 4000, sampling=SamplingConfig(max_new_tokens=2), seed=11)
    with torch.no_grad():
        expected = torch.softmax(reference(torch.tensor([PROMPTS[0]])).logits[0, -1].double(), -1).numpy() * 4000
    for position in range(2):
        tokens = np.array([row[position] for row in rollout.completions])
        if position == 0:
            counts = np.bincount(tokens, minlength=V)
        else:  # the second token, after the likeliest first one
            first = int(counts.argmax())
            tokens = tokens[[row[0] == first for row in rollout.completions]]
            counts = np.bincount(tokens, minlength=V)
            with torch.no_grad():
                logits = reference(torch.tensor([[*PROMPTS[0], first]])).logits[0, -1]
            expected = torch.softmax(logits.double(), -1).numpy() * len(tokens)
        rare = expected < 5
        pooled = [np.append(x[~rare], x[rare].sum() + 1e-9) for x in (counts, expected)]
        assert chisquare(pooled[0], pooled[1] * pooled[0].sum() / pooled[1].sum()).pvalue > 0.001


def test_the_same_seed_gives_the_same_rollout(model, sampled):
    sampling = SamplingConfig(max_new_tokens=80)
    assert generate(*model, GROUPS, sampling=sampling, seed=3) == sampled
    assert generate(*model, GROUPS, sampling=sampling, seed=4).completions != sampled.completions
    mx.random.normal((5,))
    np.random.rand(3)  # the global states do not matter
    assert generate(*model, GROUPS, sampling=sampling, seed=3) == sampled


def test_parameters_changed_between_two_calls_are_used(model):
    """A compiled function that captured the first parameters would go on with them, as after every training step."""
    config, params = model
    sampling = SamplingConfig(max_new_tokens=20, temperature=0)
    first = generate(config, params, PROMPTS, sampling=sampling)
    changed = params | {"final_norm.weight": params["final_norm.weight"] * mx.array([1.0, -1.0] * 16)}
    second = generate(config, changed, PROMPTS, sampling=sampling)
    logps, mask = per_token_logps(config, changed, PROMPTS, second.completions)
    assert first.completions != second.completions
    np.testing.assert_allclose(flat(second.logps), np.array(logps)[np.array(mask)], atol=1e-5)


def test_another_thread_generates_the_same(model, sampled):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(generate, *model, GROUPS, sampling=SamplingConfig(max_new_tokens=80), seed=3).result()
    assert again.completions == sampled.completions
    np.testing.assert_allclose(flat(again.logps), flat(sampled.logps), atol=1e-6)


# Work.


@pytest.fixture
def traced(monkeypatch):
    """The cache's capacity at each decoding step that Python, not a compiled graph, ran."""
    capacities = []

    def counting(*args, cache, **kwargs):
        capacities.append(cache.capacity)
        return original(*args, cache=cache, **kwargs)

    original = decoder.qwen3_forward
    monkeypatch.setattr(decoder, "qwen3_forward", counting)
    return capacities


def test_a_step_is_traced_once_a_block_and_not_once_a_token(model, traced):
    # A temperature of its own, so that nothing was compiled for it before.
    sampling = SamplingConfig(max_new_tokens=80, temperature=1.2345)
    generate(*model, PROMPTS[:1], sampling=sampling)
    assert traced == [3 + 32, 3 + 64, 3 + 79]
    generate(*model, PROMPTS[:1], sampling=sampling, seed=1)
    assert len(traced) == 3, "the next call finds all of it compiled"


def test_one_step_follows_when_every_row_has_ended(model, traced):
    sampling = SamplingConfig(max_new_tokens=80, temperature=1.3456)
    rollout = generate(*model, PROMPTS, sampling=sampling, eos_token_ids=range(V))
    assert [len(row) for row in rollout.completions] == [1] * 4
    assert rollout.finished == [True] * 4
    assert len(traced) == 1, "the second token was under way when the first was looked at"

    generate(*model, PROMPTS, sampling=SamplingConfig(max_new_tokens=1, temperature=1.4567), eos_token_ids=range(V))
    assert len(traced) == 1, "behind the last token there is nothing to begin with"


# The end of a row.


def test_any_of_several_ends_stops_a_row_and_is_kept(model, sampled):
    ends = [sampled.completions[0][4], sampled.completions[4][11]]
    rollout = generate(*model, GROUPS, sampling=SamplingConfig(max_new_tokens=80), eos_token_ids=ends, seed=3)
    for row, (completion, free) in enumerate(zip(rollout.completions, sampled.completions, strict=True)):
        first = next((place for place, token in enumerate(free) if token in ends), None)
        expected = free if first is None else free[: first + 1]
        assert completion == expected, f"row {row}: what it draws does not depend on which rows have ended"
        assert rollout.finished[row] == (first is not None)
        np.testing.assert_allclose(rollout.logps[row], sampled.logps[row][: len(expected)], atol=1e-5)
    assert len({len(completion) for completion in rollout.completions}) > 3
    assert {completion[-1] for completion in rollout.completions} >= set(ends)


def test_an_end_on_the_very_last_token_counts_as_an_end(model, sampled):
    rollout = generate(*model, GROUPS[:1], sampling=SamplingConfig(max_new_tokens=1), eos_token_ids=range(V), seed=3)
    assert (len(rollout.completions[0]), rollout.finished) == (1, [True])
    rollout = generate(*model, GROUPS[:1], sampling=SamplingConfig(max_new_tokens=1), seed=3)
    assert (len(rollout.completions[0]), rollout.finished) == (1, [False])


def test_tokens_come_one_by_one_and_whoever_has_seen_enough_leaves(model, sampled):
    ends = [sampled.completions[0][4], sampled.completions[4][11]]
    settings = dict(sampling=SamplingConfig(max_new_tokens=80), eos_token_ids=ends, seed=3)
    rollout = generate(*model, GROUPS, **settings)
    steps = [*generate_tokens(*model, GROUPS, **settings)]
    assert len(steps) == max(map(len, rollout.completions))
    for row, completion in enumerate(rollout.completions):
        assert [int(step.tokens[row]) for step in steps[: len(completion)]] == completion
        assert [float(step.logps[row]) for step in steps[: len(completion)]] == rollout.logps[row]
        assert [float(step.entropies[row]) for step in steps[: len(completion)]] == rollout.entropies[row]
        ended = [bool(step.ended[row]) for step in steps]
        assert ended == [place >= len(completion) - 1 and rollout.finished[row] for place in range(len(steps))]

    for number, step in enumerate(generate_tokens(*model, GROUPS, **settings)):
        assert step.tokens.tolist() == steps[number].tokens.tolist()
        if number == 2:
            break
    assert generate(*model, GROUPS, **settings) == rollout, "leaving spoils nothing"
    with pytest.raises(ValueError, match="There are no prompts"):
        generate_tokens(*model, [])  # at once, not with the first token


def test_what_stops_a_row_stays_in_it_and_counts_as_an_end(model, sampled):
    wanted = sampled.completions[2][5:7]
    stop = lambda tokens: list(tokens[-2:]) == wanted  # noqa: E731
    rollout = generate(*model, GROUPS, sampling=SamplingConfig(max_new_tokens=80), seed=3, stop=stop)
    for row, (completion, free) in enumerate(zip(rollout.completions, sampled.completions, strict=True)):
        place = next((i for i in range(2, len(free) + 1) if free[i - 2 : i] == wanted), None)
        assert completion == free[:place]
        assert rollout.finished[row] == (place is not None)
        np.testing.assert_allclose(rollout.logps[row], sampled.logps[row][: len(completion)], atol=1e-5)
    assert rollout.completions[2] == sampled.completions[2][:7]
    pieces = generate(
        *model, GROUPS, sampling=SamplingConfig(max_new_tokens=80), seed=3, stop=stop, completion_batch_size=3
    )
    assert pieces.completions == rollout.completions


@pytest.mark.parametrize(
    ("strings", "expected"),
    [
        (["d"], "abcd"),
        (["cd", "b"], "ab"),
        (["zz", "def"], "abcdef"),
        (["\u20ac"], None),
        (["efg", "abcdefghij"], "abcdefg"),
    ],
)
def test_strings_stop_a_text_as_soon_as_they_stand_in_it(strings, expected):
    stop = stop_at(lambda ids: "".join(chr(97 + i) for i in ids), strings)
    text = range(12)
    ended = next((number for number in range(1, 13) if stop(text[:number])), None)
    assert (None if ended is None else "abcdefghijkl"[:ended]) == expected


def test_a_stop_string_is_found_where_every_character_is_several_tokens():
    def decode(ids):
        return bytes(ids).decode("utf-8", errors="replace")

    text = [*"so: \U0001f600\U0001f601".encode()]
    stop = stop_at(decode, ["\U0001f600\U0001f601"])
    assert [stop(text[:number]) for number in range(1, len(text) + 1)] == [False] * (len(text) - 1) + [True]


@pytest.mark.parametrize("strings", [["<|im_start|>"], ["<|vision_end|>", "1<|"], ["</think>", "|>2"]])
def test_stop_strings_with_special_tokens_stop_where_transformers_does(strings):
    peer = transformers.AutoTokenizer.from_pretrained(TINY_CHAT)
    theirs = transformers.StopStringCriteria(peer, strings)
    ours = stop_at(partial(load_tokenizer(TINY_CHAT).decode, skip_special_tokens=False), strings)
    likely = peer("12<|im_start|><|vision_end|><|im_end|></think>")["input_ids"]
    rng, stopped = np.random.default_rng(0), 0
    for _ in range(20):
        ids = rng.choice(likely, 30).tolist()
        for end in range(1, len(ids) + 1):
            wants = bool(theirs(torch.tensor([ids[:end]]), None)[0])
            assert ours(ids[:end]) == wants, peer.decode(ids[:end])
            if wants:
                stopped += 1
                break
    assert stopped > 5


@pytest.mark.parametrize("strings", [[], "", "stop", ["a", ""], None, 5, [5], [b"a"], iter(["a"])])
def test_stop_strings_are_checked(strings):
    with pytest.raises(ValueError, match="expected a list of non-empty strings"):
        stop_at(str, strings)


def test_a_tokenizer_in_the_place_of_its_decode_is_refused():
    with pytest.raises(TypeError, match="decode is a object; expected a function"):
        stop_at(object(), ["a"])


def test_a_stop_may_answer_with_anything_that_is_true_or_not(model):
    settings = {"sampling": SamplingConfig(max_new_tokens=4), "seed": 2}
    whole = generate(*model, [[1, 2]], **settings)
    for nothing in (None, 0, "", np.False_, mx.array(False)):
        assert generate(*model, [[1, 2]], stop=lambda tokens, answer=nothing: answer, **settings) == whole
    for something in (1, "yes", np.True_, mx.array(True)):
        rollout = generate(*model, [[1, 2]], stop=lambda tokens, answer=something: answer, **settings)
        assert (rollout.completions, rollout.finished) == ([whole.completions[0][:1]], [True])


def test_end_tokens_in_any_container_end_a_row(model, sampled):
    end = sampled.completions[0][3]
    expected = generate(*model, GROUPS, sampling=SamplingConfig(max_new_tokens=8), seed=3, eos_token_ids=[end, 0])
    assert any(expected.finished)
    for ends in ({end, 0}, (0, end), np.array([end, 0]), mx.array([end, 0]), (each for each in (end, 0))):
        got = generate(
            *model, GROUPS, sampling=SamplingConfig(max_new_tokens=8), seed=3, eos_token_ids=ends,
            completion_batch_size=2,
        )  # fmt: skip
        assert got.completions == expected.completions


def test_prompts_may_hold_the_id_that_pads_and_the_id_that_ends(reference, model):
    """0 is what fills short rows: a prompt that begins with it, or with an end token, is read as it stands."""
    prompts = [[0, 0, 5, 6], [5, 6], [3, 0, 3], [0]]
    rollout = generate(
        *model, prompts, sampling=SamplingConfig(max_new_tokens=10, temperature=0), eos_token_ids=[V - 1]
    )
    for prompt, completion, logps in zip(prompts, rollout.completions, rollout.logps, strict=True):
        np.testing.assert_allclose(logps, transformers_logps(reference, prompt, completion), atol=2e-5)


@pytest.mark.parametrize("size", [1, 3, 5, 12, 100])
def test_rows_at_once_change_nothing_but_memory(model, size):
    settings = dict(sampling=SamplingConfig(max_new_tokens=9), eos_token_ids=[3, 4, 5], seed=2)
    whole, pieces = (generate(*model, GROUPS, **settings, completion_batch_size=each) for each in (None, size))
    assert pieces.completions == whole.completions
    assert pieces.finished == whole.finished
    for ours, theirs in zip(pieces.logps + pieces.entropies, whole.logps + whole.entropies, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    part = generate(*model, GROUPS[4:9], **settings, first_row=4, num_rows=12, completion_batch_size=size)
    assert part.completions == whole.completions[4:9]


# Errors.


@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        ([], ValueError, "There are no prompts; expected a list of lists of token ids"),
        ([[1], []], ValueError, r"prompts\[1\] is empty; expected at least one token"),
        ([[1], [2, V]], ValueError, rf"prompts\[1\] contains token id {V}; expected 0 to {V - 1}"),
        ([[-1]], ValueError, r"prompts\[0\] contains token id -1"),
        ([[1.5]], ValueError, r"prompts\[0\] has dtype float64"),
        ([[[1]]], ValueError, r"prompts\[0\] has dtype int64 and shape \(1, 1\)"),
        (["12+34="], TypeError, r"prompts\[0\] is text; expected token ids. Encode it first: .*'12\+34='"),
        ("12+34=", TypeError, r"prompts\[0\] is text"),
        ([5, 6, 7], TypeError, r"prompts\[0\] is 5; expected a list of token ids.*\[prompt\]"),
        ([[1], [1] * 119], ValueError, r"prompts\[1\] has 119 tokens. With 10 more it exceeds the model's 128 pos"),
    ],
)  # fmt: skip
def test_prompts_are_checked(model, prompts, error, message):
    with pytest.raises(error, match=message):
        generate(*model, prompts, sampling=SamplingConfig(max_new_tokens=10))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"eos_token_ids": [-1]}, ValueError, rf"eos_token_ids contains token id -1; expected 0 to {V - 1}"),
        ({"eos_token_ids": [1, V]}, ValueError, rf"eos_token_ids contains token id {V}"),
        ({"eos_token_ids": {2**40}}, ValueError, rf"eos_token_ids contains token id {2**40}"),
        ({"seed": -1}, ValueError, r"seed is -1; expected 0 to 2\^64 - 1"),
        ({"seed": 2**64}, ValueError, rf"seed is {2**64}; expected 0 to 2\^64 - 1"),
        ({"seed": 1.5}, TypeError, "seed is 1.5; expected a whole number"),
        ({"completion_batch_size": 0}, ValueError, "completion_batch_size is 0; expected at least 1"),
        ({"completion_batch_size": "2"}, TypeError, "completion_batch_size is '2'; expected a whole number"),
        ({"eos_token_ids": 1}, TypeError, "eos_token_ids is 1; expected a list or a set of token ids"),
        ({"eos_token_ids": 0}, TypeError, "eos_token_ids is 0; expected a list or a set of token ids"),
        ({"stop": ["."]}, TypeError, r"stop is \['.'\]; expected a function of a row's tokens. stop_at"),
        ({"first_row": -1}, ValueError, "first_row is -1; 2 prompts from there on do not fit into a batch of 2"),
        ({"first_row": 1, "num_rows": 2}, ValueError, "first_row is 1; 2 prompts from there on"),
        ({"num_rows": 1}, ValueError, "do not fit into a batch of 1"),
        ({"first_row": "1", "num_rows": 2}, TypeError, "first_row is '1'; expected a whole number"),
        ({"num_rows": 2.0}, TypeError, "num_rows is 2.0; expected a whole number"),
        ({"reply": "7"}, TypeError, "reply is '7'; expected a function: {row: its tokens so far}"),
        ({"reply": {0: [7]}}, TypeError, "reply is {0: \\[7\\]}; expected a function"),
        ({"reply": lambda rows: {2: [7]}}, ValueError, "reply returned tokens for row 2; .* belong to rows \\[0, 1\\]"),
        ({"reply": lambda rows: {0: [99999]}}, ValueError, "the reply to row 0 contains token id 99999"),
    ],
)  # fmt: skip
def test_what_is_not_checked_by_the_sampling_is_checked(model, settings, error, message):
    """Rows that a batch does not have would get equal draws."""
    with pytest.raises(error, match=message):
        generate(*model, [[1, 2]] * 2, **{"sampling": SamplingConfig(2), "stop": lambda ids: True} | settings)


def test_the_largest_seed_is_one(model):
    rollouts = [generate(*model, [[1, 2]] * 8, seed=seed, sampling=SamplingConfig(4)) for seed in (0, 2**64 - 1)]
    assert rollouts[0] != rollouts[1]


def test_the_last_position_of_the_context_is_usable(reference, model):
    prompt = [3] * 118
    rollout = generate(*model, [prompt], sampling=SamplingConfig(max_new_tokens=10))
    np.testing.assert_allclose(
        rollout.logps[0], transformers_logps(reference, prompt, rollout.completions[0]), atol=2e-5
    )
