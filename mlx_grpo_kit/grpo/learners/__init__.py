"""Learners compute the gradient of a batch: MLX at once, MLX layer by layer, torch, or JAX.

All have the same interface (`learner.py`). Your own learner is a subclass of one of them, which you pass to the trainer
as `learner=`. On a CPU torch samples too (`torch_decoder.py`), beside its own learner and for large models.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mlx_grpo_kit.generation.decoder import Decoder, MLXDecoder
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.learners.learner import Learner
from mlx_grpo_kit.grpo.learners.mlx_at_once import MLXAtOnce
from mlx_grpo_kit.grpo.learners.mlx_by_layer import MLXByLayer
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.qwen3.params import count_total_parameters
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.learners.jax_learner import JAXLearner
    from mlx_grpo_kit.grpo.learners.torch_decoder import TorchDecoder
    from mlx_grpo_kit.grpo.learners.torch_learner import TorchLearner

__all__ = ["Learner", "MLXAtOnce", "MLXByLayer", "decoder_class", "is_large", "learner_class"]

OTHERS = {"torch": "TorchLearner", "jax": "JAXLearner"}
"""The learner classes by GRPOConfig's `backend`. A framework loads when it is first used."""

MANY_PARAMETERS = 1e8
"""From this many parameters on a policy is large for a CPU's caches."""

__getattr__, __dir__, _ = lazy_names(__name__)


def learner_class(args: GRPOConfig, dtype: mx.Dtype) -> type[Learner]:
    """The learner that the settings select.

    Raises ValueError for a dtype that it does not support, and ImportError if the framework is missing.
    """
    if args.backend == "mlx":
        return MLXByLayer if args.gradient_checkpointing else MLXAtOnce
    if dtype != mx.float32:
        raise ValueError(
            f"The parameters are {str(dtype).rpartition('.')[2]}, and the learner of backend={args.backend!r} computes "
            "in float32. Expected float32 parameters, as load_pretrained returns them, or backend='mlx'."
        )
    return getattr(sys.modules[__name__], OTHERS[args.backend])


def is_large(policy: Policy) -> bool:
    """True if a CPU should sample on all cores, and with torch if it can.

    Each token reads all parameters, no cache holds them, and two cores read nearly twice as much from memory as one. (A
    smaller model fits into the cache, where a second thread slows it down.)
    """
    return count_total_parameters(policy.config) > MANY_PARAMETERS


def decoder_class(args: GRPOConfig, policy: Policy) -> type[Decoder]:
    """The class that computes completions: on a CPU torch's beside torch's learner or for a large policy, else MLX's.

    With SmolLM2's 135 million parameters torch takes a third of MLX's time. It needs plain float32 parameters.
    """
    plain = policy.frozen is None and policy.dtype == mx.float32
    if mx.default_device() == mx.cpu and (
        args.backend == "torch" or (plain and is_large(policy) and find_spec("torch") is not None)
    ):
        return sys.modules[__name__].TorchDecoder
    return MLXDecoder
