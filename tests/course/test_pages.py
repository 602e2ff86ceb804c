"""README and guides: every block of Python runs, every command has options that exist, every link and path resolves."""

import os
import re
import shlex
import shutil
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlx_grpo_kit.assets import TINY, TINY_CHAT
from mlx_grpo_kit.cli.parser import MODEL, TASK, build_parser
from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.book import website
from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.record import PLACE
from mlx_grpo_kit.files import MANIFEST
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.grpo.recipe import MADE_BY
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Addition
from mlx_grpo_kit.tasks.catalogue import TASKS
from tests.every import every

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path for path in (ROOT / "README.md", *website.GUIDES)}
TEXTS = {name: path.read_text(encoding="utf-8") for name, path in PAGES.items()}
STEPS = 2


def blocks(text, *languages):
    return re.findall(rf"```(?:{'|'.join(languages)})\n(.*?)```", text, flags=re.S)


PYTHON = {name: found for name, text in TEXTS.items() if (found := blocks(text, "python"))}
COMMANDS = [
    (name, line.partition("  #")[0].partition(" > ")[0].strip())
    for name, text in TEXTS.items()
    for block in blocks(text, "sh")
    for line in block.splitlines()
]


@pytest.fixture
def few_steps(monkeypatch):
    """Every training loop ends after a few steps of eight completions."""
    train, start = GRPOTrainer.train, GRPOConfig.__init__

    def short(self, max_steps):
        return train(self, self.step + STEPS)

    def small(self, **settings):
        is_replaced = len(settings) == len(fields(GRPOConfig))  # then the sizes follow from small ones
        sizes = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 4}
        start(self, **settings | ({} if is_replaced else sizes))

    monkeypatch.setattr(GRPOTrainer, "train", short)
    monkeypatch.setattr(GRPOConfig, "__init__", small)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder with a small Qwen3-0.6B and a file of problems, and the two loggers that need a package or a server."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(TINY_CHAT, "Qwen3-0.6B")
    rows = [f'{{"question": "What is {n}+{n + 1}?", "answer": {2 * n + 1}}}\n' for n in range(10, 60)]
    Path("problems.jsonl").write_text("".join(rows))
    logged = []
    wandb = SimpleNamespace(
        init=lambda project, config: SimpleNamespace(log=lambda metrics, step: logged.append((step, metrics)))
    )
    writer = SimpleNamespace(add_scalar=lambda tag, value, step: logged.append((step, {tag: float(value)})))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=lambda folder: writer))
    return logged


def before(name):
    """The names that a page uses without defining them: they come from other pages."""
    if name == "course.md":
        return {"my_function": lambda *inputs: None}
    if name != "exchange.md":
        return {}
    config, params = load_pretrained(TINY)
    return {
        "GRPOTrainer": GRPOTrainer, "config": config, "params": params, "tokenizer": load_tokenizer(TINY),
        "task": Addition(), "args": GRPOConfig(),
    }  # fmt: skip


@pytest.mark.parametrize("page", PYTHON)
def test_the_blocks_of_a_page_run_one_after_the_other(page, few_steps, elsewhere, capsys):
    names = before(page)
    for block in PYTHON[page]:
        exec(compile(block, page, "exec"), names)
        if page == "exchange.md":
            assert all(step.metrics["grad_norm"] > 0 for step in names["trainer"].train(1))
        if "run = dashboard" in block:
            names["run"].stop()
            names["run"].wait()


def test_the_lines_for_colab_keep_progress_and_answers_on_the_drive(tmp_path, monkeypatch):
    [lines] = [block for block in blocks(TEXTS["cloud.md"], "") if "drive.mount" in block]
    monkeypatch.setenv(PLACE, "")
    monkeypatch.setitem(sys.modules, "google", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "google.colab", SimpleNamespace(drive=SimpleNamespace(mount=os.makedirs)))
    exec(lines.replace("/content", str(tmp_path)), {})
    assert check("01.1", find("01.1").solution)
    kept = {path.name for path in (tmp_path / "drive").rglob("*.json")}
    assert kept == {"progress.json", "answers.json", "tries.json"}


def test_there_are_blocks_to_run():
    assert {"README.md", "training.md", "real_qwen3.md", "backends.md", "exchange.md", "course.md"} <= set(PYTHON)
    assert sum(map(len, PYTHON.values())) > 20


@every("name", [*MADE_BY, *TASKS])
def test_every_model_and_task_is_listed(name):
    assert f"`{name}`" in TEXTS["training.md"]
    assert name in (MODEL if name in MADE_BY else TASK)


