"""The documentation site builds without a warning and every link on it leads somewhere."""

import html.parser
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *ROOT.glob("docs/**/*.md"),
]


class Links(html.parser.HTMLParser):
    """What a page refers to, and the anchors it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[tuple[str, str]] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for key, value in attributes:
            if key in ("href", "src") and value:
                self.targets.append((tag, value))
            if key in ("id", "name") and value:
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    # No network: a proxy that is not there refuses whatever would be fetched.
    environment |= dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(out)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    return out


def test_every_link_on_the_site_leads_somewhere(site):
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 15
    for path, page in pages.items():
        if path.name == "404.html":  # has absolute links, for wherever it will be served
            continue
        for tag, target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:  # a link may leave, but nothing is loaded from afar
                assert tag == "a" and parts.scheme in ("https", "mailto"), (path.name, target)
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert there.exists(), f"{path.name} → {target}"
            if parts.fragment and there in pages:
                assert unquote(parts.fragment) in pages[there].anchors, f"{path.name} → {target}"


def test_the_reference_has_the_docstrings(site):
    balancer = (site / "api" / "balance.html").read_text(encoding="utf-8")
    for name in ("begin_step", "Combines K rewards into one gradient", "StepReport"):
        assert name in balancer
    assert "<li>" in balancer and "<p>method: a rule" not in balancer  # options are a list
    rules = (site / "api" / "harmonise.html").read_text(encoding="utf-8")
    assert "<blockquote>" not in rules  # examples are code
    fields = (site / "api" / "fields.html").read_text(encoding="utf-8")
    assert "balance.rho" in fields and "train.steps" in fields


def test_nothing_in_the_navigation_is_missing():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

    def files(nav):
        for entry in nav:
            for value in entry.values():
                yield from files(value) if isinstance(value, list) else [value]

    for name in files(settings["nav"]):
        assert (ROOT / "docs" / name).is_file(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_in_the_repository_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            heads = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in heads}
            assert anchor in slugs, target


def test_the_glossary_is_short():
    rows = (ROOT / "docs" / "glossary.md").read_text().split("|---|---|\n")[1].strip().splitlines()
    assert len(rows) <= 15
