"""The networks: an encoder that gives each token a logit, and a predictor that rates a review by the tokens it is
shown; with what RELAX and SurrogateREINFORCE need to know of a review."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumtrace.estimators import MLPSurrogate
from gumtrace_experiments.dropout import thinned

WIDTH = 3  # tokens of a window
FILTERS = 100
_PART = 8  # reviews whose convolutions a CPU's cache holds: three times as fast as all at once
_FAR = -1e4  # of tokens that do not race


class Encoder(nn.Module):
    """Convolutions over the tokens, the last of them with one filter: the logits.

    Args:
        size: of a word's vector.
        hidden: convolutions of 100 filters before it; 0 in the paper's Simple model, 2 in its Complex one.
        dropout: of the vectors.
    """

    def __init__(self, size: int, hidden: int = 0, dropout: float = 0.1):
        super().__init__()
        self.dropout = dropout
        sizes = [size, *[FILTERS] * hidden]
        self.hidden = nn.ModuleList(nn.Conv1d(a, b, WIDTH, padding="same") for a, b in pairwise(sizes))
        self.last = nn.Conv1d(
            sizes[-1], 1, WIDTH, padding="same", bias=False
        )  # the same for all tokens: it would do nothing

    def forward(self, words: Tensor, keep: Tensor | None = None) -> Tensor:
        """(B, n), for vectors (B, n, size) of which `keep` stay."""
        x = words if keep is None else words * keep / (1 - self.dropout)
        for layer in self.hidden:
            x = F.relu(layer(x.mT)).mT
        # Of one filter, products with single tokens are few, and faster than a convolution.
        left, middle, right = (x @ self.last.weight[0]).unbind(-1)  # (B, n)
        return F.pad(left[:, :-1], (1, 0)) + middle + F.pad(right[:, 1:], (0, 1))


class Predictor(nn.Module):
    """A convolution of 100 filters over the tokens that are shown, its maximum over the text, and one linear layer.

    The vector of a token is multiplied by the mask. A window without a token always takes part in the maximum, whatever
    the length of a review; it has no gradient.

    Args:
        size: of a word's vector.
        dropout: of the maxima.
    """

    def __init__(self, size: int, dropout: float = 0.1):
        super().__init__()
        self.dropout = dropout
        bound = (WIDTH * size) ** -0.5
        self.weight = nn.Parameter(torch.empty(WIDTH, size, FILTERS).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(FILTERS).uniform_(-bound, bound))
        self.out = nn.Linear(FILTERS, 1)

    def forward(self, words: Tensor, mask: Tensor, few: int | None = None, keep: Tensor | None = None) -> Tensor:
        """Ratings (*S, B), for vectors (B, n, size) and masks (*S, B, n).

        Args:
            few: how many ones a mask has that is 0 elsewhere, and whose gradient nobody needs: then only these tokens
                are computed with. None: any mask.
            keep: (B, 100), which maxima stay.
        """
        masks = mask.reshape(-1, *words.shape[:-1])  # (S, B, n)
        found = self._maxima(words, masks) if few is None else self._maxima_of_few(words, masks, few)
        x = thinned(F.relu(F.relu(found) + self.bias), self.dropout, keep)  # (S, B, filters)
        return self.out(x).squeeze(-1).sigmoid().reshape(mask.shape[:-1])

    def _maxima_of_few(self, words: Tensor, masks: Tensor, few: int) -> Tensor:
        """The windows around each token that is shown; those without one have 0."""
        samples, items, n = masks.shape
        places = masks.topk(few).indices  # (S, B, few)
        rows = places + n * torch.arange(items, device=places.device)[:, None]
        seen = words.flatten(0, 1).index_select(0, rows.flatten())  # (S B few, size)
        products = seen @ self.weight.transpose(0, 1).flatten(1)  # of each token, at each place in a window
        side = torch.arange(WIDTH, device=places.device) - WIDTH // 2
        middles = (places[..., None] + side).flatten(2)  # (S, B, windows); a window may be there more than once
        # The window with middle m holds a token at place m + side.
        inside = (middles[..., None, None] + side == places[..., None, :, None]).flatten(3)  # (S, B, windows, few · 3)
        edge = (middles >= 0) & (middles < n)  # of the text: there is no window whose middle is outside of it
        inside = (inside & edge[..., None]).to(products.dtype)
        return (inside @ products.view(samples, items, -1, FILTERS)).amax(-2)

    def _maxima(self, words: Tensor, masks: Tensor) -> Tensor:
        """Only the window at which a filter has its maximum has a gradient: the maximum is searched without one."""
        part = _PART if words.device.type == "cpu" else len(words)
        with torch.no_grad():
            parts = zip(words.split(part), masks.split(part, 1), strict=True)
            places = torch.cat([self._places(*some) for some in parts], 1)  # (S, B, filters)
        items, filters = places.shape[1:]
        window = (places[..., None] + torch.arange(WIDTH, device=places.device)).flatten(2)  # in what is padded by one
        rows = window + (words.shape[1] + 2) * torch.arange(items, device=places.device)[:, None]
        padded = F.pad(words, (0, 0, 1, 1)).flatten(0, 1)  # (B (n + 2), size)
        seen = padded.index_select(0, rows.flatten()).view(*places.shape, WIDTH, -1)
        shown = F.pad(masks, (1, 1)).gather(-1, window).view(-1, items, filters, WIDTH)
        return torch.einsum("sbfwe,sbfw,wef->sbf", seen, shown, self.weight)

    def _places(self, words: Tensor, masks: Tensor) -> Tensor:
        """The middle of the window at which each filter has its maximum."""
        left, middle, right = (words @ weight for weight in self.weight)  # (B, n, filters), for all masks
        masks = masks[..., None]
        found = masks * middle
        found[:, :, 1:].addcmul_(masks[:, :, :-1], left[:, :-1])
        found[:, :, :-1].addcmul_(masks[:, :, 1:], right[:, 1:])
        return found.argmax(-2)


class Critic(nn.Module):
    """RELAX's function of the noise: a perceptron on the mean vector of tokens that are likely to be chosen, softmax of
    the noise, and on the rating. It is what the predictor sees, made smooth.

    >>> words, ratings = torch.randn(2, 5, 4), torch.rand(2)
    >>> Critic(4)(torch.randn(3, 2, 5), context(words, ratings)).shape
    torch.Size([3, 2])
    """

    def __init__(self, size: int, hidden: int = 64):
        super().__init__()
        self.size = size
        self.net = nn.Sequential(
            nn.Linear(size + 1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1)
        )

    def forward(self, noise: Tensor, context: Tensor) -> Tensor:
        """(*S,) for noise (*S, n), 0 where a token does not race, and the review as context (*batch, n · size + 1)."""
        with torch.autocast(noise.device.type, enabled=False):
            likely = torch.where(noise != 0, noise, _FAR).softmax(-1)
            seen = _mean_vector(likely, context, self.size)
            rating = context[..., -1:].expand(*seen.shape[:-1], 1)
            return self.net(torch.cat([seen, rating], -1)).squeeze(-1).to(noise.dtype)


class Surrogate(nn.Module):
    """SurrogateREINFORCE's function of the subset: a perceptron on the mean vector of the chosen tokens, and on the
    rating."""

    def __init__(self, size: int, memory: int = 1024):
        super().__init__()
        self.size, self.mlp = size, MLPSurrogate(size, context=1, memory=memory)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.mlp(self._mean(x, context), context[..., -1:])

    def fit(self, x: Tensor, loss: Tensor, context: Tensor, generator: torch.Generator | None = None) -> None:
        self.mlp.fit(self._mean(x, context), loss, context[..., -1:], generator)

    def _mean(self, x: Tensor, context: Tensor) -> Tensor:
        return _mean_vector(x / x.sum(-1, keepdim=True), context, self.size)


def context(words: Tensor, ratings: Tensor) -> Tensor:
    """(B, n · size + 1), what `Critic` and `Surrogate` know of a review: its vectors, and its rating."""
    return torch.cat([words.flatten(1), ratings[:, None]], -1)


def _mean_vector(weights: Tensor, context: Tensor, size: int) -> Tensor:
    """(*S, *batch, size), for weights (*S, *batch, n) of tokens."""
    words = context[..., :-1].unflatten(-1, (-1, size))  # (*batch, n, size)
    return (weights.unsqueeze(-2) @ words).squeeze(-2)
