"""A trainer without a model, whose steps are like GRPOTrainer's: pure functions of seed, step and settings so far."""

import random
import time
from types import SimpleNamespace


def exact(prompts, completions):
    return [0.0 for _ in completions]


def format_reward(prompts, completions):
    return [1.0 for _ in completions]


class FakeTrainer:
    """A trainer whose only weight grows by the learning rate; the reward follows the weight."""

    def __init__(self, seconds=0.0, nbytes=1000, groups=4, size=8, text="{number}"):
        self.step, self.weight, self.seconds, self.nbytes = 0, 0.0, seconds, nbytes
        self.args = SimpleNamespace(learning_rate=0.01, lr_scheduler_type="constant")
        self.reward_funcs = [exact]
        self.groups, self.size, self.text = groups, size, text
        self.loops = 0  # the number of open ones
        self.changes = {}

    def train(self, max_steps):
        self.loops += 1
        try:
            while self.step < max_steps:
                time.sleep(self.seconds)
                self.step += 1
                self.weight += self.args.learning_rate
                yield self._record()
        finally:
            self.loops -= 1

    def _record(self):
        draw = random.Random(self.step)
        noise = draw.random()
        name = self.reward_funcs[0].__name__
        reward = min(1.0, self.weight) * (0.8 + 0.2 * noise) if name == "exact" else 1.0
        rows = []
        for group in range(self.groups):
            for number in range(self.size):
                one = float(draw.random() < reward)
                rows.append(
                    SimpleNamespace(
                        problem=None, prompt=f"{self.step}+{group}=", completion=self.text.format(number=number),
                        group=group, completion_ids=[1] * (1 + number % 4), logps=[-0.1], entropies=[0.2],
                        finished=number % 4 != 3, rewards={name: one}, reward=one, advantage=one - 0.5,
                    )
                )  # fmt: skip
        metrics = {
            "reward": reward, "reward_std": 0.5 * (1 - reward), f"rewards/{name}/mean": reward,
            "entropy": 1 / (1 + self.weight), "clip_ratio/low_mean": 0.01 * noise, "clip_ratio/high_mean": 0.02 * noise,
            "frac_reward_zero_std": 0.2 * reward, "completions/clipped_ratio": 0.25, "completions/mean_length": 3.0,
            "completions/min_length": 1.0, "completions/max_length": 4.0, "grad_norm": 0.5 + noise,
            "learning_rate": self.args.learning_rate, "step_time": max(self.seconds, 0.001),
        }  # fmt: skip
        changes, self.changes = self.changes, {}
        return SimpleNamespace(step=self.step, metrics=metrics, completions=rows, changes=changes)

    def evaluate(self, num_problems):
        return {"eval/accuracy": min(1.0, self.weight), "eval/reward": min(1.0, self.weight) + num_problems / 1000}

    def snapshot(self):
        state = SimpleNamespace(learning_rate=self.args.learning_rate)
        return SimpleNamespace(
            step=self.step, weight=self.weight, args=state, reward_funcs=self.reward_funcs, nbytes=self.nbytes
        )

    def rewind(self, snapshot):
        self.changes["rewound_from"] = self.step
        self.step, self.weight, self.reward_funcs = snapshot.step, snapshot.weight, snapshot.reward_funcs
        self.args.learning_rate = snapshot.args.learning_rate

    def change(self, **settings):
        for name, value in settings.items():
            if name == "reward_funcs":
                if [*value] == self.reward_funcs:
                    continue
                self.reward_funcs = list(value)
                self.changes[name] = [function.__name__ for function in value]
            else:
                setattr(self.args, name, value)
                self.changes[name] = value
