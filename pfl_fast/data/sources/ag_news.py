"""AG News: ``train.csv`` and ``test.csv``, either the original three columns without header (class 1 to 4, title,
description) or with a header ``label,label_name,text`` (label 0 to 3).

Tokens: 0 is padding, 1 the class token at the start of each text, 2 an unknown word. The words of the training part
follow by decreasing frequency, ties in alphabetical order.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import numpy as np

from pfl_fast.data import bounded
from pfl_fast.data.sources.names import AG_NEWS
from pfl_fast.data.sources.raw import BLOCK, Raw, Source
from pfl_fast.errors import DataError

PADDING, START, UNKNOWN, SPECIAL = 0, 1, 2, 3
_SPACED = re.compile(r"([.,()!?'])")
_DROPPED = re.compile(r"<br />|[;:]")


def tokenize(text: str) -> list[str]:
    r"""Splits English text: lower case, punctuation as separate words, without quotation marks, colons and semicolons.

    >>> tokenize('Oil up: "It\'s (very) high!"')
    ['oil', 'up', 'it', "'", 's', '(', 'very', ')', 'high', '!']
    """
    plain = _DROPPED.sub(" ", text.lower()).replace('"', "")
    return _SPACED.sub(r" \1 ", plain).split()


def find(folder: Path) -> tuple[Path, ...]:
    """Returns the training file (possibly a part of it) and the test file."""
    train = [path for path in (folder / "train.csv", *sorted(folder.glob("train_*.csv"))) if path.is_file()]
    return (train[0], folder / "test.csv") if train and (folder / "test.csv").is_file() else ()


def read(files: tuple[Path, ...], size: int) -> Raw:
    """Reads all texts, truncated or padded to ``size`` tokens."""
    (train_y, train), (test_y, test) = _rows(files[0]), _rows(files[1])
    counts = Counter(token for tokens in train for token in tokens)
    words = sorted(counts, key=lambda word: (-counts[word], word))
    number = {word: i for i, word in enumerate(words, SPECIAL)}
    bounded.check_claim(files[0], 4 * size * (len(train) + len(test)), bounded.total_size(files), "tokens")
    x = np.full((len(train) + len(test), size), PADDING, np.int32)
    for row, tokens in zip(x, [*train, *test], strict=True):
        ids = [START, *(number.get(token, UNKNOWN) for token in tokens[: size - 1])]
        row[: len(ids)] = ids
    return Raw(
        shape=x.shape,
        dtype="int32",
        blocks=lambda: (x[start : start + BLOCK] for start in range(0, len(x), BLOCK)),
        y=bounded.whole_numbers([*train_y, *test_y], files[0], "labels"),
        classes=AG_NEWS,
        test=np.arange(len(x)) >= len(train),
        vocabulary=len(words) + SPECIAL,
        note="" if files[0].name == "train.csv" else f"{files[0].name}: {len(train)} of 120000 training texts",
    )


def _rows(file: Path) -> tuple[list[int], list[list[str]]]:
    labels, texts = [], []
    with file.open(encoding="utf-8", newline="") as lines:
        reader = csv.reader(lines)
        try:
            first = next(reader, None)
            headed = first == ["label", "label_name", "text"]
            for row in [] if first is None else reader if headed else [first, *reader]:
                if len(row) != 3:
                    raise ValueError(f"{len(row)} columns")
                labels.append(int(row[0]) - (0 if headed else 1))
                texts.append(tokenize(row[2] if headed else f"{row[1]} {row[2]}"))
        except (ValueError, csv.Error) as error:
            raise DataError(
                f"{file}, line {reader.line_num}: {error}; expected class,title,description or the columns "
                "label,label_name,text: delete it and fetch it again"
            ) from None
    if not labels:
        raise DataError(f"{file}: empty; delete it and fetch it again")
    return labels, texts


SOURCE = Source("train.csv and test.csv", find, read)
