"""Train a policy on rankings of its answers: DPO for lists, whose loss is a Plackett-Luce likelihood.

    python listwise_preferences.py --out preferences.png

For your own rankings replace `load_data`; for a language model replace `Policy.log_prob` by the sum of the
log-probabilities of an answer's tokens. No reward model, no samples: the logits of a ranking are
beta log(policy / reference).
"""

import argparse
import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gumtrace as gt


def load_data(prompts: int = 900, answers: int = 6, length: int = 6, tokens: int = 16):
    """Prompts (P, f); answers, tokens (P, K, length) with -1 behind the last one, all -1 where a prompt has fewer
    answers; rankings (P, K), from the best down with -1 behind the last one that was ranked; rewards (P, K), or None
    where nobody knows them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(prompts, 4, generator=generator)
    y = torch.randint(tokens, (prompts, answers, length), generator=generator)
    liked = x @ torch.randn(4, tokens, generator=generator)  # of each token, by prompt
    reward = liked[:, None].expand(-1, answers, -1).gather(-1, y).sum(-1) - 3.0 * (y[..., 1:] == y[..., :-1]).sum(-1)
    ranking = gt.Permutation(reward / 2).sample(generator=generator)  # people do not always agree with it
    return x, y, ranking, reward


class Policy(nn.Module):
    """Tokens one by one, each from the prompt and the token before."""

    def __init__(self, features: int, tokens: int, width: int = 64):
        super().__init__()
        self.prompt, self.before = nn.Linear(features, width), nn.Embedding(tokens + 1, width)
        self.hidden, self.next = nn.Linear(width, width), nn.Linear(width, tokens)

    def log_prob(self, prompts: Tensor, answers: Tensor) -> Tensor:  # (P, f), (P, K, length) -> (P, K)
        there, answers = answers >= 0, answers.clamp(min=0)
        before = F.pad(answers[..., :-1] + 1, (1, 0))  # 0 is the start
        hidden = torch.tanh(self.prompt(prompts)[:, None, None] + self.before(before))
        log_prob = self.next(torch.tanh(self.hidden(hidden))).log_softmax(-1)
        return (log_prob.gather(-1, answers[..., None]).squeeze(-1) * there).sum(-1)


def listwise_loss(logits: Tensor, ranking: Tensor, shown: Tensor) -> Tensor:
    """-log P of a ranking (P, m) with -1 behind the last ranked answer, among the answers that were shown (P, K)."""
    d = gt.Subset(logits, k=(ranking >= 0).sum(-1), mask=shown)
    return -d.trace_log_prob(d.observe(ranking))


def all_pairs_loss(logits: Tensor, ranking: Tensor, shown: Tensor) -> Tensor:
    """DPO's loss, summed over all pairs of the ranking."""
    gap, known, _ = pairs(logits, ranking)
    return -(F.logsigmoid(gap) * known).sum(-1)


def a_pair(ranking: Tensor, shown: Tensor) -> tuple[Tensor, Tensor]:
    """Two of the ranked answers of each prompt, the better one first, as if only these had been shown."""
    chance = torch.rand(ranking.shape).masked_fill(ranking < 0, -1.0)
    pair = ranking.gather(-1, chance.topk(2).indices.sort(-1).values)
    return pair, (pair[..., None] == torch.arange(shown.shape[-1])).any(-2)


