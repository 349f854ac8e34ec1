"""Rows of a table as samples: CSV, JSON lists of objects, JSON lines, and LEAF's JSON.

Columns: ``label``; ``file``, the path of an image, or ``x``, a (nested) list of numbers, or any other columns of
numbers; ``client``, ``domain`` and ``split`` if there are such. LEAF's files have ``user_data`` with ``x`` and ``y`` of
each user.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data import bounded
from pfl_fast.data.rows import SPLIT_NAMES, read_json, read_rows
from pfl_fast.data.samples import standard_samples
from pfl_fast.data.sources.raw import Raw
from pfl_fast.data.sources.tree import decode_files
from pfl_fast.errors import DataError

LABEL = ("label", "labels", "class", "target", "y")
FILE = ("file", "image", "path", "filename")
CLIENT = ("client", "user", "client_id", "user_id")
OTHERS = ("domain", "split")


def read(file: Path, size: int) -> Raw:
    """Reads a table; images are decoded later."""
    return raw_of_rows(file, rows_of(file), size)


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Reads the rows of a table, or one row for each sample of a file of LEAF."""
    content = read_json(file) if file.suffix.lower() == ".json" else None
    users = content.get("user_data") if isinstance(content, dict) else None
    rows = _leaf_rows(file, users) if isinstance(users, dict) else read_rows(file, content)
    if not rows:
        raise DataError(f"{file}: no samples in it")
    return rows


def raw_of_rows(file: Path, rows: list[dict[str, Any]], size: int) -> Raw:
    """Returns the samples of a table; ``file`` is named in messages, and paths of images are relative to its folder."""
    column = {
        role: next((n for n in names if n in rows[0]), "") for role, names in (("label", LABEL), ("client", CLIENT))
    }
    if not column["label"]:
        raise DataError(
            f"{file}: no column label; it has {', '.join(rows[0])}. The first row of a CSV file names the columns"
        )
    y, classes = numbered(file, column["label"], rows)
    named = {
        role: numbered(file, name, rows)
        for role, name in (("client", column["client"]), ("domain", "domain"))
        if name in rows[0]
    }
    clients, domains = named.get("client", (None, ())), named.get("domain", (None, ()))
    facts: dict[str, Any] = {
        "y": y,
        "classes": classes,
        "test": _test_mask(file, rows),
        "client": clients[0],
        "client_names": clients[1],
        "domain": domains[0],
        "domains": domains[1],
    }
    image = next((name for name in FILE if name in rows[0]), "")
    if image:
        names = tuple(str(row[image]).removeprefix("./") for row in rows)
        paths = [file.parent / name for name in names]
        return Raw((len(rows), size, size, 3), "uint8", lambda: decode_files(paths, size), files=names, **facts)
    x = _features(file, rows, [name for name in rows[0] if name not in (*column.values(), *OTHERS)])
    return raw_of_array(file, x, **facts)


def raw_of_array(file: Path, values: Any, **facts: Any) -> Raw:
    """Returns samples that were read at once."""
    x = standard_samples(values, str(file))
    if x.dtype == np.int32:
        facts["vocabulary"] = int(x.max(initial=0)) + 1
        bounded.check_count(file, facts["vocabulary"], x.size, "tokens", free=bounded.FREE_TOKENS)
    return Raw(x.shape, str(x.dtype), lambda: iter([x]), **facts)


def numbered(file: Path, column: str, rows: Sequence[dict[str, Any]]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Returns the values of a column as numbers from 0, and their names: in the order of numbers, else of text."""
    texts = ["" if row[column] is None else str(row[column]).strip() for row in rows]
    if "" in texts:
        raise DataError(f"{file}: row {texts.index('') + 1} has no {column}; complete it")
    names = ordered(texts)
    number = {name: position for position, name in enumerate(names)}
    return np.array([number[text] for text in texts], np.int64), names


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Returns different names in the order of numbers if all are whole numbers, else in alphabetical order.

    >>> ordered(["10", "9", "9"]), ordered(["b", "a10", "a9"])
    (('9', '10'), ('a10', 'a9', 'b'))
    """
    different = set(names)
    return tuple(sorted(different, key=int if all(name.isdecimal() for name in different) else str))


def _test_mask(file: Path, rows: Sequence[dict[str, Any]]) -> NDArray[np.bool_]:
    if "split" not in rows[0]:
        return np.zeros(len(rows), np.bool_)
    splits = [SPLIT_NAMES.get(str(row["split"]).lower()) for row in rows]
    if None in splits:
        wrong = splits.index(None)
        raise DataError(f"{file}: row {wrong + 1} has the split {rows[wrong]['split']!r}; expected train or test")
    return np.array([split == "test" for split in splits])


def _features(file: Path, rows: Sequence[dict[str, Any]], names: list[str]) -> NDArray[Any]:
    if not names:
        raise DataError(f"{file}: no columns besides the label; expected file, x, or columns of numbers")
    if names == ["x"] and isinstance(rows[0]["x"], list):
        return bounded.plain_array([row["x"] for row in rows], file, "values of x")
    columns = []
    for name in names:
        try:
            columns.append(np.array([row[name] for row in rows], np.float64))
        except (TypeError, ValueError):
            number, value = next((i, row[name]) for i, row in enumerate(rows, 1) if not _is_real(row[name]))
            raise DataError(
                f"{file}: column {name!r} has {value!r} in row {number}, which is not a number; leave the column out, "
                "or replace its values by numbers"
            ) from None
    return np.stack(columns, 1)


def _is_real(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _leaf_rows(file: Path, users: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for user, own in users.items():
        if not isinstance(own, dict) or not all(isinstance(own.get(name), list) for name in ("x", "y")):
            raise DataError(f"{file}: user {user!r} has no lists x and y; expected LEAF's format")
        if len(own["x"]) != len(own["y"]):
            raise DataError(f"{file}: user {user!r} has {len(own['x'])} samples with {len(own['y'])} labels")
        rows += [{"x": x, "label": y, "client": user} for x, y in zip(own["x"], own["y"], strict=True)]
    return rows
