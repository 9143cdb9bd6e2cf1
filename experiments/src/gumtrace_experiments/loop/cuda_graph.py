"""An update as a CUDA graph: what the host asks for in hundreds of calls becomes one."""

import gc
from collections.abc import Callable, Iterable

import torch

AHEAD = 16  # replays in the device's queue at most: enough for it never to be idle


class Recording:
    """What `update` asks of the device, with these generators, on a stream. It was called before, to warm up."""

    def __init__(self, update: Callable[[], None], stream: torch.cuda.Stream, generators: Iterable[torch.Generator]):
        self._graph = torch.cuda.CUDAGraph()
        for generator in generators:
            self._graph.register_generator_state(generator)
        gc.collect()  # the graph of a run that is over: were it freed while this one is recorded, CUDA would give up
        with torch.cuda.graph(self._graph, stream=stream):
            update()
        self._asked, self._count = [torch.cuda.Event() for _ in range(AHEAD)], 0

    def replay(self) -> None:
        """On the current stream. Waits for the replay before the last `AHEAD`: a device whose queue is full would keep
        the host waiting in the middle of a call, and with it whatever runs beside this one."""
        self._graph.replay()
        done = self._asked[self._count % AHEAD]
        done.synchronize()  # at once, where it was never recorded
        done.record()
        self._count += 1
