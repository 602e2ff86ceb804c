"""The model as boxes: every number and the result of every formula match transformers, forward and backward."""

import re

import numpy as np
import pytest
import torch

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.instruments.flow.boxes import Boxes
from mlx_grpo_kit.instruments.flow.flow import draw_flow, show_flow, trace_flow
from mlx_grpo_kit.instruments.flow.sums import MINUS
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from tests.backends.small_qwen3 import RELATIVES

PROMPT, ANSWER = "12+34=", "46"
SETTINGS = {
    "vocab_size": 64, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "attn_implementation": "eager",
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(TINY)


@pytest.fixture(scope="module", params=["shipped", "tied", "not tied", "yarn", *RELATIVES])
def seen(request, make_qwen3, tokenizer):
    """(transformers' model after backward, the outputs of its modules, the trace of the same text)."""
    if request.param == "shipped":
        from transformers import Qwen3ForCausalLM

        reference = Qwen3ForCausalLM.from_pretrained(TINY, attn_implementation="eager").eval()
        config, params = load_pretrained(TINY)
    else:
        kind = {"yarn": {"rope_parameters": YARN}, **RELATIVES}.get(request.param, {})
        settings = SETTINGS | {"tie_word_embeddings": request.param == "tied"} | kind
        reference, config, params = make_qwen3(noise=0.3, **settings)
    outputs = {}

    def keep(name):
        def hook(module, inputs, output):
            outputs[name] = output[0] if isinstance(output, tuple) else output
            outputs[name].retain_grad()

        return hook

    for name, module in reference.named_modules():
        if name not in ("", "model") and "rotary" not in name and not name.endswith(("layers", "act_fn")):
            module.register_forward_hook(keep(name.removeprefix("model.")))
    trace = trace_flow(config, params, tokenizer, PROMPT, ANSWER, backward=True)
    output = reference(torch.tensor([trace.ids]), output_attentions=True)
    for layer, weights in enumerate(output.attentions):
        weights.retain_grad()
        outputs[f"layers.{layer}.self_attn.weights"] = weights
    chosen = output.logits[0, list(trace.targets)].log_softmax(-1)
    loss = -chosen[range(len(trace.targets)), list(trace.targets.values())].sum()
    loss.backward()
    outputs["loss"] = loss
    return reference, outputs, trace


def test_values_and_gradients_match_transformers(seen):
    _, outputs, trace = seen
    names = {"embedding": "embed_tokens", "final_norm": "norm", "logits": "lm_head"}
    compared = 0
    for name, value in trace.record.items():
        theirs = outputs.get(names.get(name, name))
        if theirs is None:
            continue
        ours, gradient, compared = value.ravel(), trace.grads[name].ravel(), compared + 1
        assert np.allclose(ours, theirs.detach().numpy().ravel(), atol=3e-4, rtol=1e-4), name
        scale = float(theirs.grad.abs().max())
        assert np.allclose(gradient, theirs.grad.numpy().ravel(), atol=3e-4 * scale + 1e-7), name
    layers = trace.config.num_hidden_layers
    assert (
        compared == 3 + (13 if trace.config.model_type == "qwen3" else 11) * layers
    )  # values without a module in transformers are checked below
    assert trace.loss == pytest.approx(float(outputs["loss"].detach()), rel=1e-4)


def all_boxes(trace, position, head):
    boxes = Boxes(trace, position, head)
    inside = [box for layer in range(trace.config.num_hidden_layers) for box in boxes.layer(layer)]
    return [*boxes.before(), *inside, *boxes.after()]


@pytest.mark.parametrize(("position", "head"), [(0, 0), (3, 1), (5, 2), (6, 3)])
def test_each_formula_gives_the_number_in_its_box(seen, position, head):
    _, _, trace = seen
    for box in all_boxes(trace, position, head):
        chosen = range(0, len(box.values), max(1, len(box.values) // 9))
        forward = [box.forward(i).total for i in chosen]
        backward = [box.backward(i).total for i in chosen]
        assert np.allclose(forward, box.values[chosen], atol=1e-5 * np.abs(box.values).max() + 1e-7), box.key
        assert np.allclose(backward, box.grads[chosen], atol=1e-4 * np.abs(box.grads).max() + 1e-7), box.key


def test_the_gradient_of_each_weight_matches_transformers(seen):
    reference, _, trace = seen
    theirs = {name.removeprefix("model."): weight.grad for name, weight in reference.named_parameters()}
    followed = 0
    for box in all_boxes(trace, 5, 2):
        for i in (0, 7):
            if not box.weight or (box.key in ("embedding", "logits") and trace.config.tie_word_embeddings):
                continue  # one table that is used twice: each box shows its own share
            work = box.weight(i)
            name, where = re.fullmatch(r"grad (.*)\[(.*)\]", work.name).groups()
            full = name
            if box.key not in ("embedding", "logits", "final_norm"):
                full = f"{box.key}.weight"
            full = full.replace("embedding.", "embed_tokens.").replace("final_norm", "norm")
            place = tuple(map(int, where.split(", ")))
            assert work.total == pytest.approx(float(theirs[full][place]), rel=1e-3, abs=1e-6), work.name
            if (of_bias := theirs.get(full.replace(".weight", ".bias"))) is not None:
                row, found = re.search(r"\.bias\[(\d+)\] = .* = (.*)", work.lines[-1]).groups()
                expected = pytest.approx(float(of_bias[int(row)]), rel=1e-3, abs=1e-6)
                assert float(found.replace(MINUS, "-")) == expected, work.lines
            followed += 1
    matrices_and_norms = 11 if trace.config.model_type == "qwen3" else 9
    assert followed >= 2 * (matrices_and_norms * trace.config.num_hidden_layers + 1)


def test_the_picture_has_the_familys_name_and_no_norm_that_it_lacks(seen):
    _, _, trace = seen
    for backward in (False, True):
        picture = draw_flow(trace, backward=backward)
        family = {"qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama"}[trace.config.model_type]
        assert f"through a {family} with {trace.config.num_hidden_layers} layers" in picture.alt
        assert ("the query, scaled to size 1" in picture.html) == (family == "Qwen3")
        assert ("+ bias[" in picture.html) == (family == "Qwen2")


def test_the_shares_of_a_tied_table_add_up_to_its_gradient(seen):
    reference, _, trace = seen
    if not trace.config.tie_word_embeddings:
        return
    gradient = reference.model.embed_tokens.weight.grad
    boxes = Boxes(trace, 6, 0)
    [embedding], logits = boxes.before(), boxes.after()[1]
    token = trace.ids[6]
    work = logits.weight(token)
    column = int(re.search(r", (\d+)\]$", work.name)[1])
    assert work.total + embedding.weight(column).total == pytest.approx(float(gradient[token, column]), rel=1e-3)


def test_the_loss_expects_every_token_of_the_answer(tokenizer):
    config, params = load_pretrained(TINY)
    trace = trace_flow(config, params, tokenizer, PROMPT, ANSWER, backward=True)
    assert "".join(map(trace.spell, trace.ids)) == "12+34=4"  # the last token of the answer is a target, not an input
    assert {place: trace.spell(token) for place, token in trace.targets.items()} == {5: "4", 6: "6"}
    likeliest = trace_flow(config, params, tokenizer, PROMPT, backward=True)
    assert likeliest.targets == {5: int(likeliest.probabilities(5).argmax())}
    assert trace_flow(config, params, tokenizer, PROMPT).grads is None


@pytest.mark.parametrize(
    ("prompt", "words"),
    [("", "The prompt is empty"), ("12é", "no token for 'é'"), ("1" * 65, "65 tokens; expected at most 64")],
)
def test_a_text_that_cannot_be_traced_gets_a_message(tokenizer, prompt, words):
    config, params = load_pretrained(TINY)
    with pytest.raises(ValueError, match=words):
        trace_flow(config, params, tokenizer, prompt)
    panel = show_flow(config, params, tokenizer, "1+2=")
    panel.set(prompt=prompt)
    assert words.split("'")[0].rstrip() in panel._complaint.value
    panel.set(prompt="7*8=")
    assert panel._complaint.value == ""
    assert "'7*8='" in panel.picture.alt


def test_the_panel_follows_its_controls(tokenizer):
    config, params = load_pretrained(TINY)
    panel = show_flow(config, params, tokenizer, PROMPT, ANSWER)
    assert panel.values["token"] == 6
    panel.set(prompt="1+2=")
    assert (panel.controls["token"].max, panel.values["token"]) == (4, 4)  # still the last token
    panel.set(prompt="12+34=")
    assert (panel.controls["token"].max, panel.values["token"]) == (6, 6)
    panel.set(token=2)
    panel.set(prompt="7*8=")
    assert (panel.controls["token"].max, panel.values["token"]) == (4, 2)  # another token stays selected
    panel.set(prompt="12+34=")
    panel.set(direction="backward", head=3, number=200)
    [q] = [box for box in panel.picture.boxes if box.key == "layers.1.self_attn.q_proj"]
    expected = trace_flow(config, params, tokenizer, PROMPT, ANSWER, backward=True)
    assert np.allclose(q.grads, expected.grads["layers.1.self_attn.q_proj"][2, 3])
    assert f"q_proj[{200 % 32}]" in panel.picture.html
    assert "layer" not in panel.controls


@pytest.mark.parametrize("backward", [False, True])
def test_the_stored_output_is_small(tokenizer, backward):
    config, params = load_pretrained(TINY)
    trace = trace_flow(config, params, tokenizer, "27+38=", "65", backward=True)
    assert len(draw_flow(trace, backward=backward)._repr_mimebundle_()["text/html"]) < 300_000


def test_a_larger_model_shows_one_layer(make_qwen3, tokenizer):
    _, config, params = make_qwen3(noise=0.1, **SETTINGS | {"intermediate_size": 600, "num_hidden_layers": 4})
    panel = show_flow(config, params, tokenizer, "1+2=")
    panel.set(layer=2)
    assert {box.key.split(".")[1] for box in panel.picture.boxes if box.key.startswith("layers")} == {"2"}
    assert "the first 256 of its 600 numbers" in panel.picture.html
    assert panel.picture.html.count("not drawn: choose it above") == 3
    with pytest.raises(ValueError, match="layer is 4; expected 0 to 3"):
        draw_flow(trace_flow(config, params, tokenizer, "1"), layer=4)
