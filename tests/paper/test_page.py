"""The report as a page: what a browser makes of it."""

import pytest

from neotta.paper.item import items
from neotta.paper.page import facts, paper_page, write_files

NAMES = (
    "methods",
    "corruptions",
    "dimensions",
    "samples",
    "cross-domain",
    "reliability",
)


@pytest.fixture(scope="module")
def reports(evidence):
    chosen = [items()[name] for name in NAMES]
    evidence.gather(chosen)
    return [item.find(evidence) for item in chosen]


@pytest.fixture(scope="module")
def address(evidence, reports, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(paper_page(reports, facts(evidence, 100), {"something": "its reason"}), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_a_browser_shows_every_figure_and_table(browser, reports, address, width, scheme):
    complaints, asked = [], []
    with browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme, offline=True) as page:
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        assert complaints == []
        assert [url for url in asked if not url.startswith("data:")] == [address]
        assert page.evaluate("document.documentElement.scrollWidth") == width  # tables and figures scroll by themselves
        parts = [part for report in reports for part in report.parts]
        boxes = page.locator("figure > svg").evaluate_all(
            "all => all.map(svg => [svg.getBoundingClientRect().width, svg.getBoundingClientRect().height])"
        )
        assert len(boxes) == sum(hasattr(part, "draw") for part in parts) > 3
        assert all(wide > 300 and high > 80 for wide, high in boxes)
        assert page.locator("div.table").count() == sum(hasattr(part, "grid") for part in parts)
        assert page.get_by_text("something: its reason").is_visible()
        ink = page.locator("figure > svg text").first.evaluate("text => getComputedStyle(text).fill")
        assert ink == ("rgb(28, 32, 36)" if scheme == "light" else "rgb(236, 238, 240)")


def test_the_answers_can_be_read_on_a_phone_without_scrolling_sideways(browser, address):
    with browser.new_page(viewport={"width": 390, "height": 844}, offline=True) as page:
        page.goto(address)
        wide, shown = page.locator("table.overview").evaluate(
            "table => [table.parentElement.scrollWidth, table.parentElement.clientWidth]"
        )
        assert wide <= shown


def test_notes_are_printed(browser, address):
    with browser.new_page(offline=True) as page:
        page.goto(address)
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("details").count() == page.locator("details[open]").count() > 0


def test_tables_fit_on_paper_and_code_is_dark_on_light(browser, address):
    with browser.new_page(viewport={"width": 600, "height": 900}, offline=True) as page:
        page.goto(address)
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("document.documentElement.scrollWidth") == 600
        assert page.locator("pre").first.evaluate("e => getComputedStyle(e).backgroundColor") == "rgb(241, 243, 245)"


def test_a_click_sorts_and_a_third_one_brings_the_order_back(browser, address):
    with browser.new_page(offline=True) as page:
        page.goto(address)
        table = page.locator("#corruptions table").first
        column = table.locator("thead th").all_inner_texts().index("NEO") + 1
        read = f"rows => rows.map(row => parseFloat(row.cells[{column - 1}].textContent))"

        def values():
            return table.locator("tbody tr").evaluate_all(read)

        first, button = values(), table.locator("thead th").nth(column - 1).get_by_role("button")
        button.click()
        assert values() == sorted(first, reverse=True) != first
        button.click()
        assert values() == sorted(first)
        button.click()
        assert values() == first


def test_a_table_can_be_copied(browser, address):
    context = browser.new_context(offline=True, permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(address)
    for kind, beginning in (("Markdown", "| domain |"), ("LaTeX", r"\begin{table}")):
        page.locator("#corruptions").get_by_role("button", name=f"Copy as {kind}").first.click()
        page.get_by_role("button", name="Copied").first.wait_for()
        assert page.evaluate("navigator.clipboard.readText()").startswith(beginning)
    context.close()


def test_every_item_becomes_files(reports, tmp_path):
    files = write_files(tmp_path, reports, ["md", "latex", "png", "csv"])
    assert len(files) == len(set(files))
    for report in reports:
        text = (tmp_path / f"{report.item.name}.md").read_text(encoding="utf-8")
        assert report.answer in text
        for part in report.parts:
            if hasattr(part, "draw"):
                assert (tmp_path / f"{part.name}.png").read_bytes().startswith(b"\x89PNG")
                assert f"({part.name}.png)" in text
