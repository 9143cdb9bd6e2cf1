"""A transformer layer that reads four words of a text, chosen by a glance at each word: it learns which.

    python token_pruner.py --keep 4 --out kept.png

For your own texts replace `load_data`. Beside the sampled words are the ones with the largest scores, which get a
gradient because the kept words are multiplied by their scores.
"""

import argparse
import random
import time

import torch
from torch import Tensor, nn

import gumtrace as gt

Texts = list[tuple[list[str], int]]  # words and a label


def load_data(count: int = 4000) -> Texts:
    """Made-up reviews of 15 to 24 words, three of which judge: the majority of these is the label."""
    generator = random.Random(0)
    judging = (["awful", "bad", "boring", "dull", "poor"], ["bright", "clever", "fine", "good", "great"])
    filler = ["a", "again", "and", "as", "been", "end", "for", "had", "in", "is", "it", "of", "on", "one", "that"]
    filler += ["the", "then", "there", "this", "to", "two", "was", "with", "actor", "camera", "city", "film", "house"]
    filler += ["long", "music", "night", "part", "plot", "road", "scene", "short", "start", "story"]
    texts = []
    for _ in range(count):
        signs = [generator.randrange(2) for _ in range(3)]
        text = [generator.choice(judging[sign]) for sign in signs]
        text += generator.choices(filler, k=generator.randint(12, 21))
        generator.shuffle(text)
        texts.append((text, int(sum(signs) >= 2)))
    return texts


def encode(texts: Texts) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers of words, (texts, longest), 0 behind the end; numbers of words in each; labels."""
    for i, (text, _) in enumerate(texts):
        if isinstance(text, str):
            raise TypeError(f"text {i} is a string: split it into a list of words")
        if not text:
            raise ValueError(f"text {i} has no words: leave it out")
    number = {word: i for i, word in enumerate(sorted({word for text, _ in texts for word in text}), 1)}
    rows = [torch.tensor([number[word] for word in text]) for text, _ in texts]
    labels = torch.tensor([label for _, label in texts])
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows]), labels


class Reader(nn.Module):
    """A glance at each word by itself, a transformer layer for those that are kept, and a class from their mean."""

    def __init__(self, vocabulary: int, longest: int, classes: int, width: int = 32):
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, width), nn.Parameter(0.1 * torch.randn(longest, width))
        self.glance = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
        self.layer = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.classify = nn.Linear(width, classes)

    def look(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of the words, (b, n, width), and their scores, (b, n)."""
        vectors = self.embed(words) + self.place[: words.shape[1]]
        return vectors, self.glance(vectors).squeeze(-1)

    def read(self, vectors: Tensor, kept: Tensor) -> Tensor:
        """Logits of the classes, (*shape, b, classes), from the kept words alone: (*shape, b, k), -1 for none."""
        rows = torch.arange(len(vectors))[:, None]
        chosen = vectors[rows, kept.clamp(min=0)].flatten(0, -3)  # (all, k, width)
        there = (kept >= 0).flatten(0, -2)
        read = self.layer(chosen, src_key_padding_mask=~there) * there[..., None]
        return self.classify(read.sum(1) / there.sum(1, keepdim=True)).view(*kept.shape[:-1], -1)


def cross_entropy(output: Tensor, labels: Tensor) -> Tensor:
    """(*shape, b, classes), (b,) -> (*shape, b)"""
    return -output.log_softmax(-1).gather(-1, labels.expand(output.shape[:-1])[..., None]).squeeze(-1)


def best(scores: Tensor, lengths: Tensor, keep: int) -> Tensor:
    """The words with the largest scores, (b, keep), -1 where a text is too short."""
    scores = scores.masked_fill(torch.arange(scores.shape[1]) >= lengths[:, None], -torch.inf)
    values, kept = scores.topk(min(keep, scores.shape[1]))
    return kept.masked_fill(values.isinf(), -1)


