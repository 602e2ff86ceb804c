"""Chapter 13 against transformers and mlx-lm, and the claims of its prose."""

import itertools
import math

import numpy as np
import pytest
import torch

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.chapters.chapter_13 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_13.draws import DRAWS, Drawn, draw_often
from mlx_grpo_kit.grpo import per_token_logps
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params, load_pretrained, load_tokenizer, qwen3_forward, save_pretrained
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition
from tests.course.stored import cells

TEXT = "\n".join(cell.source for cell in cells("13").values())
OTHER = Qwen3Config(
    vocab_size=29, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=6,
    num_key_value_heads=2, head_dim=10, rope_theta=500.0, max_position_embeddings=64, tie_word_embeddings=False,
)  # fmt: skip


def cells_of_the_notebook(*ids, **space):
    """The names that some cells of the notebook make."""
    space["__name__"] = "notebook"
    for id in ids:
        exec(cells("13")[id].source, space)
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


@pytest.mark.parametrize("seed", range(8))
def test_a_right_draw_is_right_whatever_the_seed(seed):
    rng = np.random.default_rng(seed)
    logits = mx.array(rng.normal(size=int(rng.integers(2, 12))).astype(np.float32) * 2)
    for temperature in (0.5, 1.0, 3.0):
        assert isinstance(draw_often(chapter.draw, logits, temperature, seed), str)


def test_two_sets_of_draws_are_equal_where_one_distribution_may_have_given_both():
    rng = np.random.default_rng(0)
    one, two, other = (Drawn(rng.multinomial(DRAWS, p)) for p in ([0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [0.3, 0.6, 0.1]))
    assert one == two
    assert one != other
    assert one != Drawn(np.array([DRAWS, 0]))


# -- what the chapter says --------------------------------------------------------------------------------------------


def test_the_table_of_temperatures():
    for row, logit in enumerate((2, 1, 0, -1)):
        shares = [np.array(chapter.tempered(chapter.FOUR, t))[row] for t in (0.5, 1.0, 2.0)]
        assert f"| {logit} | " + " | ".join(f"{100 * share:.1f}%" for share in shares) + " |" in TEXT


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
    for claim in (
        "116 of the 256 sums",
        "is always wrong",
        "(17% at T = 0.4)",
        "In the other 140 sums",
        "from 100% to 97%",
    ):
        assert claim in TEXT


def test_the_parts_of_earlier_chapters_are_the_ones_the_notebook_names():
    names = {"10.4": "rms_norm", "10.5": "mlp", "10.8": "rope", "11.5": "visible", "11.7": "grouped_attention"}
    assert {id: find(id).solution.__name__ for id in names} == names


def test_the_effects_of_the_broken_caches():
    space = cells_of_the_notebook("setup", "steps", "greedy-use", "draw-use", "whole", "left", "own")
    exec(cells("13")["break"].source.partition("with fold")[0], space)
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
