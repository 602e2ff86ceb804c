"""Learners compute the gradient of a batch: MLX at once, MLX layer by layer, torch, or JAX.

All have the same interface (`learner.py`). Your own learner is a subclass of one of them, which you pass to the trainer
as `learner=`. Where torch learns on a CPU, it samples too (`torch_decoder.py`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mlx_grpo_kit.generation.decoder import Decoder, MLXDecoder
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.learners.learner import Learner
from mlx_grpo_kit.grpo.learners.mlx_at_once import MLXAtOnce
from mlx_grpo_kit.grpo.learners.mlx_by_layer import MLXByLayer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.learners.jax_learner import JAXLearner
    from mlx_grpo_kit.grpo.learners.torch_decoder import TorchDecoder
    from mlx_grpo_kit.grpo.learners.torch_learner import TorchLearner

__all__ = ["Learner", "MLXAtOnce", "MLXByLayer", "decoder_class", "learner_class"]

OTHERS = {"torch": "TorchLearner", "jax": "JAXLearner"}
"""The learner classes by GRPOConfig's `backend`. A framework loads when it is first used."""

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


def decoder_class(args: GRPOConfig) -> type[Decoder]:
    """The class that computes completions: torch's beside torch's learner on a CPU, and otherwise MLX's."""
    if args.backend == "torch" and mx.default_device() == mx.cpu:
        return sys.modules[__name__].TorchDecoder
    return MLXDecoder
