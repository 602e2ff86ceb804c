"""A step of GRPO as boxes: its arrays are those of torch and of plain loops, and the boxes show these arrays."""

import math
import re
from html import unescape

import numpy as np
import pytest
import torch
from transformers import Qwen3ForCausalLM

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course.chapters.chapter_18.data_flow import follow_step, show_step
from mlx_grpo_kit.course.chapters.chapter_18.pictures.data_flow import MOST_TOKENS, draw_data_flow
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Addition
from mlx_grpo_kit.viz.picture import as_picture, least_width

RATE = 5e-4


@pytest.fixture(scope="module")
def data():
    return follow_step(*load_pretrained(TINY), load_tokenizer(TINY), Addition(), learning_rate=RATE)


def torch_logps(model, prompts, completions):
    """The log-probabilities of each completion's tokens; rows of equal length form a batch, so that none is padded."""
    alike, found = {}, [None] * len(prompts)
    for row, pair in enumerate(zip(prompts, completions, strict=True)):
        alike.setdefault(tuple(map(len, pair)), []).append(row)
    for (start, _), rows in alike.items():
        ids = torch.tensor([prompts[row] + completions[row] for row in rows])
        logps = model(ids).logits[:, start - 1 : -1].log_softmax(-1).gather(-1, ids[:, start:, None])[..., 0]
        for row, values in zip(rows, logps, strict=True):
            found[row] = values
    return found


def torch_part(name):
    """The kit's name of the part that a parameter of transformers belongs to."""
    layer = re.match(r"model\.(layers\.\d+)\.", name)
    return layer[1] if layer else {"model.embed_tokens.weight": "embedding", "model.norm.weight": "final_norm"}[name]


def lengths(model, values):
    squares = {}
    for (name, _), value in zip(model.named_parameters(), values, strict=True):
        part = torch_part(name)
        squares[part] = squares.get(part, 0.0) + value.double().square().sum().item()
    return {part: math.sqrt(square) for part, square in squares.items()}


