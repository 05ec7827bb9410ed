"""The documentation site: `sphinx-build -W --keep-going docs build/site`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_site"))

import pages  # noqa: E402
from docstrings import to_rst  # noqa: E402
from reference import unresolved  # noqa: E402

from neotta import __version__  # noqa: E402

project = "neotta"
author = "the neotta developers"
copyright = f"{author}. Apache-2.0"
release = version = __version__

extensions = [
    "myst_nb",  # Markdown, and notebooks kept as Markdown
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "mathml",
]
html_math_renderer = "mathml"
source_suffix = {".md": "myst-nb"}
exclude_patterns = ["_site", "results/figures", "**/README.txt"]
nitpicky = True  # every name that is referred to has to exist

# ---- Markdown and notebooks
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence", "attrs_inline"]
myst_heading_anchors = 3
os.environ.pop("MPLBACKEND", None)  # notebooks show their figures,
os.environ["MATPLOTLIBRC"] = str(HERE / "_site" / "figures.mplstyle")  # in the look of the site
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE.parent / "build" / "notebooks")
nb_execution_timeout = 300
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_output_stderr = "remove"  # warnings of notebook tools, with paths of the machine that built the site

# ---- reference
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {"Runs": "ArrayLike"}  # not what it stands for, ten lines long
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
toc_object_entries = False  # the headings are enough

# ---- look
html_theme = "furo"
html_title = "neotta"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_favicon = "_site/static/favicon.svg"
html_copy_source = False
html_logo = "_site/static/logo.svg"
html_theme_options = {
    "navigation_with_keys": True,
    "sidebar_hide_name": False,
    "light_css_variables": {"color-brand-primary": "#0b7fab", "color-brand-content": "#0b7fab"},
    "dark_css_variables": {"color-brand-primary": "#4cc3f0", "color-brand-content": "#4cc3f0"},
}
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True


def setup(app: object) -> None:
    """Generate the pages of methods and the reference before anything is read."""
    pages.write(HERE / "generated", *sorted((HERE / "results").glob("records-0.3*.parquet")))
    app.connect("autodoc-process-docstring", to_rst, priority=400)  # type: ignore[attr-defined]  # before napoleon
    app.connect("missing-reference", unresolved)  # type: ignore[attr-defined]
    app.connect("autodoc-skip-member", alias_of_a_field)  # type: ignore[attr-defined]


def alias_of_a_field(app: object, what: str, name: str, member: object, skip: bool, options: object) -> bool | None:
    """Fields of a named tuple stand in its docstring already."""
    return True if str(member.__doc__).startswith("Alias for field number") else None
