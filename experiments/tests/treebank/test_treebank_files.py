"""Files in the CoNLL-U format, made up and real; and what becomes of their sentences."""

import lzma
import os
from pathlib import Path

import networkx as nx
import pytest
import torch

from gumtrace_experiments.treebank import data
from gumtrace_experiments.treebank.conllu import TAGS, Sentence, check, read
from gumtrace_experiments.treebank.data import ROOT, UNKNOWN, load, vocabulary
from gumtrace_experiments.treebank.synthetic import AT, OF, generate


def lines(*words):
    """A sentence of words given as "id form tag head"."""
    rows = [word.split(" ") for word in words]
    return "".join(f"{i}\t{form}\t_\t{tag}\t_\t_\t{head}\tdep\t_\t_\n" for i, form, tag, head in rows) + "\n"


SECOND = lines("1 Rain PROPN 2", "2 falls VERB 0")
BEGIN = "# text = I don't.\n" + lines(
    "1 I PRON 2", "2-3 don't _ _", "2 do VERB 0", "3 n't PART 2", "3.1 go VERB _", "4 . PUNCT 2"
)
SAMPLE = BEGIN + "# newdoc\n# text = Rain falls\n" + SECOND
FIRST = Sentence(("I", "do", "n't", "."), ("PRON", "VERB", "PART", "PUNCT"), (2, 0, 2, 2))
# Of UD English-EWT: sentences, words, and sentences of more than 60 words.
ORIGINAL = {"train": (12_544, 204_577, 94), "dev": (2_001, 25_147, 5), "test": (2_077, 25_094, 6)}
FOLDER = os.environ.get("GUMTRACE_TREEBANK")


def written(folder, content=SAMPLE, name="a_b-ud-train.conllu"):
    path = folder / name
    path.write_bytes(lzma.compress(content.encode()) if name.endswith(".xz") else content.encode())
    return path


def treebank(folder, train=SAMPLE, dev=SECOND, test=SAMPLE):
    for part, content in (("train", train), ("dev", dev), ("test", test)):
        written(folder, content, f"a_b-ud-{part}.conllu")
    return folder


# --- the reader ---


