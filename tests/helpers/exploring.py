"""What the explorer should show, worked out with the library alone; and a browser to look with."""

import shutil
import threading
from contextlib import contextmanager

import torch
from cases import OPENING

from gumtrace.steps import steps


class Expected:
    """The run of a structure that has the size it opens with, for logits by key."""

    def __init__(self, structure: str, logits: dict[int, float], seed: int):
        shape, build = OPENING[structure]
        x = torch.zeros(torch.Size(shape).numel(), dtype=torch.float64)
        x[list(logits)] = torch.tensor(list(logits.values()), dtype=torch.float64)
        self.structure = structure
        self.dist = build(x.reshape(shape))
        self.noise = self.dist.perturb(generator=torch.Generator().manual_seed(seed))
        self.trace = self.dist.trace(self.noise)
        self.steps = steps(self.dist, self.trace)
        self.log_prob = self.dist.trace_log_prob(self.trace).item()
        self.value = self.trace.value.tolist()

    @property
    def times(self) -> dict[str, float]:
        """Of the keys that race."""
        times = (-self.noise).exp().flatten().tolist()
        return {str(key): times[key] for key in self.dist.racing.flatten().nonzero()[:, 0].tolist()}

    @property
    def drawn(self) -> set:
        """What of the structure can be read off its picture: chosen keys, or lines between them."""
        if self.structure == "permutation":
            return {f"{key}-{place}" for place, key in enumerate(self.value)}
        if self.structure == "binary-tree":
            return {f"{parent}-{child}" for child, parent in enumerate(self.value) if parent >= 0}
        value = self.trace.value.triu(1) if self.dist.symmetric else self.trace.value
        return set(value.flatten().nonzero()[:, 0].tolist())


def chromium() -> str | None:
    """The system's, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


@contextmanager
def browser():
    """Headless, with a new profile; it asks nobody for anything by itself."""
    from playwright.sync_api import sync_playwright

    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", *quiet]
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=flags)
        yield running
        running.close()


@contextmanager
def serving(server):
    """A server that runs beside the test."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    with server:
        thread.start()
        yield server
        server.shutdown()
        thread.join()
