"""The page of licences lists the packages that are installed with pfl-fast."""

import re
import tomllib
from pathlib import Path

from tests.licences import closure, table

ROOT = Path(__file__).parent.parent


def names(page):
    return re.findall(r"^\| (\w[\w.-]*) \|", page, re.MULTILINE)


def test_every_dependency_is_listed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}
    listed = names((ROOT / "docs" / "licences.md").read_text())
    assert direct < set(listed)
    assert listed[1:] == sorted(listed[1:])


def test_indirect_dependencies_are_found_with_their_owners():
    found = closure("pfl-fast")
    assert "pfl-fast" in found["scikit-learn"]
    assert "scikit-learn" in found["scipy"]
    assert "pytest" not in found, "extras are not installed with it"
    assert set(names(table())) == {"package", *found}
