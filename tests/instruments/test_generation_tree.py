"""The tree of texts with a model: the model's logits, probabilities of paths, and the still picture."""

import base64

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.generation import SamplingConfig
from mlx_grpo_kit.instruments.generation_tree import generation_tree, show_generation_tree
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from tests.backends.small_qwen3 import RELATIVES
from tests.generation.small_model import SHAPE


@pytest.fixture(scope="module")
def model():
    return *load_pretrained(TINY), load_tokenizer(TINY)


@pytest.fixture(scope="module")
def tree(model):
    return show_generation_tree(*model, "27+38=", answers=["65", "55"])


@pytest.fixture(scope="module")
def probabilities():
    """Return transformers' probabilities of the token after a text."""
    theirs, tokenizer = AutoModelForCausalLM.from_pretrained(TINY), AutoTokenizer.from_pretrained(TINY)

    def probabilities(text):
        with torch.no_grad():
            return theirs(torch.tensor([tokenizer(text)["input_ids"]])).logits[0, -1].double().softmax(0).numpy()

    return probabilities


def logits_of(node):
    return np.frombuffer(base64.b64decode(node["logits"]), "<f4").astype(float)


def test_nodes_have_the_models_logits_in_descending_order(tree, model, probabilities):
    *_, tokenizer = model
    assert [node["path"] for node in tree.data["nodes"]] == sorted(
        [[], *(tokenizer.encode(text) for text in ("6", "65", "5", "55"))]
    )
    end = tokenizer.eos_token_ids[0]
    assert [*tokenizer.encode("65"), end] in tree.data["paths"]
    for node in tree.data["nodes"]:
        expected = probabilities("27+38=" + tokenizer.decode(node["path"]))
        powers = np.exp(logits_of(node))
        assert (np.diff(logits_of(node)) <= 0).all()
        np.testing.assert_allclose(powers / powers.sum(), expected[node["ids"]], rtol=1e-3)
        spelled = [tokenizer.decode([id_]) for id_ in node["ids"]]
        assert all(name == repr(text) for name, text in zip(node["names"], spelled, strict=True) if text)
        assert node["names"][node["ids"].index(end)] == "end"


@pytest.mark.parametrize("family", RELATIVES)
def test_a_relative_has_its_own_logits(make_qwen3, model, family):
    *_, tokenizer = model
    reference, config, params = make_qwen3(0.3, **SHAPE | {"vocab_size": tokenizer.vocab_size}, **RELATIVES[family])
    [root] = show_generation_tree(config, params, tokenizer, "27+38=").data["nodes"]
    with torch.no_grad():
        expected = reference(torch.tensor([tokenizer.encode("27+38=")])).logits[0, -1].numpy()
    np.testing.assert_allclose(logits_of(root), expected[root["ids"]], atol=1e-4)


def test_a_click_causes_one_answer_and_mistakes_get_messages(tree, model):
    *_, tokenizer = model
    answer = tree.answer({"prompt": "8+", "path": tokenizer.encode("5")})
    assert answer["prompt"] == "8+"
    assert answer["path"] == tokenizer.encode("5")
    sent = []
    tree.send = sent.append
    for number, (prompt, path) in enumerate([("", []), ("1\u00e9", []), ("1" * 5000, [])]):
        tree._reply({"number": number, "question": {"prompt": prompt, "path": path}})
    complaints = [message["answer"]["complaint"] for message in sent]
    assert complaints[0] == "The prompt is empty; expected at least one character to continue from."
    assert "no token for '\u00e9'" in complaints[1]
    assert complaints[2].startswith("The text has 5000 tokens; the model has ")


def test_the_initial_sampling_settings(model):
    sampling = SamplingConfig(temperature=0.5, top_k=3, min_p=0.1)
    settings = show_generation_tree(*model, sampling=sampling).data["settings"]
    assert settings == {"temperature": 0.5, "top_k": 3, "top_p": 1.0, "min_p": 0.1}


def test_an_answer_without_a_bar_raises_an_error(model, monkeypatch):
    monkeypatch.setattr(generation_tree, "NAMED", 5)
    with pytest.raises(ValueError, match=r"Answer '65x' has the token 'x', which is not among the 5 likeliest"):
        show_generation_tree(*model, answers=["65x"])


def test_the_still_picture_multiplies_along_its_paths(tree, probabilities, model):
    *_, tokenizer = model
    picture = tree.draw_still()
    text, total = "27+38=", 1.0
    for token in (*tokenizer.encode("55"), tokenizer.eos_token_ids[0]):
        total *= probabilities(text)[token]
        text += tokenizer.decode([token])
    assert picture.alt.startswith("After '27+38=': '5' 63%, '6' 30%, ")
    assert f"times end 100% is {total:.0%}; '6' 30% times" in picture.alt  # the likelier path comes first
    assert f">{total:.0%}</text>" in picture.svg
    assert picture.svg.count("<path d=") == 6  # branches
    alone = show_generation_tree(*model).draw_still()
    assert "Paths" not in alone.alt
