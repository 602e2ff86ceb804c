"""Adapters from the terminal: one command trains them, another fuses them, and others read the result."""

import json
from copy import deepcopy

import mlx_lm
import numpy as np
import pytest
import torch
from mlx_lm.generate import generate_step
from peft import PeftModel
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from mlx_grpo_kit.assets import TINY, TINY_CHAT
from mlx_grpo_kit.cli import main
from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.qwen3 import Adapters, init_lora, load_adapters, load_pretrained, load_tokenizer, save_adapters
from mlx_grpo_kit.qwen3.lora import fingerprint
from mlx_grpo_kit.qwen3.params import validate_params
from mlx_grpo_kit.qwen3.tokenizer import save_character_tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition
from tests.backends.small_qwen3 import RELATIVES
from tests.generation.small_model import SHAPE


@pytest.fixture(scope="module")
def chat_run(tmp_path_factory):
    """One command: the made Qwen3 with a chat template learns addition in chats, by adapters of rank 8."""
    folder = tmp_path_factory.mktemp("lora") / "run"
    command = ["train", "--model", "tiny-chat", "--lora-r", "8", "--max-steps", "24", "--output", str(folder)]
    assert main([*command, "--eval-every", "24", "--eval-problems", "200"]) == 0
    assert main(["fuse", "--adapter", str(folder / "policy"), "--output", str(folder.parent / "fused")]) == 0
    return folder, folder.parent / "fused"


def test_a_made_qwen3_learns_chats_by_adapters(chat_run):
    folder, _ = chat_run
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    before, after = lines[0]["eval/accuracy"], lines[-1]["eval/accuracy"]
    assert after > before + 0.2
    assert json.loads((folder / "run.json").read_text())["chat"]


def test_the_fused_policy_answers_alike_everywhere(chat_run):
    """Greedy answers of the kit, transformers and mlx-lm, of float32 numbers and token by token."""
    _, fused = chat_run
    tokenizer, task = load_tokenizer(fused), Addition().in_chat(thinking=False)
    prompts = [tokenizer.encode_prompt(problem.prompt, enable_thinking=False) for problem in task.held_out(8)]
    config, params = load_pretrained(fused)
    assert {value.dtype for value in load_pretrained(fused, dtype=None)[1].values()} == {mx.bfloat16}, "the base's"
    greedy = SamplingConfig(24, temperature=0)
    ours = generate(config, params, prompts, sampling=greedy, eos_token_ids=tokenizer.eos_token_ids).completions
    theirs = AutoModelForCausalLM.from_pretrained(fused, dtype=torch.float32)
    model, _ = mlx_lm.load(str(fused))
    model.set_dtype(mx.float32)
    for prompt, answer in zip(prompts, ours, strict=True):
        ids = theirs.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :].tolist()
        assert ids == answer
        steps = generate_step(mx.array(prompt), model, max_tokens=len(answer))
        assert [int(token) for token, _ in steps] == answer
    assert len({tuple(answer) for answer in ours}) > 4


def test_a_policy_of_adapters_is_a_model_too(chat_run, capsys):
    folder, fused = chat_run
    question = ["--chat", "--no-enable-thinking", "What is 20+84? Answer as <answer>number</answer>."]
    said = []
    for model in (folder / "policy", fused):
        assert main(["generate", "--model", str(model), *question]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    config, params = load_pretrained(folder / "policy")
    validate_params(params, config)
    named = load_adapters(folder / "policy", config)
    assert named.base == str(TINY_CHAT)
    assert named.scale == 4


def train(folder, *more):
    return main(["train", "--output", str(folder), "--max-steps", "2", "--eval-every", "2", "--eval-problems", "16",
                 "--per-device-train-batch-size", "16", "--log-completions", "0", *more])  # fmt: skip


@pytest.mark.parametrize("family", RELATIVES)
def test_a_relative_of_transformers_goes_through_every_command_and_back(make_qwen3, tmp_path, capsys, family):
    theirs, config, _ = make_qwen3(0.3, **SHAPE | {"vocab_size": 64}, **RELATIVES[family])
    base, run, fused = (tmp_path / name for name in ("base", "run", "fused"))
    theirs.save_pretrained(base)
    save_character_tokenizer(base)
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<unk> $A", special_tokens=[("<unk>", 2)])
    tokenizer.save(str(base / "tokenizer.json"))  # as Llama 3's, it puts a token before every text
    sevens = ["--task", "tests.grpo.processes_run:Sevens", "--learning-rate", "0.01"]
    assert train(run, "--model", str(base), "--lora-r", "2", *sevens) == 0
    assert main(["fuse", "--adapter", str(run / "policy"), "--output", str(fused)]) == 0
    assert train(tmp_path / "whole", "--model", str(fused), *sevens) == 0
    assert main(["evaluate", "--model", str(tmp_path / "whole" / "policy"), "--num-problems", "4"]) == 0
    capsys.readouterr()

    ids = torch.tensor([PreTrainedTokenizerFast.from_pretrained(base)("12+34=")["input_ids"]])
    adapted = PeftModel.from_pretrained(deepcopy(theirs), run / "policy" / "peft")
    back = [AutoModelForCausalLM.from_pretrained(folder) for folder in (fused, tmp_path / "whole" / "policy")]
    assert [type(each) for each in back] == 2 * [type(theirs)]
    with torch.no_grad():
        logits = [each(ids).logits.numpy() for each in (theirs, adapted, *back)]
    np.testing.assert_allclose(logits[2], logits[1], atol=1e-4)
    assert abs(logits[1] - logits[0]).max() > 0.01
    assert abs(logits[3] - logits[2]).max() > 1e-5
    for folder, model in ((run / "policy", back[0]), (tmp_path / "whole" / "policy", back[1])):
        assert main(["generate", "--model", str(folder), "--max-new-tokens", "8", "12+34="]) == 0
        answer = model.generate(ids, max_new_tokens=8, do_sample=False)[0].tolist()
        assert capsys.readouterr().out.strip() == load_tokenizer(folder).decode(answer).strip()
        assert load_pretrained(folder)[0] == config


def test_a_runs_folder_is_not_its_policy_and_says_where_that_is(chat_run, tmp_path, capsys):
    folder, _ = chat_run
    for command in (["generate", "1+1=", "--model"], ["train", "--output", str(tmp_path / "x"), "--model"],
                    ["fuse", "--output", str(tmp_path / "x"), "--adapter"]):  # fmt: skip
        assert main([*command, str(folder)]) == 2
        assert f"{folder / 'policy'} has one: pass that folder." in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match="policy has one: pass that folder"):
        load_pretrained(folder)


