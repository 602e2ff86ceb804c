"""Train a model of 71 million parameters, 16 bytes each: python -m tests.grpo.sharded_memory FOLDER SHARDED MEGABYTES.

MEGABYTES limits how much each process may allocate for the model and its training. The first process prints by how many
megabytes its memory had grown at most at each point, since before the model was made.
"""

import json
import resource
import sys
from pathlib import Path

from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, estimate_memory
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.qwen3 import Qwen3Config, count_total_parameters, init_params
from mlx_grpo_kit.qwen3.tokenizer import load_tokenizer
from tests.grpo.sharded_run import Sevens, make

MB = 2**20


class Letters(Sevens):
    def sevens(self, problems, completions):
        return [float(sum(map(ord, completion)) % 7) for completion in completions]


def of_process(name):
    """A line of /proc/self/status, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def main(folder, sharded, megabytes):
    world = World.join(sharded)
    next(make(folder, "", None).train(1))  # loads and compiles all that a step needs
    tokenizer = load_tokenizer(folder)
    config = Qwen3Config(
        vocab_size=tokenizer.vocab_size, hidden_size=512, intermediate_size=1408, num_hidden_layers=24,
        num_attention_heads=8, num_key_value_heads=4, head_dim=64, max_position_embeddings=64,
        tie_word_embeddings=True,
    )  # fmt: skip
    args = GRPOConfig(num_generations=4, per_device_train_batch_size=8, learning_rate=1e-4, backend="torch")
    before, peaks = of_process("VmRSS"), {}

    def measure(name):
        peaks[name] = round(of_process("VmHWM") - before)
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak

    limit = int((of_process("VmData") + megabytes) * MB)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    trainer = GRPOTrainer(config, init_params(config), tokenizer, Letters(), args, world)
    measure("made")
    norms = [step.metrics["grad_norm"] for step in trainer.train(2)]
    measure("trained")
    trainer.evaluate(4)
    measure("evaluated")
    trainer.save_checkpoint(folder / "saved")
    measure("saved")
    del trainer
    resumed = GRPOTrainer.resume(folder / "saved", Letters(), world=world)
    measure("resumed")
    estimate = estimate_memory(config, args, 4, 4, world.size, sharded=sharded)["total"] // MB
    found = {
        "model": count_total_parameters(config) * 4 // MB,
        "peaks": peaks,
        "norms": norms,
        "estimate": estimate,
    }
    if resumed.world.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "True", int(sys.argv[3]))
