"""Writes docs/api.md from the docstrings of the public names: `python docs/generate.py`."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

#: The modules whose `__all__` is the public interface, in the order of the page.
PUBLIC_MODULES = (
    "cerebro",
    "cerebro.results",
    "cerebro.scores",
    "cerebro.data",
    "cerebro.data.named",
    "cerebro.tune",
    "cerebro.keras",
    "cerebro.torch",
    "cerebro.zoo",
    "cerebro.storage",
    "cerebro.backend",
    "cerebro.errors",
)

PAGE = Path(__file__).resolve().parent / "api.md"

HEADER = """\
# API

Generated from the docstrings by `make docs`; do not edit. The examples below are run by the tests.
"""

PROMPT = re.compile(r"^(>>>|\.\.\.)( |$)", re.MULTILINE)

#: `#:` comments above a field of a class or above an attribute that its constructor sets.
ATTRIBUTE = re.compile(
    r"(?P<comment>(?:^ +#: .*\n)+)"
    r"^ +(?P<self>self\.)?(?P<name>[a-z]\w*)(?P<type>: [^=\n]*\w\S*)?(?P<value> = .*)?$",
    re.M,
)

SECTION = re.compile(r"^(Args|Raises):\n    ")
SECTION_ITEM = re.compile(r"^    (\w+):")


def render() -> str:
    """The whole page."""
    parts = [HEADER]
    seen: set[int] = set()
    for name in PUBLIC_MODULES:
        parts += render_module(importlib.import_module(name), seen)
    return "\n".join(parts)


def render_module(module: ModuleType, seen: set[int]) -> Iterator[str]:
    """A module's section, without what is in an earlier one; `seen` holds the ids of that."""
    yield f"## {module.__name__}\n"
    yield from render_doc(module)
    for name in public_names(module):
        value = getattr(module, name)
        if inspect.ismodule(value) or id(value) in seen:
            continue  # modules have a section of their own
        seen.add(id(value))
        if inspect.isclass(value):
            yield from render_class(f"{module.__name__}.{name}", value)
        elif inspect.isfunction(value):
            yield f"### `{module.__name__}.{name}{signature(value)}`\n"
            yield from render_doc(value)
        elif not name.startswith("__"):
            yield f"### `{module.__name__}.{name}`\n\nA type alias.\n"


def public_names(module: ModuleType) -> list[str]:
    """`__all__`, or for a module without one the classes and functions it defines."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
    ]


def render_class(title: str, cls: type) -> Iterator[str]:
    yield f"### class `{title}{constructor(cls)}`\n"
    yield from render_doc(cls)
    if items := list(render_members(cls)):
        yield "\n".join(items).rstrip() + "\n"


def render_members(cls: type) -> Iterator[str]:
    """An item for each value of an enum, each attribute, property and method."""
    if issubclass(cls, enum.Enum):
        yield from (f"- `{member.name}` = `{member.value!r}`" for member in cls)
    elif not issubclass(cls, BaseException):
        yield from render_attributes(cls)
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield render_member(name, member)
        elif inspect.isfunction(member):
            yield render_member(f"{name}{signature(member)}", member)
        elif isinstance(member, classmethod | staticmethod):
            yield render_member(f"{name}{signature(member.__func__)}", member.__func__)


def render_attributes(cls: type) -> Iterator[str]:
    """Those that a `#:` comment explains."""
    for found in ATTRIBUTE.finditer(inspect.getsource(cls)):
        text = " ".join(line.strip().removeprefix("#: ") for line in found["comment"].splitlines())
        # Of `self.name = value` the value says nothing to a reader.
        value = "" if found["self"] else found["value"] or ""
        yield f"- `{found['name']}{found['type'] or ''}{value}`: {text}"


def render_member(title: str, member: object) -> str:
    """The whole docstring, its first paragraph behind the name and the others below it."""
    first, _, rest = (own_doc(member) or "").partition("\n\n")
    lines = [": ".join([f"- `{title}`", *([" ".join(first.split())] if first else [])])]
    for part in render_paragraphs(rest):
        lines += ["", textwrap.indent(part.rstrip("\n"), "  ")]
    return "\n".join([*lines, ""] if rest else lines)


def constructor(cls: type) -> str:
    """How an object is made; of an error, what it can be caught as; of an enum, nothing."""
    if issubclass(cls, BaseException):
        return f"({', '.join(base.__name__ for base in cls.__bases__)})"
    is_made_by_users = not issubclass(cls, enum.Enum) and not getattr(cls, "_is_protocol", False)
    return signature(cls).removesuffix(" -> None") if is_made_by_users else ""


def render_doc(value: object) -> Iterator[str]:
    """A docstring as Markdown: prose as it is, examples and drawings as code blocks."""
    yield from render_paragraphs(own_doc(value) or "")


def render_paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        if PROMPT.match(paragraph):
            yield f"```pycon\n{paragraph}\n```\n"
        elif SECTION.match(paragraph):
            title, *lines = paragraph.splitlines()
            items = [SECTION_ITEM.sub(r"- `\1`:", line).replace("        ", "  ") for line in lines]
            yield "\n".join([title, "", *items, ""])
        elif paragraph.startswith("    "):
            yield f"```text\n{textwrap.dedent(paragraph)}\n```\n"
        elif paragraph.strip() and paragraph.strip() != "::":
            yield f"{paragraph}\n"


def own_doc(value: object) -> str | None:
    """The docstring written for this very object; generated and inherited ones say nothing."""
    doc = inspect.cleandoc(value.__doc__) if isinstance(value.__doc__, str) else None
    name = getattr(value, "__name__", "")
    return None if doc is None or doc.startswith(f"{name}(") else doc


def signature(value: object) -> str:
    """The signature as the source spells it; memory addresses and quotes of annotations removed."""
    try:
        text = str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    text = re.sub(r"'([^']*)'(?=[,)\s]|$)", unquote_annotation, text)
    return re.sub(r"\((self|cls)(, )?", "(", text, count=1)


def unquote_annotation(match: re.Match[str]) -> str:
    """Drop the quotes of a postponed annotation (after `: ` or `-> `), keep those of a default."""
    before = match.string[: match.start()]
    return match[1] if before.endswith((": ", "-> ")) else match[0]


def main(arguments: list[str]) -> int:
    """Write the page; with --check only say whether it is up to date (exit code 1 if not)."""
    text = render()
    if arguments == ["--check"]:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
