"""Speed and memory against peers: the same model and the same work, each contestant in a process of its own.

    make bench                            everything, with the table at the end; alone on the machine
    make bench ARGS=--quick               the small model, few rounds and no race: two minutes
    make bench ARGS="-k generation"       one of them

The fastest of many turns is the fairest single number, the median what a user meets; the table has both. No time is
ever asserted. With `--benchmark-disable` each test does the work once, in the test's own process, and checks that
everybody did the same.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.contest import Contestant, Result, contest, contest_apart, timed
from tests.benchmarks.models import SHAPES, Model


def pytest_generate_tests(metafunc):
    # A module may name its own SIZES. Without measuring, the smallest shows as well that everybody does the same work.
    if "model" in metafunc.fixturenames:
        names = getattr(metafunc.module, "SIZES", ("tiny", "m"))
        in_full = not metafunc.config.getoption("benchmark_disable") and not metafunc.config.getoption("quick")
        metafunc.parametrize("model", names if in_full else names[:1], indirect=True, scope="session")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("benchmark_disable"):
        for item in items:
            item.add_marker(pytest.mark.timeout(7200))


@pytest.fixture(scope="session")
def model(request, tmp_path_factory) -> Model:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from mlx_grpo_kit.grpo.recipe import SMOLLM2_NAME, place_of
    from mlx_grpo_kit.qwen3.tokenizer import save_character_tokenizer

    if request.param == SMOLLM2_NAME:
        if not place_of(SMOLLM2_NAME).is_dir():
            pytest.skip("SmolLM2 is not here: python -m mlx_grpo_kit get smollm2")
        return Model(request.param, place_of(SMOLLM2_NAME))
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(tie_word_embeddings=True, **SHAPES[request.param])).save_pretrained(folder)
    save_character_tokenizer(folder)  # 64 characters: enough for every vocabulary
    return Model(request.param, folder)


@dataclass
class Bench:
    """Times contestants, or has each of them do the work once where nothing is measured.

    Attributes:
        benchmark: pytest-benchmark's fixture, which keeps the results with `--benchmark-json`.
        quick: whether a rough answer will do.
    """

    benchmark: Any
    quick: bool

    @property
    def measuring(self) -> bool:
        return self.benchmark.enabled

    def __call__(
        self,
        contestants: Mapping[str, Contestant],
        *,
        rounds: int,
        targets: Mapping[str, float] | None = None,
        rate: tuple[str, float] | None = None,
        libraries: Sequence[str] = (),
        apart: bool = False,
        **options: Any,
    ) -> dict[str, Result]:
        """The results by the contestants' names. Every other one is compared with the first, which is the kit.

        Args:
            contestants: who takes part, by name.
            rounds: how many turns each of them has.
            targets: how many times a peer's speed the kit should reach, by the peer's name.
            rate: what one turn does ("tokens/s", 2048), where a rate reads better than milliseconds.
            libraries: what every process imports.
            apart: `contest_apart` rather than `contest`.
            options: of that function.
        """
        if not self.measuring:
            return self.benchmark(lambda: {name: _rehearse(each) for name, each in contestants.items()})
        hold = contest_apart if apart else contest
        if self.quick:
            rounds, options = min(rounds, 3), {**options, "warmup_rounds": 1}
        options |= {"rounds": rounds, "libraries": libraries}
        results = self.benchmark.pedantic(hold, (contestants,), options)
        rows = [result.row(name, (targets or {}).get(name)) for name, result in results.items()]
        self.benchmark.extra_info.update(rows=rows, rate=rate)
        return results

    def note(self, name: str, value: str) -> None:
        """Add a line below the table."""
        if self.measuring:
            self.benchmark.extra_info.setdefault("notes", {})[name] = value


def _rehearse(contestant: Contestant) -> Result:
    """One turn: in this process, unless the contestant needs one of its own."""
    if contestant.environment or contestant.first != Contestant.first:
        return contest({"": contestant}, rounds=1, warmup_rounds=0)[""]
    worker = contestant.make(**contestant.options)
    return Result(seconds=[timed(worker)], evidence=[worker.evidence()])


@pytest.fixture
def bench(request, benchmark) -> Bench:
    request.node.user_properties.append(("benchmark", benchmark.extra_info))
    return Bench(benchmark, request.config.getoption("quick"))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    """Everything measured, as one table in Markdown."""
    found = [
        (report.nodeid.rsplit("::")[-1].removeprefix("test_"), dict(report.user_properties)["benchmark"])
        for report in terminalreporter.stats.get("passed", [])
        if dict(report.user_properties).get("benchmark")
    ]
    if not found:
        return
    terminalreporter.section("against peers")
    for line in [*_machine(), "", *_table(found), "", *_notes(found)]:
        terminalreporter.write_line(line)


def _machine() -> list[str]:
    import torch

    from mlx_grpo_kit.runtime import blas

    mkl = "MKL" if torch.backends.mkl.is_available() else "its own"
    products = blas.bound.name if blas.bound else f"its own ({blas.reason})"
    return [
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()}; Python {platform.python_version()}, torch "
        f"{torch.__version__} on {torch.get_num_threads()} threads, {blas.mx.default_device()}.",
        f"BLAS of the kit's MLX and of its MLX peers: {products}. BLAS of torch: {mkl}.",
        "Every contestant works in a process of its own; they take turns. Spread: the distance between the quartiles, "
        "as a share of the median. MiB: the peak of the process's memory; in brackets what its imports took of it.",
    ]


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
        return next(line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        brand = platform.system() == "Darwin" and subprocess.run(asked, capture_output=True, text=True, check=False)
        return brand.stdout.strip() if brand else platform.machine()


def _table(found: list[tuple[str, dict]]) -> list[str]:
    lines = [
        "| work | contestant | best | median | spread | MiB | the kit's speed, of best / median |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for title, info in found:
        unit, work = info["rate"] or ("ms", None) if "rows" in info else (None, None)
        ours, *_ = info.get("rows", [None])
        for row in info.get("rows", []):
            ratio = ""
            if row is not ours:
                ratio = f"{row['best'] / ours['best']:.2f}x / {row['median'] / ours['median']:.2f}x"
            if row["target"]:
                reached = row["best"] / ours["best"] >= row["target"]
                ratio += f", {'at least' if reached else 'short of'} {row['target']:.2g}x"
            cells = [
                title if row is ours else "",
                row["name"],
                *(_number(row[which], unit, work) for which in ("best", "median")),
                f"{row['spread']:.0%}",
                f"{row['memory']:,.0f} ({row['libraries']:,.0f})",
                ratio,
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _number(seconds: float, unit: str, work: float | None) -> str:
    if work is not None:
        return f"{work / seconds:,.0f} {unit}"
    return f"{seconds:,.1f} s" if seconds >= 10 else f"{seconds * 1e3:,.1f} ms"


def _notes(found: list[tuple[str, dict]]) -> list[str]:
    notes = [(title, name, value) for title, info in found for name, value in info.get("notes", {}).items()]
    return [f"- {title}, {name}: {value}" for title, name, value in notes]
