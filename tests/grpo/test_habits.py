"""What TRL, PEFT and mlx-lm call things: each such name is refused with the kit's own, which there is."""

import dataclasses
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

from mlx_grpo_kit.cli import main
from mlx_grpo_kit.cli.parser import build_parser
from mlx_grpo_kit.generation import SamplingConfig
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, compute_grpo_loss
from mlx_grpo_kit.grpo.recipe import model_folder
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.runtime.habits import FAMILIES, HABITS, not_known
from mlx_grpo_kit.tasks import RowsTask
from tests.every import every

SETTINGS = {field.name for field in dataclasses.fields(GRPOConfig)}
# Names of earlier versions, of other classes (EarlyStoppingCallback, AutoModel, mlx-lm's lora section), and of people.
# Of other libraries: verl's, OpenRLHF's, Accelerate's, Lightning's.
OTHERS = {
    "beta1", "beta2", "clip_range", "cliprange", "epsilon_low", "early_stopping_patience", "grad_clip", "gradient_clip",
    "gradient_clipping", "kl_beta", "kl_coef", "load_in_4bits", "local_rank", "logging_dir", "lora_parameters",
    "lora_rank", "lr", "max_length", "max_new_tokens", "max_prompt_length", "mixed_precision", "num_epochs", "r",
    "reward_functions", "system", "system_prompt", "target_modules", "torch_dtype", "warmup_ratio",
}  # fmt: skip


def options_of(package, file):
    """The options of a peer's command line, read from its source."""
    folder = Path(importlib.util.find_spec(package).origin).parent
    return {name.replace("-", "_") for name in re.findall(r'"--([a-z0-9-]+)"', (folder / file).read_text())}


@pytest.fixture(scope="module")
def peers():
    """All names that TRL, PEFT, mlx-lm and mlx-lm-lora have."""
    import peft
    import trl

    configs = (trl.GRPOConfig, trl.ModelConfig, peft.LoraConfig)
    names = {field.name for config in configs for field in dataclasses.fields(config)}
    names |= set(inspect.signature(trl.GRPOTrainer.__init__).parameters)
    for file in ("lora.py", "generate.py", "fuse.py"):
        names |= options_of("mlx_lm", file)
    return names | options_of("mlx_lm_lora", "train.py")


def test_every_name_is_a_peers_and_none_is_ours(peers):
    assert set(HABITS) <= peers | OTHERS
    assert not set(HABITS) & SETTINGS
    for start in FAMILIES:
        assert [name for name in peers if name.startswith(start) and name not in HABITS], start
        assert not [name for name in SETTINGS if name.startswith(start) and name != "entropy_coef"], start


def refusal(call):
    """The error of a call as text; '' if there is none."""
    try:
        call()
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def test_every_setting_of_trl_works_or_is_refused_with_the_way_out():
    """With TRL's own default, so that a copied list of settings is accepted or explained name by name."""
    import trl

    works = set()
    for field in dataclasses.fields(trl.GRPOConfig):
        setting = {field.name: getattr(trl.GRPOConfig, field.name, None)}
        words = refusal(lambda setting=setting: GRPOConfig(**setting))
        ours = rf"GRPOConfig has no setting '{field.name}'; here: .*\.|{field.name} is .*; expected .*"
        assert not words or re.fullmatch(ours, words), (field.name, words)
        works |= set() if words else {field.name}
    assert works <= SETTINGS
    assert len(works) > 30


def test_every_argument_of_trls_trainer_works_or_is_refused_with_the_way_out():
    import trl

    for name in [*inspect.signature(trl.GRPOTrainer.__init__).parameters][1:]:
        for make in (GRPOTrainer, RowsTask):
            words = refusal(lambda name=name, make=make: make(**{name: None}))
            is_ours = name in inspect.signature(make).parameters
            assert words.startswith(f"{make.__name__}(") if is_ours else "; here: " in words, (make, name, words)


