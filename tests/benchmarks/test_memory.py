"""Memory of GRPO training, in a process of its own: the peak of a step, and that 300 steps hold no more than 50.

The step is that of test_step.py: 4 prompts of 12 tokens, 8 completions of exactly 32 each. Rewards differ within every
group, so every step computes all gradients.

After a step of the 5.2M model the C library holds some 200 MiB that the next step uses again. `malloc_trim(0)` after
each step gives them back, as does MALLOC_MMAP_THRESHOLD_=65536 at once, but the peak stays the same, and the pages that
are asked for anew cost 5% and 8% of a step's CPU time.
"""

import json
import subprocess
import sys

TRAIN = """
import json, resource, sys
import numpy as np
from mlx_grpo_kit.runtime import mx
import psutil
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Problem

class Digits:
    name, max_completion_length = "digits", 32
    def reward(problems, completions): return np.random.default_rng(0).random(len(completions)).tolist()
    reward_funcs = (reward,)
    def sample(self, rng, n): return [Problem("".join(rng.choice(list("0123456789"), 12)), "") for _ in range(n)]
    def held_out(self, n): return []
    def is_correct(self, problem, completion): return False

folder, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
process, mib = psutil.Process(), 2**20
config, params = load_pretrained(folder)
tokenizer = load_tokenizer(folder)
tokenizer.eos_token_ids = []
args = GRPOConfig(learning_rate=1e-4, per_device_train_batch_size=32)
trainer = GRPOTrainer(config, params, tokenizer, Digits(), args)
del params
found = {"before, resident": process.memory_info().rss / mib, "before, MLX arrays": mx.get_active_memory() / mib}
for step in trainer.train(max_steps=last):
    assert step.metrics["frac_reward_zero_std"] == 0
    if step.step in (first, last):
        found |= {f"after {step.step} steps, resident": process.memory_info().rss / mib,
                  f"after {step.step} steps, MLX arrays": mx.get_active_memory() / mib}
found["peak, resident"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
found["peak, MLX arrays"] = mx.get_peak_memory() / mib
print(json.dumps(found))
"""


def test_memory_of_training(model, benchmark):
    first, last = (50, 300) if model.name == "tiny" else (5, 30)
    if not benchmark.enabled:
        first, last = 3, 8
    done = benchmark.pedantic(
        subprocess.run,
        ([sys.executable, "-c", TRAIN, str(model.folder), str(first), str(last)],),
        {"capture_output": True, "text": True, "timeout": 280},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    if benchmark.enabled:
        benchmark.extra_info["notes"] = {f"{name}, MiB": f"{value:.1f}" for name, value in found.items()}
    assert found[f"after {last} steps, MLX arrays"] <= found[f"after {first} steps, MLX arrays"] + 0.1
    assert found[f"after {last} steps, resident"] <= found[f"after {first} steps, resident"] + 30
