"""Self-contained HTML: templates, and pictures as part of the page."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image as Pillow

from neotta._version import __version__
from neotta.data.base import Image

HERE = "report/templates"


def render(template: str, *, templates: str = HERE, **values: Any) -> str:
    """Fill a template with values, all of which are escaped; it may extend those in `report/templates`."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader("neotta", folder) for folder in dict.fromkeys((templates, HERE))]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(version=__version__, **values)


def data_uri(image: Image) -> str:
    """Write an image, (H, W, 3) uint8, as an address that holds the picture itself."""
    buffer = io.BytesIO()
    Pillow.fromarray(image).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
