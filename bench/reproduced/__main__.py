"""Records results and writes docs/reproduce.md and docs/fidelity.md."""

import sys
from pathlib import Path

from bench.reproduced import FIDELITY, PAGE, fidelity_page, page, record

for folder in sys.argv[1:]:
    print(record(Path(folder)))
PAGE.write_text(page())
FIDELITY.write_text(fidelity_page())
