"""Cheap functions c(X) of a structure, fitted to the objective during training: here by ridge regression,
`mlp_surrogate` has a perceptron.

All that they learn is in their parameters and buffers, and so in `state_dict()`, in copies, and on the estimator's
device. They skip losses that are not finite, which would stay there.
"""

import torch
from torch import Tensor, nn

_MOST_FEATURES = 8192  # half a gigabyte of normal equations, and seconds to solve them
_ROWS = 1024  # of features that are in memory at once


class _Surrogate(nn.Module):
    """Buffers whose sizes depend on the data: a state that is loaded brings its own sizes, if they are consistent."""

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors):  # type: ignore[override]
        names = [name for name, _ in self.named_buffers(recurse=False) if prefix + name in state_dict]
        sizes = {name: state_dict[prefix + name].shape for name in names}
        if not self.possible(sizes):
            errors.append(f"size mismatch for {prefix}*: {', '.join(names)} are not consistent")
            return
        for name, size in sizes.items():
            setattr(self, name, getattr(self, name).new_empty(size))
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)

    def possible(self, sizes: dict[str, torch.Size]) -> bool:
        """Whether one surrogate can have buffers of these sizes; some may be missing."""
        raise NotImplementedError


class LinearSurrogate(_Surrogate):
    """c(X) = w·φ(X), by ridge regression on all finite losses so far, with smaller weights for older ones.

    φ is a one and the entries of the structure; `PairwiseSurrogate` adds their products.

    The normal equations are solved again when the losses since then are a quarter of those before, or a third of the
    number of features: solving then costs no more than summing the equations.

    Args:
        ridge: the penalty on w, in units of losses: 1 is safe while there are fewer losses than features, and
            negligible next to many. The intercept has none: a constant in the loss changes no other weight.
        forget: weight of a call's losses relative to the next one's; 1 if the objective does not change.
    """

    weight: Tensor  # (features,)
    gram: Tensor  # (features, features)
    moment: Tensor  # (features,)
    waiting: Tensor  # (rows, entries) that are not in the normal equations yet
    waiting_loss: Tensor  # (rows,)
    waiting_weight: Tensor  # (rows,), oldest first

    def __init__(self, *, ridge: float = 1.0, forget: float = 0.99):
        super().__init__()
        if not (ridge > 0 and 0 < forget <= 1):
            raise ValueError(f"{type(self).__name__}: needs ridge > 0 and 0 < forget <= 1, got {ridge} and {forget}")
        self.ridge, self.forget = ridge, forget
        for name in ("weight", "moment", "waiting_loss", "waiting_weight"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))
        for name in ("gram", "waiting"):
            self.register_buffer(name, torch.zeros(0, 0, dtype=torch.float64))

    def extra_repr(self) -> str:
        return f"ridge={self.ridge}, forget={self.forget}"

    def possible(self, sizes: dict[str, torch.Size]) -> bool:
        if len(sizes) < len(list(self.buffers())):
            return True  # torch reports what is missing
        if any(len(size) != getattr(self, name).ndim for name, size in sizes.items()):
            return False
        (rows, entries), (features, other) = sizes["waiting"], sizes["gram"]
        vectors = {"moment": (features,), "waiting_loss": (rows,), "waiting_weight": (rows,)}
        if other != features or any(sizes[name] != size for name, size in vectors.items()):
            return False
        if sizes["weight"] not in ((0,), (features,)):  # nothing was solved yet
            return False
        if features <= entries:  # before the first loss
            return features == entries == 0
        return self.features(self.gram.new_zeros(1, entries)).shape[-1] == features

    def features(self, x: Tensor) -> Tensor:
        """(*S, entries) -> (*S, features), the first of them 1."""
        return torch.cat([x.new_ones(*x.shape[:-1], 1), x], -1)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        self._check_entries(x)
        if not len(self.weight):
            return x.new_zeros(x.shape[:-1])
        weight = self.weight.to(x.dtype)
        return self.predict(x, weight[1:]) + weight[0]  # added last: it may be large next to the rest

    def predict(self, x: Tensor, weight: Tensor) -> Tensor:
        """w·φ(X) without the intercept, (*S,)."""
        return x @ weight

    @torch.no_grad()
    def fit(
        self, x: Tensor, loss: Tensor, context: Tensor | None = None, generator: torch.Generator | None = None
    ) -> None:
        """Add these losses to the regression, which is solved now or in a later call."""
        self._check_entries(x)
        x, loss = x.flatten(0, -2), loss.flatten().double()
        finite = usable(loss, x.dtype)
        x, loss = x[finite].double(), loss[finite]
        if not len(loss):
            return
        if not len(self.gram):
            self._start(x)
        self.waiting = torch.cat([self.waiting, x])
        self.waiting_loss = torch.cat([self.waiting_loss, loss])
        self.waiting_weight = torch.cat([self.forget * self.waiting_weight, torch.ones_like(loss)])
        if len(self.waiting) >= min(self.gram[0, 0] / 4, len(self.gram) / 3):
            self._add_waiting()
            self._solve()

    def _check_entries(self, x: Tensor) -> None:
        entries = self.waiting.shape[1]
        if len(self.gram) and x.shape[-1] != entries:
            raise ValueError(
                f"{type(self).__name__}: it has learnt from structures of {entries} entries, these have {x.shape[-1]}; "
                "a surrogate is for one structure and size: pad all batches to one width (lengths=)"
            )

    def _start(self, x: Tensor) -> None:
        size = self.features(x[:1]).shape[-1]
        self.gram, self.moment = x.new_zeros(size, size), x.new_zeros(size)
        self.waiting, self.waiting_loss, self.waiting_weight = x[:0], x.new_zeros(0), x.new_zeros(0)

    def _add_waiting(self) -> None:
        """Add them to the normal equations, as if each call had been added at once."""
        decay = self.forget * self.waiting_weight[0]
        self.gram, self.moment = decay * self.gram, decay * self.moment
        rows = (self.waiting, self.waiting_loss, self.waiting_weight)
        for x, loss, weight in zip(*(t.split(_ROWS) for t in rows), strict=True):
            features = self.features(x)  # (rows, features)
            weighted = features.mT * weight
            self.gram.addmm_(weighted, features)
            self.moment.addmv_(weighted, loss)
        self.waiting, self.waiting_loss, self.waiting_weight = (t[:0].clone() for t in rows)

    def _solve(self) -> None:
        """Features that never occurred have weight zero, and are left out of the system.

        The first feature is the intercept. It has no penalty, and the mean of the losses is subtracted.
        """
        occurred = self.gram.diagonal().nonzero().squeeze(-1)
        system = self.gram[occurred[:, None], occurred]
        system.diagonal()[1:].add_(self.ridge)
        mean = self.moment[0] / self.gram[0, 0]
        moment = (self.moment - mean * self.gram[0])[occurred, None]
        solved = torch.cholesky_solve(moment, torch.linalg.cholesky(system))
        self.weight = torch.zeros_like(self.moment).index_copy_(0, occurred, solved[:, 0])
        self.weight[0] += mean

    def _apply(self, fn, recurse=True):
        """Moves to the estimator's device, and stays float64, which the normal equations need."""
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            setattr(self, name, buffer.to(getattr(self, name).device))
        return self