def pairs(logits: Tensor, ranking: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of all pairs of places i < j of the rankings: logit of i - logit of j, whether both were ranked, and j - i."""
    i, j = torch.triu_indices(ranking.shape[1], ranking.shape[1], 1)
    score, known = logits.gather(-1, ranking.clamp(min=0)), ranking[:, j] >= 0
    return score[:, i] - score[:, j], known, (j - i).expand(known.shape)


def ranked_pairs(logits: Tensor, ranking: Tensor) -> tuple[Tensor, Tensor]:
    """Of all pairs that were ranked: whether the logits agree, and how many places they are apart."""
    gap, known, apart = pairs(logits, ranking)
    return (gap > 0)[known], apart[known]


def train(start: Policy, data: tuple[Tensor, ...], labels, loss_of, beta: float, steps: int, batch: int = 64) -> Policy:
    """A policy, from the reference `start`. `labels` says what it may see of the rankings."""
    policy, (x, y, ranking) = copy.deepcopy(start), data
    optimiser = torch.optim.Adam(policy.parameters(), lr=3e-3)
    with torch.no_grad():
        reference = start.log_prob(x, y)
    seen, shown = labels(ranking, (y >= 0).any(-1))
    for _ in range(steps):
        some = torch.randint(len(x), (batch,))
        logits = beta * (policy.log_prob(x[some], y[some]) - reference[some])
        loss = loss_of(logits, seen[some], shown[some]).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return policy


KINDS = {  # what a policy may see of the rankings, and its loss
    "one pair (DPO)": (a_pair, listwise_loss),
    "all pairs (DPO)": (lambda ranking, shown: (ranking, shown), all_pairs_loss),
    "the best one": (lambda ranking, shown: (ranking[:, :1], shown), listwise_loss),
    "the best two": (lambda ranking, shown: (ranking[:, :2], shown), listwise_loss),
    "whole ranking": (lambda ranking, shown: (ranking, shown), listwise_loss),
}


def draw(agreed: dict[str, tuple[Tensor, Tensor]], path: str) -> None:
    from matplotlib.figure import Figure

    from gumtrace.plotting.style import INK, SERIES, SOFT

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    ax = figure.subplots()
    for color, (name, (right, apart)) in zip(SERIES, agreed.items(), strict=False):
        distances = apart.unique()
        shares = [right[apart == distance].float().mean() for distance in distances]
        ax.plot(distances, shares, "o-", color=color, markersize=4, label=name)
    ax.set_xlabel("places apart in a held-out ranking", color=SOFT)
    ax.set_ylabel("share of pairs in the right order", color=SOFT)
    ax.set_title("What the policy was told of each prompt", loc="left", fontsize=10, color=INK)
    ax.set_xticks(distances)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beta", type=float, default=0.5, help="how far from the reference: larger stays nearer")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="file for the picture")
    args = parser.parse_args(argv)
    torch.manual_seed(args.seed)
    x, y, ranking, reward = load_data()
    x, y, ranking = x.float(), y.long(), ranking.long()
    train_set, test = [[t[part] for t in (x, y, ranking)] for part in (slice(0, len(x) // 3), slice(len(x) // 3, None))]
    start = Policy(x.shape[-1], int(y.max()) + 1)

    listwise_loss(torch.zeros(y.shape[:2]), ranking, (y >= 0).any(-1))  # an error names the prompt, as `item`
    if (ranking >= 0).sum(-1).max() < 2:
        raise ValueError("no prompt has two ranked answers: there are no pairs to judge by")
    pair, shown = a_pair(ranking, (y >= 0).any(-1))
    logits = torch.randn(shown.shape)
    better, worse = logits.gather(-1, pair.clamp(min=0)).unbind(-1)
    both = (pair >= 0).all(-1)
    gap = (listwise_loss(logits, pair, shown) + F.logsigmoid(better - worse))[both].abs().max()
    print(f"a ranking of two: the loss of DPO, to {gap:.0e}")

    agreed = {}
    for name, (labels, loss_of) in KINDS.items():
        policy = train(start, tuple(train_set), labels, loss_of, args.beta, args.steps)
        with torch.no_grad():
            ratio = policy.log_prob(*test[:2]) - start.log_prob(*test[:2])
        agreed[name] = ranked_pairs(ratio, test[2])
        print(f"{name:15} {agreed[name][0].float().mean():.1%} of {len(agreed[name][0]):,} held-out pairs in order")
    if reward is not None:
        agreed["the true reward"] = ranked_pairs(reward[len(x) // 3 :], test[2])
        print(f"{'the true reward':15} {agreed['the true reward'][0].float().mean():.1%}: rankings are noisy")
    if args.out:
        draw(agreed, args.out)


if __name__ == "__main__":
    main()