def test_calls_of_trl_are_answered_with_the_call_here(tmp_path):
    import trl

    settings = trl.GRPOConfig(output_dir=str(tmp_path), bf16=False)
    for call, words in (
        (lambda: GRPOTrainer.train(None), r"train(max_steps): missing a required argument: 'max_steps'; pass it to tr"),
        (lambda: GRPOTrainer.train(None, resume_from_checkpoint=True), "; here: GRPOTrainer.resume(folder, task)"),
        (lambda: GRPOTrainer.evaluate(None, eval_dataset=[]), "; here: RowsTask(rows, held_out_rows=test_rows)"),
        (lambda: GRPOTrainer("Qwen/Qwen3-0.6B", [len]), "GRPOTrainer(config, params, tokenizer, task, args, world"),
        (lambda: compute_grpo_loss(None, None, None, None, kl_coef=0.1), "no setting 'kl_coef'; here: beta; --beta"),
        (lambda: GRPOTrainer({}, {}, None, None, settings), "GRPOConfig; expected mlx_grpo_kit.grpo.GRPOConfig"),
    ):
        assert words in refusal(call)


def test_values_of_trl_have_its_meaning():
    from transformers import SchedulerType
    from transformers.training_args import OptimizerNames

    assert GRPOConfig(top_p=None, top_k=0, min_p=None).sampling(5) == SamplingConfig(5, top_k=0)
    assert GRPOConfig(lr_scheduler_type=SchedulerType.COSINE, optim=OptimizerNames.ADAFACTOR).optim == "adafactor"
    for name in OptimizerNames:
        words = refusal(lambda name=name: GRPOConfig(optim=name))
        assert ("here write 'adamw'" in words) == ("adamw" in name.value), name
        assert not words or words.startswith(f"optim is {name.value!r}; expected one of 'adamw', 'adafactor'"), words


def test_a_peers_name_is_never_taken_for_a_slip(peers):
    """Such a name means something, and seldom what the nearest of ours means: deepspeed is no seed."""
    for name in sorted((peers | OTHERS) - SETTINGS):
        assert not not_known(name, SETTINGS).startswith("did you mean"), name
    for command, parser in build_parser()[1].items():
        options = set(parser._option_string_actions)
        for name in sorted(peers | OTHERS):
            option = "--" + name.replace("_", "-")
            assert option in options or not not_known(option, options).startswith("did you mean"), (command, option)


def test_what_they_are_told_to_write_exists():
    options = {option for parser in build_parser()[1].values() for option in parser._option_string_actions}
    words = SETTINGS | {"mlx_grpo_kit", "load_pretrained", "load_tokenizer", "save_checkpoint", "save_pretrained"}
    words |= {"max_steps", "reward_funcs", "held_out_rows", "test_rows", "my_task", "mlx_lm", "estimate_memory"}
    words |= {"environment_factory", "num_samples", "set_default_device"}
    for name, way in (HABITS | FAMILIES).items():
        assert set(re.findall(r"--[a-z][a-z-]+", way)) <= options, name
        assert set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", way)) <= words, name
        assert set(re.findall(r"trainer\.(\w+)", way)) <= set(dir(GRPOTrainer)), name


@every("name", HABITS)
def test_a_setting_by_another_name_is_refused_with_ours(name):
    with pytest.raises(TypeError, match=f"GRPOConfig has no setting '{name}'; here: {re.escape(HABITS[name])}"):
        GRPOConfig(**{name: 1})


def test_the_way_a_trainer_is_made_elsewhere_is_answered_with_the_way_here():
    with pytest.raises(TypeError, match=r"GRPOTrainer has no argument 'model'; here: config, params = load_pretrained"):
        GRPOTrainer(model="Qwen/Qwen3-0.6B", reward_funcs=[len], train_dataset=[])
    with pytest.raises(TypeError, match="no argument 'callbacks'; here: the trainer is an iterator"):
        GRPOTrainer(None, None, None, None, callbacks=[])
    with pytest.raises(TypeError, match=r"no argument 'arg'; did you mean args\?"):
        GRPOTrainer(None, None, None, None, arg=GRPOConfig())
    assert list(inspect.signature(GRPOTrainer).parameters)[:5] == ["config", "params", "tokenizer", "task", "args"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--report-to=wandb", "unknown option --report-to; here: the trainer is an iterator"),
        ("--iters", "unknown option --iters; use --max-steps."),
        ("--bf16", "unknown option --bf16; use --dtype bfloat16."),
        ("--lr", "unknown option --lr; use --learning-rate."),
        ("--temp", "unknown option --temp; use --temperature."),
        ("--reward-functions-file", "unknown option --reward-functions-file; use --task my_task.py:MyTask."),
        ("--max-step", "unknown option --max-step; did you mean --max-steps?"),
        ("--zzzzz", "unknown option --zzzzz; see --help."),
        ("--system", "unknown option --system; here: RowsTask(rows, system=...); generate --chat"),
        ("--local-rank", "unknown option --local-rank; here: train --processes N"),
        ("--fsdp", "unknown option --fsdp; here: each process of train holds the whole policy"),
        ("-q", "unknown option -q; see --help."),
    ],
)
def test_an_option_by_another_name(option, words, capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["train", "--output", str(tmp_path / "out"), option, "5"])
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("gradient_clip", "max_grad_norm"), ("grad_clip", "max_grad_norm"), ("adam_epsilon", "AdamW's"),
        ("deepspeed", "--processes"), ("do_train", "trainer.train"), ("kl_coef", "beta"), ("num_epochs", "max_steps"),
        ("max_new_tokens", "max_completion_length"), ("lr", "learning_rate"), ("clip_range", "epsilon"),
        ("mixed_precision", "bf16"),
    ],
)  # fmt: skip
def test_names_whose_meaning_another_name_has(name, ours):
    with pytest.raises(TypeError, match=f"no setting '{name}'; here: .*{ours}"):
        GRPOConfig(**{name: 1})


