"""Train on two processes with DDP, each with noise of its own, and see what it costs if they share a seed.

    python two_processes.py --out noise.png                          # starts both by itself
    torchrun --nproc-per-node 2 two_processes.py --out noise.png     # the same

For your own data replace `load_data`. Three things to take care of, marked in the code: the estimator is called inside
`forward`, each process has its own generator, and each sees its own rows.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gumtrace as gt


def load_data(rows: int = 2048, columns: int = 20) -> tuple[Tensor, Tensor]:
    """Columns (rows, d) and a target (rows,), of which three columns say most."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, generator=generator)
    return x, x[:, 2] - 2 * x[:, 5] + x[:, 11] + 0.3 * torch.randn(rows, generator=generator)


class Selector(nn.Module):
    """A linear model of k columns, the same k for a whole batch, and the logits of the choice."""

    def __init__(self, columns: int, k: int):
        super().__init__()
        self.logits, self.model, self.k = nn.Parameter(torch.zeros(columns)), nn.Linear(columns, 1), k
        self.estimator = gt.estimators.TraceREINFORCE(samples=4)

    def forward(self, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:  # 1: DDP sees only `forward`
        def error(chosen: Tensor) -> Tensor:  # (samples, d) -> (samples,)
            return (self.model(chosen[:, None] * x).squeeze(-1) - y).square().mean(-1)

        return self.estimator(gt.Subset(self.logits, self.k), error, generator=generator)  # DDP averages the gradient


def noise(model: nn.Module, logits: Tensor, rows: tuple[Tensor, Tensor], seed: int, repeats: int) -> float:
    """Standard deviation of the gradient of the logits, root mean square over processes."""
    generator, gradients = torch.Generator().manual_seed(seed), []
    for _ in range(repeats):
        model.zero_grad()
        model(*rows, generator).backward()
        gradients.append(logits.grad.clone())  # type: ignore[union-attr]
    model.zero_grad()
    return mean_over_processes(torch.stack(gradients).var(0).sum()).sqrt().item()


def mean_over_processes(x: Tensor) -> Tensor:
    x = x.detach().clone()
    dist.all_reduce(x)
    return x / dist.get_world_size()


def draw(losses: list[float], noises: dict[str, float], path: str) -> None:
    from matplotlib.figure import Figure

    from gumtrace.plotting.style import ACCENT, CHOSEN, INK, SOFT

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(losses, color=CHOSEN, linewidth=1)
    left.set_xlabel("step", color=SOFT)
    left.set_title("loss, mean over processes", fontsize=10, color=INK)
    bars = right.barh(list(noises), list(noises.values()), color=[SOFT, ACCENT, CHOSEN][: len(noises)])
    right.bar_label(bars, fmt="%.2f", padding=3, color=INK)
    right.margins(x=0.15)
    right.invert_yaxis()
    right.set_title("standard deviation of the gradient", fontsize=10, color=INK)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def train(args: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y = (t.float() for t in load_data())
    mine = x[rank::world], y[rank::world]  # 3: rows of its own
    torch.manual_seed(args.seed)  # the same weights everywhere, which DDP also takes care of
    alone = Selector(x.shape[1], min(3, x.shape[1]))
    model = DistributedDataParallel(alone)
    some, repeats = (mine[0][: args.batch], mine[1][: args.batch]), 2 * args.steps
    noises = {
        "one process": noise(alone, alone.logits, some, args.seed + rank, repeats),
        f"{world} processes, one seed": noise(model, alone.logits, some, args.seed, repeats),
        f"{world} processes, own seeds": noise(model, alone.logits, some, args.seed + rank, repeats),
    }
    generator = torch.Generator().manual_seed(args.seed + rank)  # 2: noise of its own
    optimiser, losses = torch.optim.Adam(model.parameters(), lr=0.05), []
    for _ in range(args.steps):
        batch = torch.randint(len(mine[0]), (args.batch,), generator=generator)
        loss = model(mine[0][batch], mine[1][batch], generator)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(mean_over_processes(loss).item())
    apart = (mean_over_processes(alone.logits) - alone.logits).abs().max()
    if rank > 0:
        return
    print(f"{world} processes: loss {losses[0]:.2f} at first, {losses[-1]:.2f} at last; logits differ by {apart:.0e}")
    print(f"columns {alone.logits.topk(alone.k).indices.tolist()}")
    for name, value in noises.items():
        print(f"{name:25} standard deviation of the gradient {value:.3f}")
    if args.out:
        draw(losses, noises, args.out)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2, help="how many to start, if torchrun did not")
    parser.add_argument("--batch", type=int, default=64, help="rows for each process")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="file for the picture")
    args = parser.parse_args(argv)
    if "RANK" in os.environ:  # of torchrun, or of the lines below
        join(os.environ.get("MEET", "env://"), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), args)
        return
    with tempfile.TemporaryDirectory() as folder:
        meet = f"file://{folder}/meet"
        command = [sys.executable, __file__, *(sys.argv[1:] if argv is None else argv)]
        seats = [{"MEET": meet, "RANK": str(rank), "WORLD_SIZE": str(args.processes)} for rank in range(args.processes)]
        others = [subprocess.Popen(command, env=os.environ | seat) for seat in seats[1:]]
        try:
            join(meet, 0, args.processes, args)
        finally:
            failed = sum(process.wait() != 0 for process in others)
    if failed:
        sys.exit(f"{failed} of {args.processes} processes failed; what they printed is above")


def join(meet: str, rank: int, processes: int, args: argparse.Namespace) -> None:
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=processes, timeout=timedelta(seconds=60))
    try:
        train(args)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
