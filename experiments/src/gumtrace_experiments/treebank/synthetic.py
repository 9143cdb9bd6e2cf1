"""A small treebank of a made-up language, for tests and for trying things out where no real one is at hand.

Phrases are made around their heads. Who depends on whom is mostly a matter of tags and order; but adpositions differ:
phrases with OF belong to the noun before them and phrases with AT to the verb, wherever it is. So words count too.
"""

import random

from gumtrace_experiments.treebank.conllu import Sentence

OF, AT = ("lo", "mi"), ("ta", "ku", "ne")  # adpositions
_STARTS, _VOWELS, _ENDS = "bdfgklmnprstvz", "aeiou", ("n", "r", "sh", "t")
_STEMS = [start + vowel + end for end in _ENDS for vowel in _VOWELS for start in _STARTS]  # 280
_CLASSES = {"NOUN": (_STEMS[:150], "o"), "VERB": (_STEMS[150:220], "ar"), "ADJ": (_STEMS[220:260], "ik")}
_CLASSES |= {"ADV": (_STEMS[260:], "im"), "DET": (["la", "sa", "da"], ""), "PUNCT": ([".", "!", "?"], "")}
_DEPTH = 2  # of phrases in phrases

Phrase = list[tuple[str, str, int]]  # form, tag, and the head's place in the phrase: -1 for the head of all


def generate(count: int, seed: int, longest: int) -> list[Sentence]:
    """Sentences of at most so many words; the same for a seed, and no two alike.

    >>> generate(1, seed=0, longest=8)[0].tags
    ('NOUN', 'VERB', 'ADP', 'DET', 'NOUN', 'ADP', 'NOUN', 'PUNCT')
    """
    rng = random.Random(f"treebank {seed}")
    found: dict[Sentence, None] = {}
    for _ in range(100 * count):  # most are short, and soon come again
        phrase = _joined([_clause(rng, _DEPTH), _word(rng, "PUNCT")], head=0)
        if len(phrase) <= longest:
            forms, tags, heads = zip(*phrase, strict=True)
            found[Sentence(forms, tags, tuple(head + 1 for head in heads))] = None
        if len(found) == count:
            return list(found)
    raise ValueError(f"treebank: found only {len(found)} different sentences of at most {longest} words, not {count}")


def _clause(rng: random.Random, depth: int) -> Phrase:
    """Subject, verb, perhaps an adverb before it, an object and phrases with AT."""
    subject, verb = _noun_phrase(rng, depth), _word(rng, "VERB")
    parts = [subject, verb]
    if rng.random() < 0.3:
        parts.insert(1, _word(rng, "ADV"))
    if rng.random() < 0.6:
        parts.append(_noun_phrase(rng, depth))
    parts += [_adpositional(rng, AT, depth - 1) for _ in range(2) if depth and rng.random() < 0.3]
    return _joined(parts, head=parts.index(verb))


def _noun_phrase(rng: random.Random, depth: int) -> Phrase:
    """Perhaps a determiner and adjectives before the noun, perhaps a phrase with OF behind it."""
    before = [_word(rng, "DET")] if rng.random() < 0.6 else []
    before += [_word(rng, "ADJ") for _ in range(2) if rng.random() < 0.25]
    after = [_adpositional(rng, OF, depth - 1)] if depth and rng.random() < 0.3 else []
    return _joined([*before, _word(rng, "NOUN"), *after], head=len(before))


def _adpositional(rng: random.Random, forms: tuple[str, ...], depth: int) -> Phrase:
    """As in Universal Dependencies, its head is the noun."""
    return _joined([[(rng.choice(forms), "ADP", -1)], _noun_phrase(rng, depth)], head=1)


def _word(rng: random.Random, tag: str) -> Phrase:
    """Some are frequent, and many are rare."""
    stems, ending = _CLASSES[tag]
    return [(stems[int(len(stems) * rng.random() ** 3)] + ending, tag, -1)]


def _joined(parts: list[Phrase], head: int) -> Phrase:
    """One after the other, all depending on one of them."""
    starts = [sum(map(len, parts[:i])) for i in range(len(parts))]
    top = starts[head] + next(i for i, (_, _, to) in enumerate(parts[head]) if to < 0)
    joined: Phrase = []
    for i, (start, part) in enumerate(zip(starts, parts, strict=True)):
        joined += [(form, tag, start + to if to >= 0 else -1 if i == head else top) for form, tag, to in part]
    return joined
