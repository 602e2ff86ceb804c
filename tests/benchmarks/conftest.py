"""Speed and memory against peers: the same model, the same work, the same process, in turns.

    make bench                                                  everything, with the table at the end
    python -m pytest tests/benchmarks -k "generation and tiny"  one of them

`race` times the kit and its peers in turns, so that whatever else the machine does falls on all of them alike. The
fastest of many turns is the fairest single number, the median what a user meets; the table has both. No time is ever
asserted. With `--benchmark-disable` each test runs the work once and checks that everybody did the same.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest
import torch
from transformers import Qwen3Config as HFConfig
from transformers import Qwen3ForCausalLM

from mlx_grpo_kit.qwen3 import Qwen3Config, load_pretrained
from mlx_grpo_kit.qwen3.tokenizer import save_character_tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.runtime.blas import reason as blas_reason

SHAPES = {
    "tiny": dict(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
    ),
    "m": dict(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
    ),
}

WARMUP_ROUNDS = 2  # compilers, caches and thread pools start there


@dataclass(frozen=True)
class Model:
    """One set of random weights for everybody: `folder` is a Hugging Face folder with a character tokenizer."""

    name: str
    folder: Path
    config: Qwen3Config
    params: dict[str, mx.array]

    def transformers(self) -> Qwen3ForCausalLM:
        return Qwen3ForCausalLM.from_pretrained(self.folder)

    def mlx_lm(self):
        from mlx_lm.utils import load_model

        return load_model(self.folder)[0]


def pytest_generate_tests(metafunc):
    # Without measuring, the smaller model shows as well that everybody does the same work.
    if "model" in metafunc.fixturenames:
        names = ["tiny"] if metafunc.config.getoption("benchmark_disable") else list(SHAPES)
        metafunc.parametrize("model", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def model(request, tmp_path_factory) -> Model:
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    Qwen3ForCausalLM(HFConfig(tie_word_embeddings=True, **SHAPES[request.param])).save_pretrained(folder)
    save_character_tokenizer(folder)  # 64 characters: enough for either vocabulary
    return Model(request.param, folder, *load_pretrained(folder))


@pytest.fixture
def race(benchmark) -> Callable:
    """Time the kit and its peers in turns; returns what the kit's last run returned.

    ours, peers: functions that do the work once. A peer that times itself returns its seconds as a float.
    targets: how many times a peer's speed the kit should reach, by the peer's name.
    rate: what one run does ("tokens/s", 2048), where a rate reads better than milliseconds.
    collect_garbage: leave Python's garbage collector on, where its work belongs to what is measured.
    """

    def run(
        ours: Callable[[], object],
        peers: Mapping[str, Callable[[], object]],
        *,
        rounds: int,
        targets: Mapping[str, float],
        rate: tuple[str, float] | None = None,
        collect_garbage: bool = False,
    ) -> object:
        seconds: dict[str, list[float]] = {name: [] for name in peers}

        def every_peer_once() -> None:
            for name, peer in peers.items():
                gc.collect()
                started = time.perf_counter()
                measured = peer()
                elapsed = time.perf_counter() - started
                seconds[name].append(measured if isinstance(measured, float) else elapsed)
            gc.collect()

        if not collect_garbage:
            gc.disable()
        try:
            result = benchmark.pedantic(ours, setup=every_peer_once, rounds=rounds, warmup_rounds=WARMUP_ROUNDS)
        finally:
            gc.enable()
        if benchmark.enabled:
            rows = [_row("the kit", list(benchmark.stats.stats.data), None)]
            rows += [_row(name, seconds[name][WARMUP_ROUNDS:], targets.get(name)) for name in peers]
            benchmark.extra_info.update(rows=rows, rate=rate)
        return result

    return run


def _row(name: str, seconds: list[float], target: float | None) -> dict:
    return {"name": name, "min": min(seconds), "median": median(seconds), "target": target}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Put what a benchmark found where the summary sees it, from another process too."""
    report = yield
    benchmark = getattr(item, "funcargs", {}).get("benchmark")
    if call.when == "call" and benchmark is not None and benchmark.extra_info:
        report.user_properties.append(("benchmark", dict(benchmark.extra_info)))
    return report


def pytest_terminal_summary(terminalreporter):
    """Everything measured, as one table that a person reads."""
    found = [
        (report.nodeid.rsplit("/")[-1], dict(report.user_properties)["benchmark"])
        for report in terminalreporter.stats.get("passed", [])
        if "benchmark" in dict(report.user_properties)
    ]
    if not found:
        return
    terminalreporter.section("against peers")
    terminalreporter.write_line(f"{mx.default_device()}, {torch.get_num_threads()} threads, BLAS: {blas_reason}")
    for title, info in found:
        terminalreporter.write_line(f"\n{title.removeprefix('test_')}")
        for line in _table(info):
            terminalreporter.write_line("  " + line)
        for name, value in info.get("notes", {}).items():
            terminalreporter.write_line(f"  {name}: {value}")


def _table(info: dict) -> list[str]:
    if "rows" not in info:
        return []
    unit, work = info["rate"] or ("ms", None)

    def number(seconds: float) -> str:
        return f"{seconds * 1e3:10.1f}" if work is None else f"{work / seconds:10,.0f}"

    ours = info["rows"][0]
    lines = [f"{unit:40}{'best':>10}{'median':>10}   the kit's speed: of best, of median"]
    for row in info["rows"]:
        line = f"{row['name']:40}{number(row['min'])}{number(row['median'])}"
        if row is not ours:
            line += f"{row['min'] / ours['min']:12.2f}x{row['median'] / ours['median']:10.2f}x"
        if row["target"]:
            reached = row["min"] / ours["min"] >= row["target"]
            line += f"   {'at least' if reached else 'SHORT OF'} {row['target']:g}x"
        lines.append(line)
    return lines
