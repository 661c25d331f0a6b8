"""How Sphinx builds the documentation site: `sphinx-build -W --keep-going -n docs build/site`."""

import sys
from pathlib import Path

from stepwell import __version__

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "Stepwell"
author = "Stepwell contributors"
copyright = author
version = release = __version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "myst_nb",
    "accessible",
    "command_line",
    "docstrings",
    "outside_files",
    "public_names",
]
smartquotes = False  # they would make one dash of the two of an option

# Markdown: headings have the anchors that GitHub gives them.
myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]
nb_custom_formats = {".nblink": ["outside_files.read_notebook", {}]}
nb_execution_mode = "off"  # a test runs the notebooks, and their outputs are stored

# Docstrings: `name` is code, which becomes a link if it is one of the public names.
default_role = "literal"
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_attr_annotations = False  # the signature has them
toc_object_entries_show_parents = "hide"

copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

# Pages hold all that they need: nothing is loaded from another host.
html_theme = "furo"
html_title = f"Stepwell {version}"
html_baseurl = ""
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
