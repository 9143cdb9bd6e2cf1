"""The check that code does not synchronise: what it refuses, and what it lets pass."""

import pytest
import torch
from no_reading import NoReading

X, COUNTS = torch.arange(6.0), torch.tensor([1, 2, 1, 0, 0, 3])
MASK = X > 2


def put(index, value):
    X.clone()[index] = value


REFUSED = {
    "item": lambda: X[0].item(),
    "float": lambda: float(X[0]),
    "if": lambda: bool(MASK.any()),
    "equal": lambda: X.equal(X),
    "tolist": lambda: X.tolist(),
    "mask": lambda: X[MASK],
    "bytes as a mask": lambda: X[MASK.byte()],
    "put at a mask": lambda: put(MASK, X[0]),
    "put a number at a mask": lambda: put(MASK, 0),
    "masked_select": lambda: X.masked_select(MASK),
    "nonzero": lambda: MASK.nonzero(),
    "where": lambda: torch.where(MASK),
    "unique": lambda: COUNTS.unique(),
    "unique rows": lambda: COUNTS[None].unique(dim=0),
    "unique_consecutive": lambda: COUNTS.unique_consecutive(),
    "bincount": lambda: COUNTS.bincount(),
    "repeat_interleave": lambda: X.repeat_interleave(COUNTS),
    "tensor on a device": lambda: torch.tensor(5, device=X.device),
    "moved": lambda: torch.tensor(5).to(X.device),
    "moved to another": lambda: torch.as_tensor(5).to(X),
    "as_tensor of one of the host": lambda: torch.as_tensor(torch.tensor(5), device=X.device),
    "as_tensor": lambda: torch.as_tensor(5, device=X.device),
    "as_tensor of a list": lambda: torch.as_tensor([1, 2]),
    "new_tensor": lambda: X.new_tensor([1.0]),
    "list as an index": lambda: X[[0, 1]],
}
ALLOWED = {
    "arithmetic": lambda: X * 2 + 1,
    "full": lambda: torch.full((), 5),
    "where": lambda: torch.where(MASK, 1.0, X),
    "masked_fill": lambda: X.masked_fill(MASK, 0.0),
    "index": lambda: X[COUNTS],
    "put": lambda: put(COUNTS, X),
    "slice": lambda: put(slice(2), 0.0),
    "repeat_interleave of one number": lambda: X.repeat_interleave(2),
    "repeat_interleave to a known size": lambda: X.repeat_interleave(COUNTS, output_size=7),
    "number on the host": lambda: X * torch.tensor(5).to(torch.float64),
    "as_tensor of a tensor": lambda: torch.as_tensor(X, device=X.device).to(X.device),
    "shape": lambda: [len(X), X.shape, X.device],
}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_refused(call):
    call()
    with pytest.raises(AssertionError, match="synchronises"), NoReading():
        call()
    call()


@pytest.mark.parametrize("call", ALLOWED.values(), ids=ALLOWED)
def test_allowed(call):
    with NoReading():
        call()


def test_backward_passes_are_seen():
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * grad.sum().item()

    x = X.clone().requires_grad_()
    with NoReading():
        total = Reads.apply(x).sum()
    with pytest.raises(AssertionError, match="synchronises"), NoReading():
        total.backward()
