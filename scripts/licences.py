"""Licences of everything `pip install "marble-rl[EXTRAS]"` brings, as the packages state them.

    python scripts/licences.py rewards serve

Looks at the environment it runs in. The exit status is 1 when a package is under the GPL or AGPL,
or states no licence at all.
"""

from __future__ import annotations

import argparse
import re
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

COPYLEFT = re.compile(r"\bA?GPL|GNU (Affero )?General Public", re.IGNORECASE)


def installed(root: str, extras: set[str]) -> dict[str, str]:
    """Name → licence of a distribution and of all it needs here, itself included."""
    found: dict[str, str] = {}
    done: set[tuple[str, str]] = set()
    queue = [(root, frozenset(extras))]
    while queue:
        name, wanted = queue.pop()
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # optional on this platform
        found[canonicalize_name(name)] = licence(package)
        for extra in {"", *wanted}:
            if (canonicalize_name(name), extra) in done:
                continue
            done.add((canonicalize_name(name), extra))
            for text in package.requires or []:
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    queue.append((needed.name, frozenset(needed.extras)))
    return dict(sorted(found.items()))


def licence(package: metadata.Distribution) -> str:
    """The SPDX expression, else the classifiers, else the first line of the free text."""
    about = package.metadata
    stated = about.get("License-Expression")
    if stated:
        return stated
    classifiers = [c.split(" :: ")[-1] for c in about.get_all("Classifier") or [] if "License" in c]
    specific = [c for c in classifiers if c != "OSI Approved"]
    if specific:
        return ", ".join(specific)
    return (about.get("License") or "").strip().split("\n")[0] or "not stated"


def is_copyleft(text: str) -> bool:
    """GPL or AGPL without another licence to choose instead; the LGPL is neither.

    >>> is_copyleft("GPL-3.0-only"), is_copyleft("LGPL-2.1"), is_copyleft("MIT OR GPL-2.0")
    (True, False, False)
    """
    choices = re.split(r"\bOR\b", text)
    return all(COPYLEFT.search(choice) for choice in choices)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("extras", nargs="*", default=["rewards"])
    found = installed("marble-rl", set(parser.parse_args().extras))
    for name, text in found.items():
        print(f"{name:28} {text}")
    bad = [name for name, text in found.items() if is_copyleft(text) or text == "not stated"]
    if bad:
        raise SystemExit(f"\nnot free to ship with: {', '.join(bad)}")
    print(f"\n{len(found)} packages, none under the GPL")


if __name__ == "__main__":
    main()
