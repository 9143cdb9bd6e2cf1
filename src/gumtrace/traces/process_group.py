"""What the ranks of a process group tell each other: whether they are about to do the same, numbers, and sums that
gradients flow through.

A number that all ranks have is one number: they compute the same loss from it, not a loss each. So the gradient of a
sum over ranks is the same for every summand, and nothing is sent; and of a number that each rank uses for its own keys,
the gradient is a sum over the ranks.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

TOLD = 2  # integers that a rank tells the others with every call


class Ranks:
    """The ranks that hold the pieces of one structure.

    Args:
        name: of the structure: errors begin with it.
        group: of torch.distributed; the default one for None.
    """

    def __init__(self, name: str, group: Any):
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                f"{name}: there is no process group; call torch.distributed.init_process_group on every rank first"
            )
        self.name, self.group = name, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError(f"{name}: this process is not in the group")
        if dist.get_backend(group) == "nccl":
            raise ValueError(
                f"{name}: its kernels run on the CPU, and an NCCL group carries CUDA tensors only; take a group of "
                'torch.distributed.new_group(backend="gloo")'
            )

    def agree(self, call: str, prepare: Callable[[], tuple[dict[str, Any], Sequence[int], Any]]) -> tuple[Any, list]:
        """All ranks are about to do the same, or all of them raise: every exchange begins so. A rank that raised in
        `prepare`, or calls something else, is not waited for; one that raised in the user's code is.

        Args:
            call: what they are about to do.
            prepare: all of it that one rank can find wrong. Returns what must be equal on all ranks, by name; integers
                to tell the others; and what to return.

        Returns what `prepare` does last, and what each rank told.
        """
        problem, kept = None, None
        facts: dict[str, Any] = {}
        told: Sequence[int] = []
        if torch._C._are_functorch_transforms_active():  # a matter of the program, which is that of all ranks
            raise NotImplementedError(f"{self.name}: ranks exchange numbers, which vmap and torch.func cannot see")
        try:
            facts, told, kept = prepare()
        except Exception as error:  # whatever it is: the others must hear of it
            problem = error
        digest = zlib.crc32(repr((call, facts)).encode())
        told = [*told, *[0] * (TOLD - len(told))]
        headers = self.gather(torch.tensor([problem is not None, digest, *told])).tolist()
        if any(failed or other != digest for failed, other, *_ in headers):
            self._raise(call, facts, problem)
        return kept, [header[2:] for header in headers]

    def _raise(self, call: str, facts: dict[str, Any], problem: Exception | None) -> None:
        said: list[Any] = [None] * self.size
        dist.all_gather_object(said, (call, facts, None if problem is None else str(problem)), group=self.group)
        if problem is not None:
            raise problem
        for rank, (_, _, message) in enumerate(said):
            if message is not None:
                raise ValueError(f"{self.name}: rank {rank} stopped: {message}")
        calls = [call for call, _, _ in said]
        if len(set(calls)) > 1:
            raise ValueError(f"{self.name}: ranks must call the same methods in the same order, got {_listed(calls)}")
        for name in facts:
            values = [facts[name] for _, facts, _ in said]
            if any(value != values[0] for value in values):
                raise ValueError(f"{self.name}: {name} must be the same on all ranks, got {_listed(values)}")

    def gather(self, x: Tensor) -> Tensor:
        """(ranks, *shape): x of every rank, which has the same shape on all."""
        out = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(out, x.contiguous(), group=self.group)
        return torch.stack(out)

    def maximum(self, x: Tensor) -> Tensor:
        out = x.clone()
        dist.all_reduce(out, dist.ReduceOp.MAX, group=self.group)
        return out

    def total(self, x: Tensor) -> Tensor:
        """Σ x over the ranks, the same on all."""
        return _Total.apply(x, self)  # type: ignore[return-value]

    def each(self, x: Tensor) -> Tensor:
        """x, which is the same on all ranks, to be used by each of them for its own keys."""
        return _Each.apply(x, self)  # type: ignore[return-value]


def _listed(values: list) -> str:
    return ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, ranks: Ranks):
        ctx.ranks = ranks
        out = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(out, group=ranks.group)
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        return ctx.ranks.each(grad), None


class _Each(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, ranks: Ranks):
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        return ctx.ranks.total(grad), None
