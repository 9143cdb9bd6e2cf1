"""Several processes, started by torchrun, that divide the shards of each batch; lightning-fabric connects them."""

import atexit
import os
from typing import Any

import torch
from torch import Tensor


class Workers:
    """This process among the others; lightning-fabric is imported only if there are any."""

    def __init__(self, device: torch.device):
        self.world = int(os.environ.get("WORLD_SIZE", 1))
        self.rank = int(os.environ.get("RANK", 0))
        self.device = device
        if self.world == 1:
            return
        local = int(os.environ.get("LOCAL_WORLD_SIZE", self.world))
        from lightning_fabric import Fabric  # it takes a second to import, and one process alone does without

        fabric = Fabric(accelerator=device.type, devices=local, num_nodes=self.world // local, strategy="ddp")
        fabric.launch()
        self._fabric, self.device = fabric, fabric.device
        # Fabric does so for NCCL alone. Otherwise threads of Gloo run while Python ends, and may abort the process.
        atexit.register(_disconnect)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def my_shards(self, shards: int) -> range:
        """Which of the shards are this process's."""
        if shards % self.world:
            raise ValueError(f"{shards} shards cannot be divided evenly among {self.world} processes")
        each = shards // self.world
        return range(self.rank * each, (self.rank + 1) * each)

    def sum(self, tensors: list[Tensor]) -> None:
        """Over all processes, in place, in one message."""
        if self.world > 1 and tensors:
            flat: Any = self._fabric.all_reduce(torch.cat([t.flatten() for t in tensors]), reduce_op="sum")
            for t, total in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
                t.copy_(total.view_as(t))

    def wait(self) -> None:
        if self.world > 1:
            self._fabric.barrier()


def _disconnect() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