def test_a_run_goes_on_beside_its_base(tmp_path, capsys):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    settings = ["--lora-rank", "2", "--lora-target-modules", "q_proj,v_proj", "--lora-alpha", "4"]
    settings += ["--beta", "0.1", "--lr-scheduler-type", "constant"]
    assert train(whole, *settings) == 0
    assert train(cut, *settings, "--max-steps", "1") == 0
    assert train(cut, "--resume", "--lora-target-modules", "q_proj,v_proj") == 0
    assert "Fuse: " in capsys.readouterr().out
    ours, theirs = (load_pretrained(folder / "policy")[1] for folder in (cut, whole))
    for name, value in ours.items():
        np.testing.assert_array_equal(np.array(value), np.array(theirs[name]), err_msg=name)
    assert train(cut, "--resume", "--lora-r", "4") == 2
    assert "--lora-r 4 differs from the setting of the run in" in capsys.readouterr().err


def test_adapters_do_not_fuse_with_another_model(tmp_path, capsys):
    assert train(tmp_path / "run", "--lora-r", "2") == 0
    capsys.readouterr()
    fuse = ["fuse", "--adapter", str(tmp_path / "run" / "policy"), "--output", str(tmp_path / "fused")]
    assert main([*fuse, "--model", "tiny-chat"]) == 2  # whose layers have the same shapes
    assert "trained with another base model" in capsys.readouterr().err
    assert not (tmp_path / "fused").exists()
    assert main(["fuse", "--adapter", str(TINY), "--output", str(tmp_path / "fused")]) == 2
    assert "There are no adapters in" in capsys.readouterr().err
    assert main([*fuse, "--model", "tiny"]) == 0
    ours, theirs = (load_pretrained(tmp_path / name)[1] for name in ("fused", "run/policy"))
    assert all(mx.array_equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize(("size", "lost"), [(1.0, False), (1e-4, True), (0.0, False)])
def test_fuse_says_what_rounding_takes_away(tmp_path, capsys, size, lost):
    """bfloat16 has 8 bits: a change a thousand times smaller than a weight is gone. float32 keeps it."""
    config, params = load_pretrained(TINY_CHAT, None)
    assert params["embedding.weight"].dtype == mx.bfloat16
    lora = {name: value + 0.1 * size if name.endswith("b") else value
            for name, value in init_lora(config, params, 2).items()}  # fmt: skip
    save_adapters(tmp_path / "lora", config, Adapters(lora, 1.0, str(TINY_CHAT), fingerprint(params)))
    fuse = ["fuse", "--adapter", str(tmp_path / "lora"), "--output"]
    assert main([*fuse, str(tmp_path / "half")]) == 0
    said = capsys.readouterr().err
    assert ("warning: In bfloat16 the merged weights differ" in said and "--dtype float32" in said) == lost
    assert main([*fuse, str(tmp_path / "whole"), "--dtype", "float32"]) == 0
    assert "warning" not in capsys.readouterr().err
    kept = load_pretrained(tmp_path / "whole", None)[1]
    assert {value.dtype for value in kept.values()} == {mx.float32}
    for name, value in params.items():
        expected = np.array(value.astype(mx.float32), np.float64)
        if (stem := name.removesuffix(".weight")) + ".lora_a" in lora:
            expected += (np.array(lora[f"{stem}.lora_a"], np.float64) @ np.array(lora[f"{stem}.lora_b"])).T
        np.testing.assert_allclose(kept[name], expected, atol=1e-6)
    assert main([*fuse, str(tmp_path / "rounded"), "--dtype", "bfloat16"]) == 0
    half, rounded = (load_pretrained(tmp_path / name, None)[1] for name in ("half", "rounded"))
    assert all(mx.array_equal(value, rounded[name]) for name, value in half.items())


def test_fuse_replaces_nothing_that_it_reads(tmp_path, capsys):
    base = tmp_path / "base"
    assert train(tmp_path / "full") == 0
    (tmp_path / "full" / "policy").rename(base)  # which the kit wrote, and so would replace
    assert train(tmp_path / "run", "--lora-r", "2", "--model", str(base)) == 0
    policy = tmp_path / "run" / "policy"
    before = {file: file.read_bytes() for folder in (base, policy) for file in folder.rglob("*.*")}
    for output in (base, policy, policy.parent, base / ".." / "base"):
        assert main(["fuse", "--adapter", str(policy), "--output", str(output)]) == 2
        assert "would replace " in capsys.readouterr().err
    for output in (policy / "peft", policy / "fused", base / "fused"):
        assert main(["fuse", "--adapter", str(policy), "--output", str(output)]) == 2
        assert "would be written into " in capsys.readouterr().err
    assert {file: file.read_bytes() for file in before} == before
    assert main(["generate", "--model", str(policy), "1+1="]) == 0


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A folder with a base that the kit wrote, adapters of it in "run/policy", and adapters of those in "last"."""
    folder = tmp_path_factory.mktemp("chain")
    assert train(folder / "run") == 0
    for name, base in (("middle", "run/policy"), ("last", "middle")):
        config, beside = load_pretrained(folder / base)
        lora = init_lora(config, beside, 2)
        save_adapters(folder / name, config, Adapters(lora, 1.0, str(folder / base), fingerprint(beside)))
    return folder


def test_fuse_does_not_replace_the_base_of_the_base(chain, capsys):
    for adapter, *model in (("last",), ("middle",), ("last", "--model", str(chain / "middle"))):
        for output in ("run/policy", "run"):
            command = ["fuse", "--adapter", str(chain / adapter), "--output", str(chain / output), *model]
            assert main(command) == 2
            assert "would replace their base model" in capsys.readouterr().err
    load_pretrained(chain / "last")


def test_a_run_does_not_replace_the_base_of_its_base(chain, capsys):
    assert train(chain / "run", "--lora-r", "2", "--model", str(chain / "last"), "--overwrite") == 2
    assert f"needs {chain / 'run' / 'policy'}, which the run would replace" in capsys.readouterr().err
    load_pretrained(chain / "last")


def test_a_run_does_not_write_over_its_base(tmp_path, capsys):
    """Adapters whose base is gone are worth nothing."""
    assert train(tmp_path / "run") == 0
    weights = (tmp_path / "run" / "policy" / "model.safetensors").read_bytes()
    capsys.readouterr()
    again = ["--lora-r", "2", "--model", str(tmp_path / "run" / "policy"), "--overwrite"]
    assert train(tmp_path / "run", *again) == 2
    assert "which the run would replace in" in capsys.readouterr().err
    assert (tmp_path / "run" / "policy" / "model.safetensors").read_bytes() == weights


def test_a_policy_that_overflows_is_not_written(tmp_path, capsys):
    config, params = load_pretrained(TINY)
    lora = {name: mx.full(value.shape, 1e30) for name, value in init_lora(config, params, 2).items()}
    save_adapters(tmp_path / "adapters", config, Adapters(lora, 1.0, str(TINY)))
    assert main(["fuse", "--adapter", str(tmp_path / "adapters"), "--output", str(tmp_path / "fused")]) == 2
    assert "NaN or infinite" in capsys.readouterr().err
    assert not (tmp_path / "fused").exists()


def test_a_quantized_model_from_one_command(tmp_path, capsys):
    from mlx_lm import convert

    convert(str(TINY), str(tmp_path / "q"), quantize=True, q_bits=8, q_group_size=64, dtype="float32")
    assert train(tmp_path / "all", "--model", str(tmp_path / "q")) == 2
    assert "quantized parameters cannot be trained. Train adapters" in capsys.readouterr().err
    assert train(tmp_path / "run", "--model", str(tmp_path / "q"), "--lora-r", "4") == 0
    fuse = ["fuse", "--adapter", str(tmp_path / "run" / "policy"), "--output", str(tmp_path / "fused")]
    assert main(fuse) == 0
    config, params = load_pretrained(tmp_path / "fused", dtype=None)
    validate_params(params, config)
    assert main(["generate", "--model", str(tmp_path / "q"), "12+34="]) == 0
    assert "12+34=" in capsys.readouterr().out
