"""Opening made-up data as a user does, and looking at it as `neotta data info` does."""

from neotta.data.info import describe
from neotta.data.opening import open_data


def opened(root, layout, count):
    """Open a bare path, and check that it is recognised, whole, and the same under its name."""
    source = open_data(root)
    assert source.layout == layout
    info = describe(source)
    assert (info.layout, info.count, info.bad) == (layout, count, 0)
    assert open_data(f"{layout}={root}").domains == source.domains
    return source
