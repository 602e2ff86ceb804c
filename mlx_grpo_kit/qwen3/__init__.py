"""Qwen3 on MLX: its configuration, forward pass, parameters, cache and files."""

from typing import TYPE_CHECKING

from mlx_grpo_kit.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from mlx_grpo_kit.qwen3.adapters import Adapters, load_adapters, save_adapters
    from mlx_grpo_kit.qwen3.backward import qwen3_backward, qwen3_loss_and_gradients
    from mlx_grpo_kit.qwen3.cache import KVCache
    from mlx_grpo_kit.qwen3.config import Llama3Scaling, Qwen3Config, YarnScaling
    from mlx_grpo_kit.qwen3.forward import output_logits, qwen3_forward, qwen3_hidden_states
    from mlx_grpo_kit.qwen3.gguf import import_gguf
    from mlx_grpo_kit.qwen3.lora import adapt, dequantize, init_lora, merge
    from mlx_grpo_kit.qwen3.params import (
        count_total_parameters,
        decays,
        init_params,
        map_params_to_dict,
        param_names,
        param_shapes,
        validate_param_names,
        validate_params,
    )
    from mlx_grpo_kit.qwen3.pretrained import load_pretrained, save_pretrained
    from mlx_grpo_kit.qwen3.tokenizer import load_tokenizer

__getattr__, __dir__, __all__ = lazy_names(__name__)
