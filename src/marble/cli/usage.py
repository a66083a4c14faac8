"""What the verbs have in common as commands: plain usage lines, and mistakes told in one line."""

from __future__ import annotations

import difflib
from typing import Any

from typer.core import TyperCommand, TyperGroup

from marble.errors import MarbleError


class Command(TyperCommand):
    """A verb."""

    fields = False
    """Whether it takes changes to a recipe: who writes `--lr 1` is told of optim.lr=VALUE."""

    def get_params(self, ctx: Any) -> Any:
        return _plain(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS] TARGET [KEY=VALUE]...`: a metavar says by itself what may be left out."""
        arguments = [p for p in self.params if p.param_type_name == "argument"]
        return ["[OPTIONS]", *(_usage(argument) for argument in arguments)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            raise _told(error, ctx, fields=self.fields) from None


class RecipeCommand(Command):
    """A verb that takes `KEY=VALUE` words."""

    fields = True


class Group(TyperGroup):
    """A command with verbs."""

    def get_params(self, ctx: Any) -> Any:
        return _plain(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            raise _told(error, ctx) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            raise _told(error, ctx) from None


def _plain(params: Any) -> Any:
    """Without types that say nothing: a flag takes no value, and arguments are words."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None
    return params


def _usage(argument: Any) -> str:
    name = str(argument.metavar or argument.name).upper()
    return f"{name}..." if argument.nargs != 1 and not name.endswith("...") else name


def _told(error: Exception, ctx: Any, *, fields: bool = False) -> Exception:
    """A mistake in the words of a command as one line; anything else as it is.

    Errors are click's, or those of typer's copy of it, by version: what they share is their names.
    """
    kind = type(error).__name__
    if not hasattr(error, "format_message") or kind == "NoArgsIsHelpError":
        return error
    path = ctx.command_path
    see = f"see `{path} --help`"
    if kind == "NoSuchOption":
        option = str(getattr(error, "option_name", ""))
        start = f"{option}: no such option of `{path}`"
        paths = _fields_called(option.lstrip("-").replace("-", "_")) if fields else []
        if paths:
            listed = " or ".join(f"{p}=VALUE" for p in paths)
            return MarbleError(f"{start}; a field of the recipe is set as {listed}")
        return MarbleError(f"{start}; {_meant(option, ctx) or see}")
    param = getattr(error, "param", None)
    if param is not None:
        argument = param.param_type_name == "argument"
        name = _usage(param).partition(".")[0] if argument else max(param.opts, key=len)
        if kind == "MissingParameter":
            return MarbleError(f"{name} is missing: {_small(str(param.help or ''))}; {see}")
        return MarbleError(f"{name}: {_bound(str(getattr(error, 'message', '')))}; {see}")
    said, _, hint = str(error.format_message()).partition(". Did you mean ")
    near = f"did you mean {hint.replace(chr(39), '')}" if hint else see
    return MarbleError(f"{_small(said)}; {near}")


def _meant(option: str, ctx: Any) -> str | None:
    """A hint at the option that was meant, if one is like it."""
    known = [o for p in ctx.command.get_params(ctx) for o in (*p.opts, *p.secondary_opts)]
    names = [o.removeprefix("--") for o in known if o.startswith("--")]
    near = difflib.get_close_matches(option.lstrip("-"), names, n=1)
    return f"did you mean --{near[0]}?" if near else None


def _bound(said: str) -> str:
    """A validator's sentence in fewer words."""
    for long, short in (
        ("Input should be", "must be"),
        ("greater than or equal to", "at least"),
        ("less than or equal to", "at most"),
        ("a valid integer", "a whole number"),
        ("a valid number", "a number"),
    ):
        said = said.replace(long, short)
    return _small(said.partition(", unable")[0])


def _small(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")


def _fields_called(name: str) -> list[str]:
    """Fields of a recipe whose last word this is; those of training first."""
    from marble.recipe import reference

    found = [d.path for d in reference() if d.path.split(".")[-1] == name and "*" not in d.path]
    return sorted(found, key=lambda path: not path.startswith("train."))