@pytest.mark.parametrize("name", ["small.conllu", "small.conllu.xz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_words_and_nothing_else(tmp_path, name, end):
    found = read(str(written(tmp_path, SAMPLE.replace("\n", end), name)))
    assert found == [FIRST, Sentence(("Rain", "falls"), ("PROPN", "VERB"), (2, 0))]


@pytest.mark.parametrize("content", [SAMPLE.rstrip("\n"), SAMPLE + "\n\n", SAMPLE + "# the end\n", "\ufeff" + SAMPLE])
@pytest.mark.parametrize("name", ["small.conllu", "small.conllu.xz"])
def test_how_a_file_begins_and_ends(tmp_path, content, name):
    assert read(written(tmp_path, content, name)) == read(written(tmp_path, SAMPLE, name))


def test_words_may_have_spaces_and_signs(tmp_path):
    content = SECOND.replace("Rain", "1 000").replace("falls", "# falls")
    assert read(written(tmp_path, content))[0].forms == ("1 000", "# falls")


@pytest.mark.parametrize(
    ("row", "line", "message"),
    [
        ("1\tRain\t_\tNOUN\t_\t_\t0\troot\t_", 9, "a word has 10 columns with tabs between, not 9: '1.tRain"),
        ("1 Rain _ NOUN _ _ 0 root _ _", 9, "a word has 10 columns with tabs between, not 1"),
        (lines("2 Rain NOUN 0"), 9, "expected word 1 of the sentence, got word 2"),
        (lines("1 A DET 2", "1 Rain NOUN 0"), 10, "expected word 2 of the sentence, got word 1"),
        (lines("x Rain NOUN 0"), 9, "words are numbered 1, 2, ..., ranges are 3-4 and empty nodes 8.1, not 'x'"),
        (lines("1- Rain NOUN 0"), 9, "words are numbered 1, 2, .*, not '1-'"),
        (lines("-1 Rain NOUN 0"), 9, "words are numbered 1, 2, .*, not '-1'"),
        (lines("1  NOUN 0"), 9, "word 1 is empty"),
        (lines("1 Rain N 0"), 9, "unknown tag 'N': universal tags are ADJ ADP .* X"),
        (lines("1 Rain NOUN _"), 9, "the head of a word is the number of another one, or 0, not '_'"),
        (lines("1 Rain NOUN 0.5"), 9, "the head of a word is the number of another one, or 0, not '0.5'"),
        (lines("1 Rain NOUN -1"), 9, "the head of a word is the number of another one, or 0, not '-1'"),
        (lines(f"1 Rain NOUN {5000 * '1'}"), 9, "the head of a word is the number of another one, or 0, not '1{40}'"),
        (lines(f"{5000 * '1'} Rain NOUN 0"), 9, "expected word 1 of the sentence, got word 1{40}$"),
        (lines("1 A DET 3", "2 Rain NOUN 0"), 9, "head 3 is not one of the 2 words"),
        (lines("1 A DET 2", "2 Rain NOUN 1"), 9, "no word is the root, with head 0"),
        (lines("1 A DET 2", "2 Rain NOUN 0", "3 falls VERB 0"), 11, "words 2 and 3 are all roots, with head 0"),
        (lines("1 A DET 0", "2 Rain NOUN 2"), 10, "word 2 is its own head"),
        (lines("1 A DET 0", "2 b X 5", "3 c X 2", "4 d X 3", "5 e X 3"), 10, "words 2, 3 and 5 go around in a circle"),
    ],
)
@pytest.mark.parametrize("name", ["small.conllu", "small.conllu.xz"])
def test_a_row_that_is_wrong(tmp_path, name, row, line, message):
    path = written(tmp_path, BEGIN + row, name)
    with pytest.raises(ValueError, match=rf"{name}, line {line}: {message}"):
        read(path)


def test_a_file_that_is_damaged(tmp_path):
    path = written(tmp_path, SAMPLE, "small.conllu.xz")
    content = path.read_bytes()
    for other in (content[:-20], b"xz" + content, SAMPLE.encode()):
        path.write_bytes(other)
        with pytest.raises(ValueError, match=r"small\.conllu\.xz is damaged after line \d"):
            read(path)
    path = written(tmp_path)
    path.write_bytes(SAMPLE.encode() + b"1\t\xff\n")
    with pytest.raises(ValueError, match=r"is damaged after line \d"):
        read(path)
    for nothing in ("", "\n\n", "# text\n\n"):
        with pytest.raises(ValueError, match="has no sentence"):
            read(written(tmp_path, nothing))
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "other.conllu")


def test_trees_as_networkx_sees_them():
    """All heads of up to four words, right and wrong."""
    for n in (1, 2, 3, 4):
        for heads in torch.cartesian_prod(*[torch.arange(n + 1)] * n).reshape(-1, n).tolist():
            edges = [(head, place) for place, head in enumerate(heads, 1)]
            graph = nx.DiGraph(edges)
            graph.add_nodes_from(range(n + 1))
            assert (check(tuple(heads)) is None) == (nx.is_arborescence(graph) and heads.count(0) == 1)


# --- sentences as integers ---


def test_sentences_become_integers(tmp_path):
    found = load(treebank(tmp_path), "a_b", longest=6, min_count=1, synthetic_size=1)
    assert found.train.words.shape == found.train.tags.shape == found.train.heads.shape == (2, 7)
    assert found.valid.words.shape == (1, 3)  # as long as its longest sentence
    assert found.vocabulary == 3 + 6
    assert found.train.lengths.tolist() == [5, 3]
    assert found.train.heads.tolist() == [[-1, 2, 0, 2, 2, -2, -2], [-1, 2, 0, -2, -2, -2, -2]]
    assert found.train.words[:, 0].tolist() == [ROOT, ROOT]
    assert found.train.words[1, 1:3].tolist() == found.valid.words[0, 1:].tolist()
    assert found.train.words[1, 3:].tolist() == [0] * 4
    tags = ["", "root", *TAGS]
    assert [tags[i] for i in found.train.tags[0].tolist()] == ["root", "PRON", "VERB", "PART", "PUNCT", "", ""]
    batch = found.train.batch(torch.tensor([1, 0]), width=5)
    assert all(x.dtype == torch.int64 for x in batch)
    assert batch.is_word.tolist() == [[False, True, True, False, False], [False, True, True, True, True]]
    assert batch.is_punctuation.nonzero().tolist() == [[1, 4]]
    assert batch.gold[0].nonzero().tolist() == [[0, 2], [2, 1]]
    assert all(x.device.type == "meta" for x in found.to("meta").test)


def test_rare_words_are_unknown(tmp_path):
    train = SAMPLE + lines("1 RAIN PROPN 0", "2 rare ADJ 1")
    found = load(treebank(tmp_path, train, dev=lines("1 rain PROPN 0", "2 I PRON 1")), "a_b", 6, 2, 1)
    assert found.vocabulary == 4  # rain, whatever its case
    assert found.valid.words.tolist() == [[ROOT, 3, UNKNOWN]]
    assert found.train.words[1, :3].tolist() == [ROOT, 3, UNKNOWN]
    assert vocabulary([FIRST, FIRST], 2) == {".": 3, "do": 4, "i": 5, "n't": 6}


def test_long_sentences_are_left_out_of_training_alone(tmp_path):
    found = load(treebank(tmp_path), "a_b", longest=3, min_count=1, synthetic_size=1)
    assert found.train.words.shape == (1, 4)
    assert found.sentences["train"] == [Sentence(("Rain", "falls"), ("PROPN", "VERB"), (2, 0))]
    assert found.vocabulary == 3 + 2
    assert found.test.words.shape == (2, 5)
    assert found.sentences["test"][0] == FIRST
    with pytest.raises(ValueError, match="no sentence to train with has 1 words or fewer"):
        load(tmp_path, "a_b", longest=1, min_count=1, synthetic_size=1)


def test_where_files_are_looked_for(tmp_path):
    inside = tmp_path / "UD_A-B"
    inside.mkdir()
    for part in ("train", "test"):
        written(inside, SAMPLE, f"a_b-ud-{part}.conllu")
    with pytest.raises(
        ValueError,
        match=r"a_b-ud-dev.conllu \(or .conllu.xz\) not found in .* or a folder inside it.*"
        r"universaldependencies.org.*CC BY-SA 4.0.*--data.*--treebank synthetic",
    ):
        load(tmp_path, "a_b", 6, 1, 1)
    written(inside, SAMPLE, "a_b-ud-dev.rebuilt.conllu.xz")
    assert len(load(tmp_path, "a_b", 6, 1, 1).valid.words) == 2
    written(inside, SAMPLE, "a_b-ud-dev.conllu")
    with pytest.raises(ValueError, match=r"several files a_b-ud-dev.*keep one of them"):
        load(tmp_path, "a_b", 6, 1, 1)
    assert data.find(treebank(tmp_path), "a_b", "dev").parent == tmp_path  # here rather than inside


# --- sentences that are made up ---


def test_made_up_sentences(tmp_path, capsys):
    found = load(tmp_path / "nowhere", data.SYNTHETIC, longest=12, min_count=2, synthetic_size=40)
    assert "40 made-up sentences to train with, and no real language" in capsys.readouterr().err
    assert [len(found.sentences[part]) for part in data.SPLITS] == [40, 10, 10]
    every = [sentence for part in found.sentences.values() for sentence in part]
    assert len(set(every)) == 60
    assert every == generate(60, 0, 12) != generate(60, 1, 12)
    for forms, tags, heads in every:
        assert check(heads) is None
        assert len(forms) <= 12
        for form, tag, head in zip(forms, tags, heads, strict=True):
            above = tags[head - 1] if head else ""
            of = tag == "ADP" and form in OF
            assert tag != "ADP" or (form in OF) != (form in AT)
            outer = heads[head - 1]
            assert not of or tags[outer - 1] == "NOUN"  # the noun that the phrase hangs from
            assert tag != "ADP" or of or tags[outer - 1] == "VERB"
            assert {"DET": "NOUN", "ADJ": "NOUN", "ADP": "NOUN", "ADV": "VERB", "PUNCT": "VERB"}.get(
                tag, above
            ) == above
    with pytest.raises(ValueError, match="found only 0 different sentences of at most 2 words, not 4"):
        generate(4, 0, 2)


# --- the real one ---


@pytest.mark.skipif(not FOLDER, reason="GUMTRACE_TREEBANK does not name a folder with UD English-EWT")
def test_the_real_treebank():
    """Sizes, and every tree by networkx."""
    for part, expected in ORIGINAL.items():
        found = read(data.find(Path(FOLDER or ""), "en_ewt", part))
        sizes = [len(sentence.forms) for sentence in found]
        assert (len(found), sum(sizes), sum(size > 60 for size in sizes)) == expected
        for sentence in found:
            edges = [(head, place) for place, head in enumerate(sentence.heads, 1)]
            assert nx.is_arborescence(nx.DiGraph(edges))
            assert sentence.heads.count(0) == 1