class PairwiseSurrogate(LinearSurrogate):
    """`LinearSurrogate` with products of entries too: exact for objectives that are quadratic in the structure."""

    def features(self, x: Tensor) -> Tensor:
        i, j = _pairs(x)
        return torch.cat([super().features(x), x[..., i] * x[..., j]], -1)

    def predict(self, x: Tensor, weight: Tensor) -> Tensor:
        """As a quadratic form: the products of many structures would not fit in memory."""
        size = x.shape[-1]
        i, j = _pairs(x)
        form = x.new_zeros(size, size)
        form[i, j] = weight[size:]
        return super().predict(x, weight[:size]) + (x @ form * x).sum(-1)

    def _start(self, x: Tensor) -> None:
        size = x.shape[-1]
        features = 1 + size + size * (size - 1) // 2
        if features > _MOST_FEATURES:
            raise ValueError(
                f"PairwiseSurrogate: {size} entries make {features:,} features, more than the {_MOST_FEATURES:,} that "
                "are solved for; take LinearSurrogate or MLPSurrogate"
            )
        super()._start(x)


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    i, j = torch.triu_indices(x.shape[-1], x.shape[-1], 1, device=x.device)
    return i, j


def usable(loss: Tensor, dtype: torch.dtype) -> Tensor:
    """Which losses can be learned from: those that are finite, as are the sums of their squares in this dtype."""
    return loss.abs() < torch.finfo(dtype).max ** 0.4
