"""One training protocol for five frameworks: you can exchange the framework and keep the training loop.

    import trio
    from mlx_grpo_kit.backends import PyTorchTrainingBackend

    backend = PyTorchTrainingBackend(model, torch.optim.AdamW(model.parameters(), lr=1e-4), loss_fn, "checkpoints")

    async def train():
        for step, batch in enumerate(batches, start=1):
            gradient = backend.forward_backward(batch)     # submits work to a thread and does not wait
            print(await gradient.result())                 # {"loss": ..., "grad_norm": ...}
            await backend.optim_step().result()            # {"lr": ..., "step": ...}
        await backend.save_checkpoint(step)

    trio.run(train)

Where to read: `protocol.py` defines a backend's operations. `worker.py` and `future.py` are a thread that does one
operation after the other, and the promise of a result. `base.py` and `checkpoints.py` are shared by all five;
`pytorch_backend.py`, `mlx_backend.py` and the others are specific to a framework.

Each name is loaded on first use, so you do not need frameworks that you do not use.
"""

from typing import TYPE_CHECKING

from mlx_grpo_kit.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from mlx_grpo_kit.backends.async_grpo import train_async
    from mlx_grpo_kit.backends.checkpoints import newest_checkpoint, read_metadata
    from mlx_grpo_kit.backends.future import TrainFuture, TrainingError
    from mlx_grpo_kit.backends.inference_engines import (
        Engine,
        EngineError,
        MLXEngine,
        WeightSyncError,
        sync_weights_to_engines,
    )
    from mlx_grpo_kit.backends.inference_process import ProcessEngine
    from mlx_grpo_kit.backends.jax_backend import JAXTrainingBackend
    from mlx_grpo_kit.backends.mlx_backend import MLXTrainingBackend
    from mlx_grpo_kit.backends.protocol import TrainingBackend
    from mlx_grpo_kit.backends.pytorch_backend import PyTorchTrainingBackend
    from mlx_grpo_kit.backends.torch_distributed import DistributedPyTorchTrainingBackend
    from mlx_grpo_kit.backends.torch_func_backend import TorchFuncTrainingBackend
    from mlx_grpo_kit.backends.torchax_backend import TorchaxTrainingBackend
    from mlx_grpo_kit.backends.weights import load_hugging_face, save_hugging_face

__getattr__, __dir__, _names = lazy_names(__name__)

# A star import leaves out packages that may be missing, and torchax, whose import makes torch.compile fail.
_OPTIONAL = {"TorchFuncTrainingBackend", "JAXTrainingBackend", "TorchaxTrainingBackend"}
__all__ = [name for name in _names if name not in _OPTIONAL]
