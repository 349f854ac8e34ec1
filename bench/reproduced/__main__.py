"""Records results and writes docs/reproduce.md."""

import sys
from pathlib import Path

from bench.reproduced import PAGE, page, record

for folder in sys.argv[1:]:
    print(record(Path(folder)))
PAGE.write_text(page())
