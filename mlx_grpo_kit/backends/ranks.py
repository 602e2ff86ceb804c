"""The ranks of a distributed backend, which fail together: no rank waits forever for another.

A collective of torch waits for all ranks, up to the process group's timeout, which is half an hour by default. Three
mechanisms end every waiting operation of a backend within seconds:

- Ranks **meet** before an operation and wherever one of them may raise an error. If a rank brings an error, all ranks
  raise it.
- A rank that fails between two meetings **tells** the others through the store that torch's ranks share.
- While a rank is in an operation, another of its threads **watches** that store. If another rank has failed or closed
  its backend, and the operation does not end by itself, the thread gives the operation up.

If a rank's process ends, its connections close, so operations that wait for it raise anyway.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch.distributed as dist

SECONDS_BETWEEN_LOOKS = 0.5


class Ranks:
    """The messages between the ranks of one backend.

    Creating it is a collective: every rank does so at the same time.
    """

    def __init__(self):
        self._group = dist.new_group(backend="gloo")  # the model's own collectives may be in flight when ranks meet
        self._store = self._group.get_group_store().clone()  # a connection of its own: torch may wait in the other one
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self._begun = 0
        self._error: Exception | None = None

    def meet(self, operation: str, error: Exception | None = None) -> None:
        """Wait until every rank calls this.

        Raises:
            Exception: the first error that a rank passed.
            RuntimeError: the ranks are in different operations, or the process of one is gone.
        """
        found: list[tuple[str, Exception | None]] = [("", None)] * self._size
        self._error = error
        try:
            dist.all_gather_object(found, (operation, error and _portable(error)), group=self._group)
        except RuntimeError as gone:
            if error is not None:
                raise error from None
            raise RuntimeError(f"Another rank's process is gone, or does not answer ({gone}).") from gone
        for rank, (_, theirs) in enumerate(found):
            if theirs is not None:
                raise error if rank == self._rank else theirs
        if len({name for name, _ in found}) > 1:
            names = ", ".join(f"rank {rank} is in {name}" for rank, (name, _) in enumerate(found))
            raise RuntimeError(f"{names}. All ranks submit the same operations in the same order.")

    @contextmanager
    def watching(self, give_up: Callable[[Exception], None]) -> Iterator[None]:
        """Around an operation: call `give_up(error)` in another thread if the other ranks will never take part."""
        over = threading.Event()
        self._begun += 1
        begun = self._begun

        def look() -> None:
            while not over.wait(SECONDS_BETWEEN_LOOKS):
                trouble = self._trouble(begun)
                if trouble and not over.wait(SECONDS_BETWEEN_LOOKS):  # it may be about to end normally
                    self.tell(f"gave up: {trouble}")
                    give_up(self._error or RuntimeError(trouble))
                    return

        threading.Thread(target=look, name="watches the other ranks", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def tell(self, words: str) -> None:
        """Tell the other ranks that this one has failed. Only the first message counts."""
        with suppress(RuntimeError):  # the rank with the store may be gone
            self._store.compare_set(f"failed/{self._rank}", "", words)

    def leave(self) -> None:
        """Tell the other ranks that this one takes part in no further operation."""
        with suppress(RuntimeError):
            self._store.set(f"left/{self._rank}", str(self._begun))

    def _trouble(self, begun: int) -> str | None:
        """The reason why operation number `begun` may never end, if another rank has reported one; else None."""
        with suppress(RuntimeError):
            for rank in set(range(self._size)) - {self._rank}:
                if self._store.check([f"failed/{rank}"]):
                    return f"rank {rank} {self._store.get(f'failed/{rank}').decode()}"
                if self._store.check([f"left/{rank}"]) and int(self._store.get(f"left/{rank}")) < begun:
                    return f"rank {rank} closed its backend. All ranks submit the same operations in the same order"
        return None


def _portable(error: Exception) -> Exception:
    """An error for another process: unchanged if it can be pickled, or else a RuntimeError with its message."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
