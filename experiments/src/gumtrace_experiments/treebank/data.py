"""The data of the treebank experiment: sentences as integers. `load` reads a treebank, or makes one up."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gumtrace_experiments.treebank.conllu import PUNCTUATION, TAGS, Sentence, read
from gumtrace_experiments.treebank.synthetic import generate

SYNTHETIC = "synthetic"  # in place of a treebank's name
SPLITS = {"train": "train", "valid": "dev", "test": "test"}  # ours, and as files call them
PADDING, UNKNOWN, ROOT = 0, 1, 2  # among the words
_WORDS = 3  # the first number of a word that is none of these
_TAG = {tag: place for place, tag in enumerate(TAGS, 2)}  # 0 is padding and 1 the root
TAG_COUNT = 2 + len(TAGS)
_SEED = 0  # of what is made up


class Split(NamedTuple):
    """Sentences of up to n - 1 words. Node 0 is an artificial one: the head of the word that has none."""

    words: Tensor  # (B, n) int32, places in the vocabulary
    tags: Tensor  # (B, n) uint8
    heads: Tensor  # (B, n) int16, the node that each word hangs from; -1 for node 0, -2 for padding
    lengths: Tensor  # (B,) int64, nodes: words and one more

    def to(self, device: torch.device | str) -> "Split":
        return Split(*(tensor.to(device) for tensor in self))

    def batch(self, index: Tensor, width: int | None = None) -> "Split":
        """Some of the items, in integers that can be computed with; of so many nodes at most."""
        words, tags, heads, lengths = (x.index_select(0, index).long() for x in self)
        return Split(words[:, :width], tags[:, :width], heads[:, :width], lengths)

    @property
    def gold(self) -> Tensor:
        """(B, n, n) bool: the true edges. Of a batch."""
        nodes = torch.arange(self.heads.shape[-1], device=self.heads.device)
        return self.heads[:, None, :] == nodes[:, None]

    @property
    def is_word(self) -> Tensor:
        """(B, n) bool: neither node 0 nor padding."""
        return self.heads >= 0

    @property
    def is_punctuation(self) -> Tensor:
        return self.tags == _TAG[PUNCTUATION]


@dataclass(frozen=True)
class Treebank:
    """The three splits, and the sentences that their numbers stand for, in the same order."""

    train: Split
    valid: Split
    test: Split
    vocabulary: int
    """How many numbers words have."""
    sentences: dict[str, list[Sentence]]

    def to(self, device: torch.device | str) -> "Treebank":
        splits = (self.train.to(device), self.valid.to(device), self.test.to(device))
        return Treebank(*splits, self.vocabulary, self.sentences)


def load(folder: str | Path, name: str, longest: int, min_count: int, synthetic_size: int) -> Treebank:
    """The treebank of that name in a folder, or one that is made up and needs none.

    Args:
        name: what its files begin with, such as en_ewt; or "synthetic".
        longest: words of a sentence in training. Longer ones are left out there, and nowhere else.
        min_count: words that are rarer in training are all the same unknown word.
        synthetic_size: sentences to train with, if they are made up; a quarter as many to validate and to test.
    """
    sentences = _made_up(synthetic_size, longest) if name == SYNTHETIC else _read(Path(folder), name)
    kept = [sentence for sentence in sentences["train"] if len(sentence.forms) <= longest]
    if not kept:
        raise ValueError(f"treebank: no sentence to train with has {longest} words or fewer")
    sentences = {**sentences, "train": kept}
    words = vocabulary(kept, min_count)
    splits = {part: _split(some, words, longest if part == "train" else None) for part, some in sentences.items()}
    return Treebank(**splits, vocabulary=_WORDS + len(words), sentences=sentences)


def vocabulary(sentences: Sequence[Sentence], min_count: int) -> dict[str, int]:
    """The number of each word in lower case that is there often enough; frequent words first.

    >>> vocabulary([Sentence(("A", "b", "a"), ("X", "X", "X"), (0, 1, 1))], min_count=2)
    {'a': 3}
    """
    counts = Counter(form.lower() for sentence in sentences for form in sentence.forms)
    often = sorted((-count, word) for word, count in counts.items() if count >= min_count)
    return {word: place for place, (_, word) in enumerate(often, _WORDS)}


def find(folder: Path, name: str, part: str) -> Path:
    """The file of a part of a treebank: in the folder, or in a folder inside it."""
    pattern = f"{name}-ud-{part}*.conllu*"
    found = sorted(folder.glob(pattern)) or sorted(folder.glob(f"*/{pattern}"))
    if len(found) > 1:
        raise ValueError(f"treebank: found several files {pattern}: {', '.join(map(str, found))}; keep one of them")
    if not found:
        raise ValueError(
            f"treebank: {name}-ud-{part}.conllu (or .conllu.xz) not found in {folder} or a folder inside it. Treebanks "
            "are at https://universaldependencies.org; en_ewt is UD English-EWT, CC BY-SA 4.0. Give its folder as "
            f"--data, or train on made-up sentences with --treebank {SYNTHETIC}"
        )
    return found[0]


def _read(folder: Path, name: str) -> dict[str, list[Sentence]]:
    files = {ours: find(folder, name, theirs) for ours, theirs in SPLITS.items()}  # all of them, before one is read
    return {part: read(file) for part, file in files.items()}


def _made_up(size: int, longest: int) -> dict[str, list[Sentence]]:
    print(f"treebank: {size:,} made-up sentences to train with, and no real language", file=sys.stderr)
    few = -(-size // 4)
    found = generate(size + 2 * few, _SEED, longest)
    return {"train": found[:size], "valid": found[size:-few], "test": found[-few:]}


def _split(sentences: list[Sentence], words: dict[str, int], longest: int | None) -> Split:
    n = 1 + (longest or max(len(sentence.forms) for sentence in sentences))
    shape = (len(sentences), n)
    split = Split(
        words=torch.full(shape, PADDING, dtype=torch.int32),
        tags=torch.zeros(shape, dtype=torch.uint8),
        heads=torch.full(shape, -2, dtype=torch.int16),
        lengths=torch.tensor([1 + len(sentence.forms) for sentence in sentences]),
    )
    split.words[:, 0], split.tags[:, 0], split.heads[:, 0] = ROOT, 1, -1
    for i, (forms, tags, heads) in enumerate(sentences):
        here = slice(1, 1 + len(forms))
        split.words[i, here] = torch.tensor([words.get(form.lower(), UNKNOWN) for form in forms], dtype=torch.int32)
        split.tags[i, here] = torch.tensor([_TAG[tag] for tag in tags], dtype=torch.uint8)
        split.heads[i, here] = torch.tensor(heads, dtype=torch.int16)
    return split