def loss_of(model: Reader, how: str, words: Tensor, lengths: Tensor, labels: Tensor, keep: int, estimator) -> Tensor:
    vectors, scores = model.look(words)
    if how == "all":
        return cross_entropy(model.read(vectors, best(scores, lengths, words.shape[1])), labels)
    if how == "largest":
        return cross_entropy(model.read(vectors * scores.sigmoid()[..., None], best(scores, lengths, keep)), labels)

    def objective(trace) -> Tensor:  # winners (samples, b, keep) -> (samples, b)
        return cross_entropy(model.read(vectors, trace.winners.long()), labels)

    subsets = gt.Subset(scores, k=lengths.clamp(max=keep), lengths=lengths)
    return estimator(subsets, objective, on="trace")


def fit(how: str, model: Reader, data: tuple[Tensor, ...], keep: int, steps: int) -> float:
    """Trains the model, and returns milliseconds of CPU time for a step with 64 texts."""
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    estimator = gt.estimators.TraceREINFORCE(samples=2)
    start = time.process_time()
    for step in range(steps):
        if step == 1:
            start = time.process_time()  # the first one may compile
        rows = torch.randint(len(data[0]), (64,))
        optimiser.zero_grad()
        loss_of(model, how, *(part[rows] for part in data), keep, estimator).mean().backward()
        optimiser.step()
    return 1e3 * (time.process_time() - start) / max(1, steps - 1)


@torch.no_grad()
def test(model: Reader, how: str, data: tuple[Tensor, ...], keep: int) -> tuple[float, float, Tensor]:
    """Accuracy, microseconds of the layer for a text, and the words that were kept."""
    words, lengths, labels = data
    vectors, scores = model.look(words)
    kept = best(scores, lengths, words.shape[1] if how == "all" else keep)
    start = time.process_time()
    output = model.read(vectors * scores.sigmoid()[..., None] if how == "largest" else vectors, kept)
    spent = 1e6 * (time.process_time() - start) / len(words)
    return (output.argmax(-1) == labels).float().mean().item(), spent, kept


def draw(texts: Texts, kept: Tensor, path: str) -> None:
    """Texts with the kept words in colour."""
    from matplotlib.figure import Figure

    from gumtrace.plotting.style import CHOSEN, SOFT

    figure = Figure(figsize=(8, 3.6))
    size, line, widest = 10.0, 0.075, 90  # points, heights of the figure, letters
    advance = 0.602 * size / (72 * 8)  # of a letter, in widths of the figure
    y = 0.93
    for (text, label), chosen in zip(texts, kept.tolist(), strict=True):
        letter = 0
        figure.text(0.01, y, f"{label}", fontsize=size, family="monospace", color=SOFT, weight="bold")
        for place, word in enumerate(text):
            if letter + len(word) > widest:
                letter, y = 0, y - line
            style = {"color": CHOSEN, "weight": "bold"} if place in chosen else {"color": SOFT, "alpha": 0.6}
            figure.text(0.04 + advance * letter, y, word, fontsize=size, family="monospace", **style)
            letter += len(word) + 1
        y -= 1.5 * line
        if y < 0.1:
            break
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=int, default=4, help="words for the transformer layer")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="file for the picture")
    args = parser.parse_args(argv)
    texts = load_data()
    random.Random(args.seed).shuffle(texts)
    data, half = encode(texts), len(texts) // 2
    train, rest = tuple(part[:half] for part in data), tuple(part[half:] for part in data)
    sizes = (
        int(data[0].max()) + 1,
        data[0].shape[1],
        int(data[2].max()) + 1,
    )  # some words are only in test
    print(f"{'words that are read':21}accuracy   training step, ms   reading, µs/text")
    for how, name in (("all", "all"), ("largest", f"{args.keep}, largest"), ("sampled", f"{args.keep}, sampled")):
        torch.manual_seed(args.seed)
        model = Reader(*sizes)
        step = fit(how, model, train, args.keep, args.steps)
        accuracy, spent, kept = test(model, how, rest, args.keep)
        print(f"{name:21}{accuracy:8.1%}{step:20.1f}{spent:19.1f}")
    if args.out:
        draw(texts[half:], kept, args.out)


if __name__ == "__main__":
    main()
