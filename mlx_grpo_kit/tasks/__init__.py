"""Tasks that the policy is trained on: prompts, and rewards that a program can check.

A task works only with text. It provides problems, scores completions, and holds some problems out of training:

    from mlx_grpo_kit.tasks import Problem, ascii_int, get_task

    class Doubling:                                       # a whole task: 17*2= -> 34
        name, max_completion_length = "doubling", 4       # three digits and the end-of-sequence token

        def __init__(self):
            def correct(problems, completions):           # a reward: one number per completion; its name is the metric
                return [float(self.is_correct(p, c)) for p, c in zip(problems, completions)]
            self.reward_funcs = [correct]

        def problem(self, n): return Problem(prompt=f"{n}*2=", answer=str(2 * n))
        def sample(self, rng, n): return [self.problem(i) for i in rng.integers(0, 400, n)]
        def held_out(self, n): return [self.problem(i) for i in range(400, 400 + n)]
        def is_correct(self, problem, completion): return ascii_int(completion) == int(problem.answer)

    trainer = GRPOTrainer(config, params, tokenizer, Doubling(), GRPOConfig())

In the terminal, use this class with `--task my_tasks.py:Doubling`, and the rows of a file with `--data problems.jsonl`
(`RowsTask`). Completions are written by a model and may contain anything: read them with `ascii_int`, `as_number`
or `parse_expression`, which are bounded, and never with `eval`.
"""

from typing import TYPE_CHECKING

from mlx_grpo_kit.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from mlx_grpo_kit.tasks.addition import Addition
    from mlx_grpo_kit.tasks.answers import as_number, final_answer
    from mlx_grpo_kit.tasks.calculator import Calculator
    from mlx_grpo_kit.tasks.catalogue import get_task, validate_task
    from mlx_grpo_kit.tasks.countdown import Countdown
    from mlx_grpo_kit.tasks.guess import GuessTheNumber
    from mlx_grpo_kit.tasks.gym import GymTask
    from mlx_grpo_kit.tasks.json_schema import ToolError, get_json_schema
    from mlx_grpo_kit.tasks.larger import Larger
    from mlx_grpo_kit.tasks.long_sum import LongSum
    from mlx_grpo_kit.tasks.parsing import Expression, ExpressionError, ascii_int, parse_expression
    from mlx_grpo_kit.tasks.rows import RowsTask
    from mlx_grpo_kit.tasks.split import split_by_hash
    from mlx_grpo_kit.tasks.task import Problem, RewardFunc, Task, TaskError
    from mlx_grpo_kit.tasks.tool_calls import ToolCall, parse_tool_calls

__getattr__, __dir__, __all__ = lazy_names(__name__)
