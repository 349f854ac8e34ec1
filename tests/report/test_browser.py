"""Reports in a headless Chromium."""

import json
import shutil

import pytest

from pfl_fast.report import write

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    """Report of two runs; the first has an analysis."""
    folder = tmp_path_factory.mktemp("report")
    first = shutil.copytree(runs[0], folder / "fedavg")
    (first / "analysis").mkdir()
    (first / "analysis" / "one.json").write_text(json.dumps({"title": "One", "caption": "", "columns": [], "rows": []}))
    picture = "<svg xmlns='http://www.w3.org/2000/svg' width='40' height='30'><rect width='40' height='30'/></svg>"
    (first / "analysis" / "one.svg").write_text(picture)
    return write([first, runs[1]], folder / "report.html")


@pytest.fixture(scope="module")
def page(report):
    """The report in a browser, with the messages of its console."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.messages = []
        page.on("console", lambda message: page.messages.append(message.text))
        page.on("pageerror", lambda error: page.messages.append(str(error)))
        page.on("request", lambda r: r.url.startswith(("file:", "data:")) or page.messages.append(r.url))
        page.goto(report.as_uri())
        yield page
        browser.close()


def test_charts_are_drawn_without_errors(page):
    drawings = page.locator("figure svg")
    assert drawings.count() >= 15
    sizes = [box for number in range(drawings.count()) if (box := drawings.nth(number).bounding_box())]
    assert len(sizes) == drawings.count()
    assert all(box["width"] > 300 and box["height"] > 10 for box in sizes)
    assert page.locator(".paper").evaluate("image => image.naturalWidth") == 40
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.messages == []


def test_runs_are_switched_with_the_keyboard(page):
    curve, other = page.locator("#accuracy .run-1 path").first, page.locator("#accuracy .run-0 path").first
    assert curve.is_visible()
    page.locator("#show-0").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert not page.locator("#show-1").is_checked()
    assert not curve.is_visible()
    assert not page.locator("#overview td.run-1").first.is_visible()
    assert other.is_visible()
    page.keyboard.press("Space")
    assert curve.is_visible()


def test_dark_light_and_paper(page):
    background = "getComputedStyle(document.body).backgroundColor"
    white = "rgb(255, 255, 255)"
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(background)
    assert dark != white
    page.check("#theme-light")
    assert page.evaluate(background) == white
    page.check("#theme-dark")
    page.emulate_media(color_scheme="light")
    assert page.evaluate(background) == dark
    page.emulate_media(media="print")
    assert page.evaluate(background) == white
    assert not page.locator("nav").is_visible()
    page.emulate_media(media="screen")


def test_only_the_rows_that_differ(page):
    same, differs = page.locator("#configuration tr.same").first, page.locator("#configuration tr.differs").first
    assert same.is_visible()
    page.check("#differing")
    assert not same.is_visible()
    assert differs.is_visible()
