"""Every structure once, at sizes that take each way through its kernels: for `make sanitize`, which looks for accesses
out of bounds and for races. What the numbers are is for the tests to check.

python tests/helpers/every_kernel.py --device cuda [--most KEYS] [--only NAME ... | --list]
"""

import argparse
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

import gumtrace as gt

Make = Callable[..., Any]
RELAXED = {"SpanningTree": 20_000, "Arborescence": 20_000, "Subset": 400}  # by kernels of their own, to so many keys


def cases() -> Iterator[tuple[str, Make, tuple[int, ...], bool]]:
    """What to make, of which shape, and whether items have sizes of their own, too; small ones first."""
    trees = [(4, 10, 10), (3, 33, 33), (3, 131, 131), (2, 500, 500), (1, 1000, 1000), (1, 2048, 2048)]
    for shape in trees:
        yield "SpanningTree", gt.SpanningTree, shape, True
        yield "Arborescence", gt.Arborescence, shape, True
    yield "forest", lambda x, **more: gt.SpanningTree(x, components=3, **more), (3, 131, 131), False
    for shape in ((4, 10, 10), (3, 41, 60), (2, 203, 301), (2, 1000, 1000), (1, 2048, 2048)):
        yield "Matching", gt.Matching, shape, False
    for d in (20, 350, 9001):
        yield "Permutation", gt.Permutation, (3, d), True
    for d in (20, 200):
        yield "BinaryTree", gt.BinaryTree, (3, d), True
    for d, k in ((45, 10), (350, 10), (9000, 700), (131072, 64), (131072, 3000), (10**6, 1000)):
        rows = 1 if d == 10**6 else 2
        yield "Subset", lambda x, k=k, **more: gt.Subset(x, k, **more), (rows, d), False
    ends = torch.randint(1000, (2, 20_000), generator=torch.Generator().manual_seed(0))
    ends = torch.cat([ends, torch.stack([torch.arange(999), torch.arange(1, 1000)])], 1)
    yield (
        "SpanningTree.from_edges",
        lambda x, **more: gt.SpanningTree.from_edges(x, ends.to(x.device), 1000, **more),
        (ends.shape[1],),
        False,
    )
    node = torch.arange(1000)
    inside = ends[:, ends[0] // 10 == ends[1] // 10]  # a hundred graphs of ten nodes
    joined = torch.stack([node[node % 10 > 0] - 1, node[node % 10 > 0]])
    several = torch.cat([inside, joined], 1)
    yield (
        "graphs",
        lambda x, **more: gt.SpanningTree.from_edges(x, several.to(x.device), 1000, batch=node // 10, **more),
        (several.shape[1],),
        False,
    )


def masked(shape: tuple[int, ...]) -> torch.Tensor:
    """Keys that may race: all that a structure of this shape cannot do without, and most of the others."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.2
    if len(shape) == 3:  # a path through all nodes, both ways
        i = torch.arange(min(shape[1:]) - 1)
        mask[:, i, i + 1] = mask[:, i + 1, i] = True
    elif len(shape) == 2:  # enough for any k
        mask[:, : 3 * shape[1] // 5] = True
    else:  # the edges that join the graphs
        mask[-1000:] = True
    return mask


def run(make: Make, logits: torch.Tensor, relaxed: bool, **more: Any) -> None:
    """Noise, trace, value, log-probability, the noise given the trace, relaxation; first and second derivatives."""
    x = logits.clone().requires_grad_()
    dist = make(x, **more)
    dist.trace(dist.perturb().detach())
    trace = dist.sample_trace((2,))
    assert torch.isfinite(trace.value).all()
    noise = dist.conditional(trace)
    results = [dist.trace_log_prob(trace), noise[noise > -torch.inf]]
    if relaxed:
        results.append(gt.relax(dist, dist.perturb(), 0.7).square())
    if relaxed and isinstance(dist, gt.Subset):
        results.append(dist.mean.square())
    for result in results:
        (grad,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        grad.square().sum().backward(retain_graph=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", default="cuda")
    arguments.add_argument("--most", type=int, default=10**9, metavar="KEYS", help="only items of at most so many keys")
    names = list(dict.fromkeys(name for name, *_ in cases()))
    arguments.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    arguments.add_argument("--list", action="store_true", help="print the names, and do nothing")
    given = arguments.parse_args()
    if given.list:
        print(*names)
        return
    generator = torch.Generator().manual_seed(0)
    for name, make, shape, ragged in cases():
        keys = math.prod(shape[1:] or shape)
        logits = torch.randn(shape, generator=generator)
        if keys > given.most or name not in given.only:
            continue
        logits = logits.to(given.device)
        relaxed = keys <= RELAXED.get(name, 0)
        run(make, logits, relaxed)
        if ragged:
            lengths = torch.arange(shape[0], device=given.device) + shape[-1] - shape[0] + 1
            run(make, logits, relaxed, lengths=lengths)
        run(make, logits, relaxed, mask=masked(shape).to(given.device))
        print(name, *shape, flush=True)


if __name__ == "__main__":
    main()
