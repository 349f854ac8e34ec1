"""Settings of the documentation site: ``make docs`` builds docs/_build/html."""

from pfl_fast import __version__

project = "pfl-fast"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.intersphinx", "sphinx_click"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"pfl-fast {release}"
# Pages are also read on a code host, so links to other folders of the repository stay as they are.
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
# Offline builds need no inventory of other projects; their names stay plain text.
intersphinx_mapping: dict[str, tuple[str, None]] = {}
