"""YAML as people mean it: `3e-4` is a number, `no` is a word, a repeated key is an error."""

from __future__ import annotations

import re
from typing import Any

import yaml

from marble.errors import RecipeError

_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?
         |[-+]?[0-9]+[eE][-+]?[0-9]+
         |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")


class _Loader(yaml.SafeLoader):
    """YAML 1.2's numbers and truth values; PyYAML's own are those of 1.1."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise RecipeError(f"{_place(key_node)}: keys are words, got {key!r}")
            if key in seen:
                raise RecipeError(f"{_place(key_node)}: key '{key}' appears twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rx) for tag, rx in pairs if not tag.endswith((":float", ":bool", ":timestamp"))]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))


def parse(text: str, where: str) -> Any:
    """The value of a YAML text; `where` names it in errors."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be parsed"
        raise RecipeError(f"{where}{line}: not valid YAML ({problem})") from None
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from None


def _place(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