def arguments(command):
    """The arguments of the kit's own program in a command line; None for another program."""
    words = shlex.split(command)
    if words[:2] == ["make", "train"]:
        return ["train", "--output", "outputs/run", *shlex.split(words[2].removeprefix("ARGS=") if words[2:] else "")]
    if Path(words[0]).name == "mlx-grpo-kit":
        return words[1:]
    return words[words.index("mlx_grpo_kit") + 1 :] if "mlx_grpo_kit" in words else None


OURS = [(page, command) for page, command in COMMANDS if arguments(command)]


@every(("page", "command"), OURS)
def test_a_command_has_options_that_exist(page, command):
    parser, _ = build_parser()
    given = arguments(command)
    if given[-1] == "--help":
        assert given[0] in build_parser()[1]
        return
    options = parser.parse_args(given)  # ends with an error for an option or a value that it does not know
    assert options.command == given[0]


@every(("page", "command"), [each for each in COMMANDS if each not in OURS])
def test_a_command_of_another_program_is_one_we_know(page, command):
    """For other programs, the make targets, modules and files exist."""
    words = shlex.split(command)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), flags=re.M), command
    elif "-m" in words and words[words.index("-m") + 1] != "pip":
        assert (ROOT / (words[words.index("-m") + 1].replace(".", "/") + ".py")).is_file()
    else:
        assert words[0] in ("hf", "conda", "git", "cp") or words[1:4] == ["-m", "pip", "install"], command
    extras = re.findall(r"\.\[(\w+)\]", command)
    assert all(f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text() for extra in extras)


@every("page", [name for name, text in TEXTS.items() if "[course]" in text])
def test_a_page_that_installs_the_course_says_what_torch_brings_on_linux(page):
    assert "brings 5 GB of CUDA" in TEXTS[page]
    assert "index-url https://download.pytorch.org/whl/cpu" in TEXTS[page]


@every("page", TEXTS)
def test_options_in_the_text_are_ours_or_another_programs(page):
    """In a table of another project's names, only the kit's own column counts."""
    ours = {option for parser in build_parser()[1].values() for option in parser._option_string_actions}
    # The last two are those of make bench and make docs.
    theirs = {"--hosts", "--local-dir", "--no-deps", "--extra-index-url", "--quick", "--no-solutions"}
    text = TEXTS[page]
    if page in ("coming_from.md", "names.md"):
        text = re.sub(r"^\| .*? \| ", "| ", text, flags=re.M)
    text = text.replace("`train --iters 100`", "")  # an example of an option that the kit does not have
    found = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", re.sub(r"```.*?```", "", text, flags=re.S)))
    assert found <= ours | theirs


@every("page", [*TEXTS, "CONTRIBUTING.md"])
def test_links_and_paths_resolve(page):
    path = PAGES.get(page, ROOT / page)
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match("https?:", target):
            file, _, anchor = target.partition("#")
            assert (path.parent / file).is_file(), target
            assert not anchor, f"{target}: link the page, whose headings may change"
    named = re.findall(r"`((?:mlx_grpo_kit|tests|notebooks)/[\w/.]+)`", text)
    modules = re.findall(r"`(mlx_grpo_kit(?:\.\w+)+)`", text.replace(f"`{MANIFEST}`", ""))
    named += [module.replace(".", "/") for module in modules]
    missing = [name for name in named if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()]
    assert not [name for name in missing if "NN" not in name]


def test_every_guide_has_a_place_in_the_book_and_a_link_in_the_readme():
    folder = website.GUIDES[0].parent
    assert {path.name for path in folder.glob("*.md")} == {guide.name for guide in website.GUIDES}
    for guide in website.GUIDES:
        assert f"]({guide.relative_to(ROOT)})" in TEXTS["README.md"], guide.name


def test_the_readme_is_short_and_names_its_limits():
    assert len(TEXTS["README.md"].splitlines()) <= 150
    limits = TEXTS["README.md"].partition("## Limits")[2].partition("\n## ")[0]
    assert all(word in limits for word in ("Dense Qwen3", "turn", "CPU"))


def test_pictures_exist_and_have_alt_texts():
    pictures = [
        (path.parent / target, words)
        for name, path in PAGES.items()
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", TEXTS[name])
    ]
    assert {path.name for path, _ in pictures} == {path.name for path in website.ON_GITHUB.glob("images/*")}
    assert all(path.is_file() and len(words) > 20 for path, words in pictures)
