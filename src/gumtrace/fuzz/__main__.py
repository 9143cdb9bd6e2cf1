"""`python -m gumtrace.fuzz`: the command."""

import argparse
import sys
import time

from gumtrace.cli.arguments import device_problem, positive
from gumtrace.fuzz.driver import Settings, Summary, fuzz
from gumtrace.fuzz.jobs import ROUND, Failure, run


def main(argv: list[str] | None = None) -> int:
    """0: nothing failed; 1: something did; 2: it could not start."""
    args = _parser().parse_args(argv)
    if problem := device_problem(args.device):
        print(f"gumtrace.fuzz: {problem}", file=sys.stderr)
        return 2
    if args.replay is not None:
        return _replay(args.seed, args.replay, args.device)
    seconds = args.seconds if args.seconds is not None or args.items is not None else 60.0
    settings = Settings(args.seed, seconds, args.items, None, args.device, args.workers, args.only)
    with _Progress(settings) as progress:
        summary = fuzz(settings, progress.failed, progress)
    print(table(summary))
    if summary.interrupted:
        print("gumtrace.fuzz: interrupted", file=sys.stderr)
        return 130
    return 1 if summary.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gumtrace.fuzz", description="Look for wrong answers and crashes.")
    limit = "stop after this long, not counting the time to compile (default: 60, or no limit with --items)"
    parser.add_argument("--seconds", type=float, metavar="S", help=limit)
    parser.add_argument("--items", type=positive, metavar="N", help="stop after this many items")
    parser.add_argument("--seed", type=_natural, default=0, help="another seed, other cases (default: 0)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--workers", type=positive, default=2, metavar="N", help="processes (default: 2)")
    parser.add_argument("--only", type=_names, default=ROUND, metavar="A,B", help=f"only these of {', '.join(ROUND)}")
    parser.add_argument(
        "--replay", type=_natural, metavar="CASE", help="run one case of the seed again, in this process"
    )
    return parser


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 on, got {text!r}")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError(f"name at least one of {', '.join(ROUND)}")
    if strange := [name for name in names if name not in ROUND]:
        raise argparse.ArgumentTypeError(f"unknown part {strange[0]!r}: choose from {', '.join(ROUND)}")
    return names


def _replay(seed: int, index: int, device: str) -> int:
    report = run(seed, index, device)
    for failure in report.failures:
        print(describe(failure, seed, device))
    print(f"case {index} of seed {seed}: {report.job}, {report.items} items, {len(report.failures)} failures")
    return 1 if report.failures else 0


def describe(failure: Failure, seed: int, device: str) -> str:
    """A failure in words, with its script."""
    more = "" if device == "cpu" else f" --device {device}"
    lines = [
        f"FAILED {failure.name}",
        f"  {failure.message[:600]}",
        f"  again: python -m gumtrace.fuzz --seed {seed}{more} --replay {failure.index}",
    ]
    return "\n".join([*lines, *(f"    {line}" for line in failure.script.splitlines()), ""])


class _Progress:
    """Failures as they are found; a bar where there is a terminal and tqdm, else a line now and then."""

    def __init__(self, settings: Settings):
        self.settings, self.bar, self.next_line = settings, None, 0.0
        try:
            from tqdm import tqdm
        except ImportError:
            return
        if sys.stderr.isatty():
            self.bar = tqdm(total=settings.items, unit=" items", unit_scale=True, file=sys.stderr, leave=False)

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_) -> None:
        if self.bar is not None:
            self.bar.close()

    def __call__(self, summary: Summary) -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(f"{sum(summary.failed.values())} failures")
            self.bar.update(summary.total - self.bar.n)
        elif time.monotonic() > self.next_line:
            self.next_line = time.monotonic() + 10
            passed = time.monotonic() - summary.started
            words = f"{passed:.0f} s: {summary.total:,} items in {sum(summary.cases.values()):,} cases"
            rate = f"{summary.total / max(passed, 1e-9):,.0f} items/s, {sum(summary.failed.values())} failures"
            print(f"{words}, {rate}", file=sys.stderr, flush=True)

    def failed(self, failure: Failure) -> None:
        text = describe(failure, self.settings.seed, self.settings.device)
        if self.bar is not None:
            self.bar.write(text, file=sys.stdout)
        else:
            print(text, flush=True)


def table(summary: Summary) -> str:
    """Configurations and items by job, checks, failures, time."""
    rows = [["", "cases", "items", "failures"]]
    rows += [
        [name, f"{summary.cases[name]:,}", f"{summary.items[name]:,}", f"{summary.failed[name]:,}"]
        for name in ROUND
        if summary.cases[name]
    ]
    totals = (sum(counter.values()) for counter in (summary.cases, summary.items, summary.failed))
    rows.append(["all", *(f"{total:,}" for total in totals)])
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [f"{row[0]:{widths[0]}}" + "".join(f"  {row[i]:>{widths[i]}}" for i in (1, 2, 3)) for row in rows]
    unsure = summary.checks["unsure"]
    checks = ", ".join(f"{name} {count:,}" for name, count in sorted(summary.checks.items()) if name != "unsure")
    end = time.monotonic()
    compiled = (summary.compiled or end) - summary.started
    seconds = end - summary.started
    lines += ["", f"items by check: {checks}"]
    lines += [f"items that rounding decided, compared as far as it did not: {unsure:,}"]
    lines += [f"{seconds:.0f} s, the first {compiled:.0f} of them to compile"]
    lines += [f"{len(summary.failures)} kinds of failure" + "".join(f"\n  {name}" for name in summary.failures)]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
