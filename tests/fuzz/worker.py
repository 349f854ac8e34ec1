"""Child process: damages and loads the inputs whose numbers it reads from stdin; writes one line for each.

Input ``n`` of seed ``s`` is always the same. The memory of the process is limited, and ends a load with MemoryError.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

from pfl_fast.errors import PflFastError
from tests.fuzz.mutations import mutate
from tests.fuzz.seeds import LOADERS, Files

MARGIN = 1 << 29  # bytes that loading one input may take: the files are small, so this is the free part of the limit


def damage(files: Files, random_: random.Random) -> Files:
    """Returns the files, one of them damaged, deleted or replaced by another."""
    files = dict(files)
    name = random_.choice(sorted(files))
    kind = random_.random()
    if kind < 0.02:
        del files[name]
    elif kind < 0.05:
        files[name] = random_.choice(sorted(files.values()))
    else:
        files[name] = mutate(files[name], random_)
    return files


def outcome(loader: str, folder: Path) -> tuple[str, str]:
    """Loads a folder; returns ``read``, ``refused``, ``oversize`` or ``traceback``, and the message."""
    try:
        LOADERS[loader].load(folder)
    except Exception as error:
        causes, cause = [], error
        while cause is not None:
            causes.append(cause)
            cause = cause.__cause__ or cause.__context__
        if any(isinstance(cause, MemoryError) for cause in causes):
            return "oversize", "".join(traceback.format_exception(error))
        if isinstance(error, PflFastError):
            return "refused", str(error)
        return "traceback", "".join(traceback.format_exception(error))
    return "read", ""


def main() -> None:
    """Runs until stdin ends."""
    warnings.simplefilter("ignore")
    seed = sys.argv[1]  # argument 2: folder for the inputs
    valid = {name: loader.files() for name, loader in LOADERS.items()}
    names = sorted(valid)
    with tempfile.TemporaryDirectory(dir=sys.argv[2]) as work:
        folder, beside = Path(work, "a", "in"), Path(work, "a")
        for name in names:  # imports everything before memory is limited
            write(folder, valid[name])
            assert outcome(name, folder)[0] == "read", f"{name}: {outcome(name, folder)}"
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MARGIN
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        for number in (int(text) for line in sys.stdin for text in line.split()):
            random_ = random.Random(f"{seed}:{number}")
            name = names[number % len(names)]
            write(folder, damage(valid[name], random_))
            result, message = outcome(name, folder)
            if sorted(beside.iterdir()) != [folder]:
                result, message = "wrote outside", str(sorted(beside.iterdir()))
            print(json.dumps([number, name, result, message]), flush=True)


def write(folder: Path, files: Files) -> None:
    """Writes files into an emptied folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
