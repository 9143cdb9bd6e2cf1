"""Checks of what must not matter: validation, and whether an item comes alone, in a batch or in a larger one."""

import numpy as np
import torch

from gumtrace.fuzz.subject import Subject, Wrong, flat, padded


def unchecked(s: Subject) -> None:
    """Without validation all is the same."""
    d = s.case.build(validate_args=False)
    for name, run in _EVERYTHING.items():
        ours, expected = (s.rows(run(dist, s)) for dist in (d, s.d))
        off = 0.0
        if name == "trace":
            ours, expected = padded(ours, expected)  # on CUDA the largest k is not read: there may be more slots,
        elif name == "trace_log_prob" and s.on_device:  # and sums over decisions are trees of another shape
            off = s.eps * (1 + np.log2(1 + s.keys)) * np.abs(expected)
        elif name == "conditional" and s.on_device:  # as are those of log-totals and of E, a relative error each
            off = s.eps * (1 + np.log2(1 + s.keys)) * (1 + np.abs(expected))
        show = (*s.shown, f"# {name} is another with validate_args=False")
        s.tally["validate_args=False"] += len(ours)
        with np.errstate(invalid="ignore"):  # inf - inf
            near = (ours == expected) | (np.abs(ours - expected) <= off) | (np.isnan(ours) & np.isnan(expected))
        if not near.all():
            raise Wrong("validate_args=False", f"{name}: expected {expected}, got {ours}", None, show)


_EVERYTHING = {
    "trace": lambda d, s: d.trace(s.noise).winners,
    "trace_log_prob": lambda d, s: d.trace_log_prob(d.trace(s.noise)),
    "sample": lambda d, s: d.sample(s.case.samples, generator=s.case.generator(2)),
    "perturb": lambda d, s: d.perturb(s.case.samples, generator=s.case.generator(2)),
    "conditional": lambda d, s: d.conditional(d.trace(s.noise), generator=s.case.generator(2)),
}


def indexing(s: Subject) -> None:
    """An item alone, an indexed trace and an expanded distribution say what the batch says."""
    if s.case.items == 0:
        return
    row = s.case.seed % s.case.rows
    index = tuple(int(i) for i in np.unravel_index(row, s.case.batch)) if s.case.batch else ()
    item = s.d.item(index)
    trace = s.trace[(..., *index)] if s.trace.shape else s.trace
    show = (*s.shown, f"item = d.item({index})", f"of_item = trace[{('...', *index)!r}]".replace("'...'", "..."))
    whole = s.d.trace_log_prob(s.trace)[(..., *index)]
    _agree(s, "item", item.trace_log_prob(trace), whole, (*show, "print(item.trace_log_prob(of_item))"))
    _agree(s, "item", item.trace(s.noise[_behind(index, s.case.dims)]).value, trace.value, show)
    wide = s.d.expand(torch.Size((2, *s.case.batch)))
    shape = (*s.case.samples, 2, *s.case.logits.shape)
    noise = s.noise.unsqueeze(-s.case.logits.dim() - 1).expand(shape)
    both = wide.trace(noise)
    show = (*s.shown, f"wide = d.expand({(2, *s.case.batch)})", "print(wide.trace_log_prob(wide.trace(noise)))")
    place = len(s.case.samples)
    for j in range(2):
        ours = wide.trace_log_prob(both).select(place, j)
        _agree(s, "expand", ours, s.d.trace_log_prob(s.trace), show)


def _behind(index: tuple[int, ...], dims: int):
    return (..., *index, *[slice(None)] * dims)


def _agree(s: Subject, check: str, ours: torch.Tensor, expected: torch.Tensor, show: tuple[str, ...]) -> None:
    s.tally[check] += 1
    ours, expected = ours.detach().cpu(), expected.detach().cpu()
    alike = torch.equal(ours, expected)
    if s.case.device != "cpu" and ours.is_floating_point():  # sums have another order
        alike = torch.allclose(ours, expected, rtol=8 * s.eps, atol=8 * s.eps, equal_nan=True)
    if not alike:
        raise Wrong(check, f"expected {expected.tolist()}, got {ours.tolist()}", None, show)


def mode(s: Subject) -> None:
    outcome = s.case.kind.outcome(s.case, s.case.x, None)
    ours = flat(s.d.mode.cpu().double().numpy(), s.case.rows)
    s.tally["mode"] += len(ours)
    bad = (ours != flat(outcome.value, s.case.rows)).any(1) & ~outcome.unsure
    if bad.any():
        row = int(bad.argmax())
        raise Wrong(
            "mode", f"expected {outcome.value[row].tolist()}, got {ours[row].tolist()}", row, ("print(d.mode)",)
        )