@pytest.mark.parametrize(
    ("setting", "value", "ours"),
    [("scale_rewards", False, "none"), ("scale_rewards", True, "group"), ("optim", "AdamW_torch", "adamw")],
)
def test_values_that_settings_have_elsewhere(setting, value, ours):
    with pytest.raises(ValueError, match=f"{setting} is {value!r}; expected one of .* here write '{ours}'"):
        GRPOConfig(**{setting: value})
    GRPOConfig(**{setting: ours})
    with pytest.raises(ValueError, match=rf"{setting} is 'x'; expected one of [^.]*\.$"):
        GRPOConfig(**{setting: "x"})


def test_all_unknown_names_are_in_one_error(capsys, tmp_path):
    with pytest.raises(TypeError) as error:
        GRPOConfig(lr=1e-4, kl_coef=0.1, epsilom=0.2, zzz=1, beta=0.1)
    names = re.findall(r"^GRPOConfig has no setting '(\w+)'; (here|did you mean epsilon|help)", str(error.value), re.M)
    assert names == [("lr", "here"), ("kl_coef", "here"), ("epsilom", "did you mean epsilon"), ("zzz", "help")]
    with pytest.raises(SystemExit):
        main(["train", "--output", str(tmp_path / "out"), "--lr", "1e-4", "--bf16", "--betta=0.1", "--lr", "2"])
    [line] = capsys.readouterr().err.splitlines()
    assert re.findall(r"unknown option (\S+); (use|did you mean --beta)", line) == [
        ("--lr", "use"), ("--bf16", "use"), ("--betta", "did you mean --beta"),
    ]  # fmt: skip


@pytest.mark.parametrize("load", [load_pretrained, load_tokenizer])
def test_a_model_by_its_name(load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    download = "hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B"
    with pytest.raises(FileNotFoundError, match=f"Nothing is downloaded here.*`{re.escape(download)}`"):
        load("Qwen/Qwen3-0.6B")
    for name in ("tiny", "tiny-chat"):
        words = f'There is no folder {name}. The kit\'s own model of this name is model_folder("{name}")'
        with pytest.raises(FileNotFoundError, match=re.escape(words)):
            load(name)
        load(model_folder(name))
    (tmp_path / "outputs").mkdir()
    for name in ("outputs/policy", "nowhere", "a/b/c", "../a/b"):
        with pytest.raises(FileNotFoundError, match=r"There is no folder .*Pass a Hugging Face model folder"):
            load(name)


def test_a_model_by_its_name_in_the_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command in (["train", "--output", "out", "--model"], ["generate", "1", "--model"]):
        assert main([*command, "Qwen/Qwen3-0.6B"]) == 2
        assert "`hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B`" in capsys.readouterr().err


def test_an_exact_habit_goes_before_a_near_miss():
    assert not_known("max_prompt_length", ["max_completion_length"]).startswith("here: prompts are never truncated")
    assert not_known("max_completion_lenght", ["max_completion_length"]) == "did you mean max_completion_length?"
    assert not_known("zzz", ["beta"]) == ""
