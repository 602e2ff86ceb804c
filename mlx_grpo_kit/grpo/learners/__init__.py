"""Learners compute the gradient of a batch: MLX at once, MLX layer by layer, torch, or JAX.

All have one interface (`learner.py`), and none is special. A learner of your own is a subclass of one of them, handed
to the trainer as `learner=`.
"""

from __future__ import annotations

import sys

from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.learners.learner import Learner
from mlx_grpo_kit.grpo.learners.mlx_at_once import MLXAtOnce
from mlx_grpo_kit.grpo.learners.mlx_by_layer import MLXByLayer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.runtime.lazy import INSTALL, lazy_names

__all__ = ["Learner", "MLXAtOnce", "MLXByLayer", "learner_class"]

OTHERS = {"torch": "TorchLearner", "jax": "JAXLearner"}
"""By GRPOConfig's `backend`: the class. The frameworks load where they are used."""

__getattr__, __dir__ = lazy_names(__name__, {"TorchLearner": "torch_learner", "JAXLearner": "jax_learner"}, INSTALL)


def learner_class(args: GRPOConfig, dtype: mx.Dtype) -> type[Learner]:
    """The learner that the settings ask for.

    Raises ValueError for a dtype that it does not compute in, and ImportError where the framework is missing.
    """
    if args.backend == "mlx":
        return MLXByLayer if args.gradient_checkpointing else MLXAtOnce
    if dtype != mx.float32:
        raise ValueError(
            f"The parameters are {str(dtype).rpartition('.')[2]}, and the learner of backend={args.backend!r} computes "
            "in float32. Expected float32 parameters, as load_pretrained gives them, or backend='mlx'."
        )
    return getattr(sys.modules[__name__], OTHERS[args.backend])