def test_rewards_and_advantages_equal_those_of_plain_loops(data):
    drawn, size = data.batch.completions, data.groups.shape[1]
    for row, (problem, written) in enumerate(zip(drawn.problems, drawn.texts, strict=True)):
        left, right = problem.prompt.rstrip("=").split("+")
        assert data.batch.rewards[row] == float(written == str(int(left) + int(right)))
        group = [data.batch.rewards[each] for each in range(row // size * size, (row // size + 1) * size)]
        mean = sum(group) / size
        deviation = math.sqrt(sum((reward - mean) ** 2 for reward in group) / (size - 1))
        assert data.groups[row // size].tolist() == group
        assert (data.means[row // size], data.deviations[row // size]) == pytest.approx((mean, deviation))
        assert data.batch.advantages[row] == pytest.approx((group[row % size] - mean) / (deviation + 1e-4), abs=1e-6)
    assert len({*data.groups.ravel()}) == 2  # right and wrong answers


def test_both_updates_equal_torchs(data):
    """Log-probabilities, ratios, clipped terms and loss token by token; gradient, clipping and AdamW by torch."""
    drawn, mask = data.batch.completions, data.completion_mask
    model = Qwen3ForCausalLM.from_pretrained(TINY).eval()
    adamw = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    num_tokens, old = sum(map(len, drawn.completion_ids)), None
    assert mask.sum() == num_tokens < mask.size  # some rows are padded
    for update in data.updates:
        rows = torch_logps(model, drawn.prompt_ids, drawn.completion_ids)
        old = old or [row.detach() for row in rows]
        loss = 0.0
        for row, (logps, before) in enumerate(zip(rows, old, strict=True)):
            advantage = float(data.batch.advantages[row])
            for place, (now, then) in enumerate(zip(logps, before, strict=True)):
                assert mask[row, place]
                ratio = torch.exp(now - then)
                objective = min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
                share = -objective / num_tokens
                loss = loss + share
                expected = {"logps": now, "ratio": ratio, "objective": objective, "shares": share}
                for name, value in expected.items():
                    assert getattr(update, name)[row, place] == pytest.approx(
                        torch.as_tensor(value).item(), abs=2e-4
                    ), name
                assert data.old_logps[row, place] == pytest.approx(then.item(), abs=2e-4)
                side = int(ratio > 1.2 and advantage > 0) - int(ratio < 0.8 and advantage < 0)
                assert update.clipped[row, place] == side
            assert not mask[row, len(logps) :].any()
            assert not update.shares[row, len(logps) :].any()
        assert update.loss == pytest.approx(loss.item(), abs=1e-5)
        assert update.shares.sum() == pytest.approx(update.loss, abs=1e-6)

        adamw.zero_grad()
        loss.backward()
        found = lengths(model, [parameter.grad for parameter in model.parameters()])
        assert update.gradient == pytest.approx(found, rel=1e-3)
        assert update.grad_norm == pytest.approx(math.sqrt(sum(each**2 for each in found.values())), rel=1e-3)
        torch.nn.utils.clip_grad_norm_(model.parameters(), data.args.max_grad_norm)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        adamw.step()
        moved = [after - value for after, value in zip(model.parameters(), before, strict=True)]
        assert update.change == pytest.approx(lengths(model, moved), rel=1e-2)
        with torch.no_grad():
            for row, theirs in enumerate(torch_logps(model, drawn.prompt_ids, drawn.completion_ids)):
                np.testing.assert_allclose(update.logps_after[row, : len(theirs)], theirs, atol=5e-3)
    first, second = data.updates
    assert (first.ratio == 1).all()
    assert {-1, 0, 1} == {*second.clipped.ravel().tolist()}


def words_of(chart, words):
    """The texts of the picture in order, with a plain minus sign."""
    svg = chart.svg(words).partition("</style>")[2]
    found = re.findall(r"<t(?:ext|span)\b[^>]*>([^<]+)<", svg)
    return [unescape(each).replace("\N{MINUS SIGN}", "-") for each in found]


def decimals(values, places=3):
    return [f"{value + 0.0:.{places}f}".replace("-0." + "0" * places, "0." + "0" * places) for value in values]


@pytest.mark.parametrize("second", [False, True])
def test_each_box_shows_its_array(data, second):
    update, count, size = data.updates[second], len(data.tokens), data.groups.shape[1]
    for row in range(count):
        shown = words_of(*draw_data_flow(data, row, second))

        def after(name, number, shown=shown):
            at = shown.index(name) + 1
            return shown[at : at + number]

        def cells(name, shown=shown):
            at = shown.index(name) + 3  # after name, shape and words
            return [each for each in shown[at : at + 2 * MOST_TOKENS] if each not in ("▲ clip", "▼ clip")][:MOST_TOKENS]

        group, width = row // size, data.completion_mask.shape[1]
        drawn = data.batch.completions
        assert after("prompts", 3) == ["[4]", f"group {group} asks", repr(drawn.problems[row].prompt)]
        assert after("completions.texts", 3) == [f"[{count}]", "decoded", repr(drawn.texts[row])]
        assert after("rewards", 3) == [f"[{count}]", "compute_rewards", f"{data.batch.rewards[row]:g}"]
        assert after("groups", 2 + size)[2:] == [f"{reward:g}" for reward in data.groups[group]]
        assert f"mean {data.means[group]:.3f}, deviation {data.deviations[group]:.3f}" in shown
        assert after("advantages", 4)[3] == f"{data.batch.advantages[row]:+.3f}"
        assert cells("completion_ids")[: len(data.tokens[row])] == data.tokens[row]
        assert cells("old_logps") == decimals(data.old_logps[row])
        assert cells("logps") == decimals(update.logps[row])
        assert cells("ratio") == decimals(update.ratio[row])
        assert cells("completion_mask") == [str(int(each)) for each in data.completion_mask[row]]
        assert cells("objective") == decimals(update.objective[row])
        assert cells("loss") == decimals(update.shares[row], 4)
        assert f"this completion adds {decimals([update.shares[row].sum()], 4)[0]}" in shown
        assert f"all {count} together: {update.loss:.4f}" in shown
        assert shown.count("▲ clip") == (update.clipped[row] == 1).sum()
        assert shown.count("▼ clip") == (update.clipped[row] == -1).sum()
        for name, length in update.gradient.items():
            assert after(name, 1) == [f"{length:.3f}"]
        assert all(f"{name} {length:.3f}" in shown for name, length in update.change.items())
        whole = math.sqrt(sum(length**2 for length in update.change.values()))
        assert after("parts.optimizer", 1) == [f"adamw, rate 0.0005: moves by {whole:.3f} in all"]
        ends = decimals([update.logps[row].sum(), update.logps_after[row].sum()])
        assert any(each.startswith(f"completion {row}: logps add up to {ends[0]}, then {ends[1]}: ") for each in shown)
        for name in ("completion_ids", "old_logps", "logps", "ratio", "completion_mask", "objective"):
            assert after(name, 1) == [f"[{count}, {width}]"]


def test_the_words_contain_every_number_of_a_completion(data):
    row = int(np.argwhere(data.updates[1].clipped == 1)[0, 0])
    _, words = draw_data_flow(data, row, second=True)
    words = words.replace("\N{MINUS SIGN}", "-")
    update = data.updates[1]
    assert words.startswith(f"Completion {row} in a step of GRPO, second update of the batch: prompt '")
    for place, token in enumerate(data.tokens[row]):
        assert f"Token {token}: log-probability {decimals([update.logps[row, place]])[0]}" in words
        assert f"ratio {update.ratio[row, place]:.3f}, objective {update.objective[row, place]:.3f}" in words
    assert ", clipped above, share of the loss" in words


def test_the_picture_fits_a_page_and_the_panel_follows_both_controls(data):
    picture = as_picture(*draw_data_flow(data, 0))
    assert least_width(picture.svg) <= 560  # the width that JupyterLab leaves in a window of 1000 pixels
    panel = show_step(data, completion=9)
    assert panel.controls["completion"].max == len(data.tokens) - 1
    panel.set(second=True)
    assert "Completion 9 in a step of GRPO, second update" in repr(panel)
    panel.set(completion=3, second=False)
    assert "Completion 3 in a step of GRPO, first update" in repr(panel)
    with pytest.raises(IndexError, match="completion is 32; expected 0 to 31"):
        draw_data_flow(data, 32)
