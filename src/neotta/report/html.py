"""Self-contained HTML: templates, and pictures as part of the page."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image as Pillow

from neotta._version import __version__
from neotta.data.base import Image


def render(template: str, **values: Any) -> str:
    """Fill one of the templates in `report/templates`; all values are escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("neotta", "report/templates"),
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
