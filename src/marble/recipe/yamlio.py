"""YAML as its version 1.2 has it: `3e-4` and `010` are numbers, `no` and `1:30` are text.

A repeated key is an error, and so is what no recipe needs and a machine chokes on: nesting without
end, values that contain themselves, numbers of thousands of digits.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from marble.errors import RecipeError

_INT = re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$")
_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?
         |[-+]?[0-9]+[eE][-+]?[0-9]+
         |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
_NUMBER = re.compile(r"^[-+]?[0-9]+(?:[eE][-+]?[0-9]+)?$")
_NO_TEXT = re.compile("[\x00\ud800-\udfff]")
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_TAG = "tag:yaml.org,2002:"
_OTHER_IN_1_1 = tuple(_TAG + kind for kind in ("int", "float", "bool", "timestamp", "value"))
DIGITS = 1000
"""Most digits of a number."""
DEPTH = 100
"""Most levels of nesting."""
VALUES = 1_000_000
"""Most values of a text, each alias counted as what it stands for."""


class _Loader(yaml.SafeLoader):
    """YAML 1.2's numbers and truth values; PyYAML's own are those of 1.1."""

    words_only = True

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == f"{_TAG}merge":
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise RecipeError(f"{_place(key_node)}: keys are words, not lists or mappings")
            key = self.construct_object(key_node, deep=True)
            if self.words_only and not isinstance(key, str):
                raise RecipeError(f"{_place(key_node)}: keys are words, got {key!r}")
            if key in seen:
                raise RecipeError(f"{_place(key_node)}: key '{key}' appears twice")
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        text = str(super().construct_scalar(node))
        if _NO_TEXT.search(text):
            raise RecipeError(f"{_place(node)}: {text[:40]!a} holds a character that is no text")
        return text

    def whole(self, node: yaml.ScalarNode) -> int:
        text = self._like(node, _INT, "whole number")
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))

    def number(self, node: yaml.ScalarNode) -> float:
        text = self._like(node, _FLOAT if "." in str(node.value) else _NUMBER, "number")
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))

    def truth(self, node: yaml.ScalarNode) -> bool:
        return self._like(node, _BOOL, "truth value (true or false)").lower() == "true"

    def _like(self, node: yaml.ScalarNode, form: re.Pattern[str], what: str) -> str:
        """The node's text, where it has the form; a tag such as `!!int` may claim otherwise."""
        text = self.construct_scalar(node)
        if not form.match(text) or len(text) > DIGITS:
            shown = text if len(text) <= 40 else f"{text[:20]}… ({len(text)} characters)"
            raise RecipeError(f"{_place(node)}: {shown!r} is no {what}")
        return text


class _Dumper(yaml.SafeDumper):
    """Quotes text that either version would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rx) for tag, rx in pairs if tag not in _OTHER_IN_1_1]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(f"{_TAG}int", _INT, list("-+0123456789"))
    _kind.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+0123456789."))
    _kind.add_implicit_resolver(f"{_TAG}bool", _BOOL, list("tTfF"))
# What JSON has, and nothing else: no dates, sets or bytes.
_Loader.yaml_constructors = {
    tag: build
    for tag, build in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(_TAG) in ("null", "str", "seq", "map")
}
for _name, _build in (("int", "whole"), ("float", "number"), ("bool", "truth")):
    _Loader.add_constructor(f"{_TAG}{_name}", getattr(_Loader, _build))


def parse(text: str, where: str, *, words_only: bool = True) -> Any:
    """The value of a YAML text; `where` names it in errors. `words_only`: every key is text."""
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        loader.words_only = words_only
        node = loader.get_single_node()
        if node is None:
            return None
        _measure(node, {})
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be parsed"
        raise RecipeError(f"{where}{line}: not valid YAML ({problem})") from None
    except RecursionError:
        raise RecipeError(f"{where}: nested deeper than {DEPTH} levels") from None
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from None
    finally:
        if loader is not None:
            loader.dispose()


def read(path: Path, *, words_only: bool = True) -> Any:
    """The value of a YAML file; one line for whatever keeps it from being read."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text ({error.reason}); is it YAML?") from None
    except (OSError, ValueError) as error:
        raise RecipeError(f"{path}: cannot be read ({error})") from None
    return parse(text, str(path), words_only=words_only)


def dump(value: Any, **options: Any) -> str:
    """YAML of which `parse` gives the same value again."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, **options)


def _measure(node: yaml.Node, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """(levels, values) of a node with all aliases written out; refuses what is too much."""
    if id(node) in known:
        if known[id(node)] == (0, 0):
            raise RecipeError(f"{_place(node)}: a value that contains itself")
        return known[id(node)]
    if isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    else:
        parts = list(node.value) if isinstance(node, yaml.SequenceNode) else []
    known[id(node)] = (0, 0)  # being measured
    inner = [_measure(part, known) for part in parts]
    levels = 1 + max((level for level, _ in inner), default=0)
    values = 1 + sum(count for _, count in inner)
    if levels > DEPTH:
        raise RecipeError(f"{_place(node)}: nested deeper than {DEPTH} levels")
    if values > VALUES:
        raise RecipeError(f"{_place(node)}: more than {VALUES:,} values")
    known[id(node)] = (levels, values)
    return levels, values


def _place(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
