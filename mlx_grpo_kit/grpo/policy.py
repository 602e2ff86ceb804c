"""The policy: the trained parameters, the frozen ones, and the reference of a KL penalty."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.qwen3 import Qwen3Config, save_pretrained, validate_params
from mlx_grpo_kit.qwen3.adapters import Adapters, save_adapters
from mlx_grpo_kit.qwen3.lora import adapt, fingerprint, init_lora
from mlx_grpo_kit.qwen3.params import cast_floats, check_weights
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.runtime import mx


@dataclass(frozen=True)
class Policy:
    """A Qwen3 in training.

    Attributes:
        config: the configuration of the model.
        trained: float32 arrays by name, which the optimizer changes: all parameters, or adapters.
        dtype: the dtype that the model computes in.
        frozen: the frozen base model of the adapters; None if all parameters are trained.
        scale: the factor of the adapters' output.
        reference: the parameters that a KL penalty pulls towards; None without a penalty.
    """

    config: Qwen3Config
    trained: dict[str, mx.array]
    dtype: mx.Dtype = mx.float32
    frozen: Mapping[str, mx.array] | None = None
    scale: float = 1.0
    reference: Mapping[str, mx.array] | None = None

    @classmethod
    def begin(cls, config: Qwen3Config, params: Mapping[str, mx.array], args: GRPOConfig) -> Policy:
        """The policy before its first step.

        Args:
            params: as `load_pretrained` returns them. With `args.lora_r` they may be quantized.
            args: the settings, of which bf16, beta and those of adapters are used.

        Raises ValueError for parameters that do not fit `config`, and for quantized ones without adapters.
        """
        if args.lora_r:
            check_weights(params, config)
        else:
            if any(name.endswith(".scales") for name in params):
                raise ValueError(
                    "The model is quantized, and quantized parameters cannot be trained. Train adapters with lora_r=8 "
                    "(--lora-r 8), or convert the model to floats first: dequantize(config, params)."
                )
            validate_params(params, config)
        dtype = mx.bfloat16 if args.bf16 else params["final_norm.weight"].dtype
        frozen = cast_floats(params, dtype) if args.lora_r else None
        if args.lora_r:
            params = init_lora(config, params, args.lora_r, args.lora_targets, args.seed)
        policy = cls(config, cast_floats(params, mx.float32), dtype, frozen, args.lora_scale if args.lora_r else 1.0)
        if args.beta:
            policy = replace(policy, reference=frozen or policy.params)
        return policy._evaluated()

    def _evaluated(self) -> Policy:
        """Evaluate all arrays now. If training moves to another thread, MLX cannot finish a computation from here."""
        mx.eval(self.trained, self.frozen, self.reference)
        return self

    def beside(self, base: Mapping[str, mx.array], with_reference: bool) -> Policy:
        """The policy of loaded adapters and their base. Raises ValueError for parameters that do not fit `config`."""
        check_weights(base, self.config)
        frozen = cast_floats(base, self.dtype)
        return replace(self, frozen=frozen, reference=frozen if with_reference else None)._evaluated()

    @property
    def params(self) -> dict[str, mx.array]:
        """The parameters that `qwen3_forward` takes, in `dtype`: all trained ones, or the frozen ones with adapters."""
        if self.frozen is None and self.dtype == mx.float32:
            return dict(self.trained)
        return self.params_of(self.trained)

    def params_of(self, trained: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """`params` as a function of the trained arrays, for differentiation."""
        cast = {name: value.astype(self.dtype) for name, value in trained.items()}
        return cast if self.frozen is None else adapt(self.frozen, cast, self.scale)

    def with_synced_reference(self, args: GRPOConfig, step: int) -> Policy:
        """The policy after a step. If a sync is due, its reference becomes alpha * policy + (1 - alpha) * reference."""
        if not args.sync_ref_model or step % args.ref_model_sync_steps:
            return self
        params, alpha = self.params, args.ref_model_mixup_alpha
        moved = {name: value * (1.0 - alpha) + alpha * params[name] for name, value in self.reference.items()}
        mx.eval(moved)
        return replace(self, reference=moved)

    def adapters(self, base: str | os.PathLike | None = None) -> Adapters:
        """The trained adapters, with the fingerprint of their base model and its folder `base`, if that is known."""
        named = None if base is None else os.path.abspath(base)
        return Adapters(self.trained, self.scale, named, fingerprint(self.frozen))

    def save_pretrained(
        self, folder: str | os.PathLike, tokenizer: Tokenizer, base: str | os.PathLike | None = None
    ) -> None:
        """Write a Hugging Face folder: the whole policy, or its adapters with the name of their `base` folder."""
        if self.frozen is None:
            save_pretrained(folder, self.config, self.params, tokenizer=tokenizer)
        else:
            save_adapters(folder, self.config, self.adapters(base), tokenizer=tokenizer)

    def origin(self, task: str) -> str:
        """A hash of the task's name and of the model before its first step, which identifies a run's snapshots."""
        began_with = fingerprint(self.frozen or self.trained)
        return hashlib.sha256(repr((task, self.config, began_with)).encode()).hexdigest()

    def digest(self) -> bytes:
        """A hash of some numbers of every array, by which several processes compare their policies."""
        said = hashlib.sha256()
        if self.frozen is not None:
            said.update(fingerprint(self.frozen).encode())
        for name, value in sorted(self.trained.items()):
            flat = value.reshape(-1)
            said.update(name.encode() + np.array(flat[:: flat.size // 64 + 1]).tobytes())
        return said.digest()
