"""Sphinx's configuration of the site: `make docs` builds it into build/site.

Sphinx does not read this folder itself but a copy that tools/make_site.py makes. In the copy, links
into the rest of the repository lead to pages of the site or to copies of the files.
"""

from __future__ import annotations

import os
from datetime import date

project = "Herring"
author = "The Herring contributors"
copyright = f"{date.today().year}, {author}"
version = release = os.environ.get("SITE_VERSION", "")

extensions = ["myst_nb", "sphinx_copybutton", "sphinx_design"]
root_doc = "index"
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb", ".rst": "restructuredtext"}
exclude_patterns = ["files"]

# Pages are plain Markdown, readable where they lie; headings have the anchors that code hosts give.
myst_enable_extensions: list[str] = []
myst_heading_anchors = 4
# A block without a language is a command line or an output.
highlight_language = "none"

# Notebooks are kept without outputs; tools/make_site.py executes their copies.
nb_execution_mode = "off"

# `name` in a docstring is a link where there is such a name.
default_role = "py:obj"
add_module_names = False
suppress_warnings = ["ref.python"]  # a name of several modules leads to the first of them
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

pygments_dark_style = "github-dark"

html_theme = "furo"
html_title = f"Herring {version.partition('+')[0]}".strip()
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
repository = os.environ.get("SITE_REPOSITORY", "")
html_theme_options = {
    "navigation_with_keys": True,
    "footer_icons": [{"name": "Repository", "url": repository, "html": "Repository", "class": ""}]
    if repository
    else [],
}
copybutton_prompt_text = r"host\d\$ |\$ "
copybutton_prompt_is_regexp = True
