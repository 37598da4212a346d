"""What a class does, told from its compiled code: for cells of notebooks, which have no file."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType


def describe_code(cls: type) -> Iterator[str]:
    """The code of a class's methods, and of functions and classes beside it that they use.

    Names of files and numbers of lines are left out: a cell that is run again is the same.

    >>> one, other = type("A", (), {"f": lambda self: 1}), type("A", (), {"f": lambda self: 2})
    >>> list(describe_code(one)) == list(describe_code(other))
    False
    """
    yield from _of_class(cls, cls.__module__, set())


def _of_class(cls: type, module: str, seen: set[int]) -> Iterator[str]:
    if id(cls) in seen:
        return
    seen.add(id(cls))
    yield cls.__qualname__
    for base in cls.__bases__:
        if base.__module__ == module:
            yield from _of_class(base, module, seen)
    for name, value in sorted(vars(cls).items()):
        function = _function_of(value)
        if function is not None:
            yield name
            yield from _of_function(function, module, seen)
        elif not name.startswith("__"):
            yield f"{name}={value!r}"


def _function_of(value: object) -> FunctionType | None:
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    return value if isinstance(value, FunctionType) else None


def _of_function(function: FunctionType, module: str, seen: set[int]) -> Iterator[str]:
    if id(function) in seen:
        return
    seen.add(id(function))
    yield repr(function.__defaults__)
    names: set[str] = set()
    yield from _of_code(function.__code__, names)
    for name in sorted(names):
        used = function.__globals__.get(name)
        if isinstance(used, FunctionType) and used.__module__ == module:
            yield from _of_function(used, module, seen)
        elif isinstance(used, type) and used.__module__ == module:
            yield from _of_class(used, module, seen)
        elif isinstance(used, bool | int | float | str | bytes):
            yield f"{name}={used!r}"


def _of_code(code: CodeType, names: set[str]) -> Iterator[str]:
    names.update(code.co_names)
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant, names)
        else:
            yield repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant)
