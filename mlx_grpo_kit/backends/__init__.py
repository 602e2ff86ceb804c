"""One training protocol, five frameworks: what is learned with is exchanged, the loop around it stays.

    import trio
    from mlx_grpo_kit.backends import PyTorchTrainingBackend

    backend = PyTorchTrainingBackend(model, torch.optim.AdamW(model.parameters(), lr=1e-4), loss_fn, "checkpoints")

    async def train():
        for step, batch in enumerate(batches, start=1):
            gradient = backend.forward_backward(batch)     # submitted: a thread works, this line does not wait
            print(await gradient.result())                 # {"loss": ..., "grad_norm": ...}
            await backend.optim_step().result()            # {"lr": ..., "step": ...}
        await backend.save_checkpoint(step)

    trio.run(train)

To read it: `protocol.py` says what a backend does; `future.py` and `worker.py` are a thread that does one thing after
the other, and a promise of what it finds; `base.py` and `checkpoints.py` are what all five have in common;
`pytorch_backend.py`, `mlx_backend.py` and the others are what they have not.

A name is loaded when it is first asked for, so nobody needs the frameworks that they do not use.
"""

from mlx_grpo_kit.runtime.lazy import INSTALL, lazy_names

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

# A star import leaves out what may not be installed, and torchax, whose import makes torch.compile fail.
_OPTIONAL = ("TorchFuncTrainingBackend", "JAXTrainingBackend", "TorchaxTrainingBackend")
__all__ = [name for name in _HOMES if name not in _OPTIONAL]


__getattr__, __dir__ = lazy_names(__name__, _HOMES, INSTALL)
