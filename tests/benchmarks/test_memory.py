"""Memory of GRPO training, in a process of its own: the peak of a step, and that a longer run holds no more.

The step is that of test_step.py. Rewards differ within every group, so every step computes all gradients.

After a step of the 5.2M model the C library holds some 200 MiB that the next step uses again, and it takes 30 steps
until it holds all of them. `malloc_trim(0)` after each step gives them back, as does MALLOC_MMAP_THRESHOLD_=65536 at
once, but the peak stays the same, and the pages that are asked for anew cost 5% and 8% of a step's CPU time.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from tests.benchmarks.contest import peak_memory
from tests.benchmarks.test_step import STEP, Kit


def train(model, first: int, last: int) -> dict[str, float]:
    """MiB by what they are, after the steps `first` and `last` and at most."""
    import psutil

    from mlx_grpo_kit.runtime import mx

    process, mib = psutil.Process(), 2**20

    def now(when: str) -> dict[str, float]:
        held = {"resident": process.memory_info().rss / mib, "MLX arrays": mx.get_active_memory() / mib}
        return {f"{when}, {name}": value for name, value in held.items()}

    kit = Kit(model, STEP)
    found = now("before")
    for number in range(1, last + 1):
        kit.turn()
        assert kit.step.metrics["frac_reward_zero_std"] == 0
        if number in (first, last):
            found |= now(f"after {number} steps")
    return found | {"peak, resident": peak_memory(), "peak, MLX arrays": mx.get_peak_memory() / mib}


def test_memory_of_training(model, bench, benchmark):
    first, last = {"tiny": (50, 300), "m": (50, 100)}[model.name] if bench.measuring and not bench.quick else (3, 8)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        found = benchmark.pedantic(lambda: process.submit(train, model, first, last).result())
    for name, value in found.items():
        bench.note(name, f"{value:.1f} MiB")
    assert found[f"after {last} steps, MLX arrays"] <= found[f"after {first} steps, MLX arrays"] + 0.1
    assert found[f"after {last} steps, resident"] <= found[f"after {first} steps, resident"] + 30
