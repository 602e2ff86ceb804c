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

from mlx_grpo_kit.runtime.lazy import lazy_names

_HOMES = {
    "TrainingBackend": "protocol",
    "TrainFuture": "future",
    "TrainingError": "future",
    "newest_checkpoint": "checkpoints",
    "read_metadata": "checkpoints",
    "MLXTrainingBackend": "mlx_backend",
    "PyTorchTrainingBackend": "pytorch_backend",
    "DistributedPyTorchTrainingBackend": "torch_distributed",
    "TorchFuncTrainingBackend": "torch_func_backend",
    "JAXTrainingBackend": "jax_backend",
    "TorchaxTrainingBackend": "torchax_backend",
    "sync_weights_to_engines": "engines",
    "Engine": "engines",
    "EngineError": "engines",
    "WeightSyncError": "engines",
    "MLXEngine": "engines",
    "ProcessEngine": "process_engine",
    "train_async": "async_grpo",
    "load_hugging_face": "hugging_face",
    "save_hugging_face": "hugging_face",
}

# A star import leaves out packages that may be missing, and torchax, whose import makes torch.compile fail.
_OPTIONAL = ("TorchFuncTrainingBackend", "JAXTrainingBackend", "TorchaxTrainingBackend")
__all__ = [name for name in _HOMES if name not in _OPTIONAL]


__getattr__, __dir__ = lazy_names(__name__, _HOMES)
