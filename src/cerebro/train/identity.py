"""Which task a run was made with: its name, its code and its arguments."""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType

from cerebro.etl_spec import ETLSpec
from cerebro.spec import MiniBatchSpec
from cerebro.task import Task
from cerebro.train.code import describe_code
from cerebro.train.exact import digest_of
from cerebro.train.modules import UserModules
from cerebro.train.spec.task import SpecTask
from cerebro.train.told import TOLD

#: Prefix of the modules made of `file.py:Class` tasks.
FILE_MODULE = "cerebro_task_"
_UNKNOWN = "\x00at "


def describe_task(task: object) -> tuple[str, str]:
    """`module:Class`, and a SHA-256 of what the task (or spec) computes with.

    That is the source of its classes, of the file they are in, for the functions it calls there,
    and the values it was given. "" where the class belongs to the main module of another process.
    It is the same on all workers; `exact_digest` knows more, where the object was made.
    """
    cls = type(written(task))
    where = cls.__module__
    if where.startswith(FILE_MODULE):
        where = os.path.abspath(inspect.getfile(cls))
    return f"{where}:{cls.__qualname__}", _digest(task)


def exact_digest(task: object) -> str:
    """SHA-256 of all that the results of a task, or spec, depend on: equal only if they are.

    Beside what `describe_task` looks at, what its attributes hold; what its functions use: closures
    and globals; and the modules of the user that are imported, see `UserModules`. "" where that
    cannot be known: what was computed once must then be computed again.
    """
    name, digest = describe_task(task)
    if not digest:
        return ""
    own = written(task)
    cls = type(own)
    modules = UserModules(*_package_file(cls))
    return digest_of(
        modules, {"name": name, "task": digest, "class": cls, "state": _own_state(own)}
    )


def written(task: object) -> object:
    """What the user wrote."""
    return task.spec if isinstance(task, SpecTask) else task


def has_own_state(task: Task) -> bool:
    """Whether the task differs from one made without arguments, as far as can be told.

    Such a task cannot be made again from its name alone.
    """
    own = written(task)
    if not _own_state(own):
        return False
    try:
        fresh = type(own)()
    except Exception:
        return True
    return list(_state(_own_state(own), is_exact=True)) != list(
        _state(_own_state(fresh), is_exact=True)
    )


def _own_state(task: object) -> dict[str, object]:
    """What the user's code has put into it: what it was told of a run is none of it."""
    return {name: value for name, value in vars(task).items() if name not in TOLD}


def describe_value(value: object) -> str:
    """What a value holds, as text: equal for equal values, whatever objects they are.

    Raises:
        ValueError: it is of a kind of which nobody can tell.
    """
    text = "\x1f".join(_state(value, is_exact=True))
    if _UNKNOWN in text:
        raise ValueError(f"a {type(value).__name__} cannot be compared with another")
    return text


def digest_function(function: Callable[..., object]) -> str:
    """SHA-256 of what a function does, for something of ours that holds one of the user's.

    That is its code, that of what it calls beside it, and what it closes over, as far as can be
    told. It may be a partial, a method or an object that can be called too.

    >>> digest_function(lambda x: x + 1) == digest_function(lambda x: x + 2)
    False
    """
    parts: list[str] = []
    inner: object = function
    while isinstance(inner, functools.partial | MethodType):
        inner = inner.func if isinstance(inner, functools.partial) else inner.__func__
    code = inner if isinstance(inner, FunctionType) else inspect.getattr_static(inner, "__call__")
    if isinstance(code, FunctionType):
        home = type("function", (), {"__module__": code.__module__, "function": code})
        parts += describe_code(home)
    with contextlib.suppress(ValueError):
        # What it closes over, or what an object that is called holds.
        parts.append(describe_value(function))
    return _digest_parts(parts)


def _digest(task: object) -> str:
    own = written(task)
    cls = type(own)
    # A class of a script or notebook arrives by value on a worker, whose __main__ is another.
    home = sys.modules.get(cls.__module__)
    if cls.__module__ == "__main__" and not hasattr(home, cls.__qualname__.split(".")[0]):
        return ""
    try:
        parts = [_class_source(cls)]
    except (OSError, TypeError):
        # Of a cell of a notebook, or of a line that was typed in.
        parts = list(describe_code(cls))
    parts += [_source_of(base) for base in cls.__mro__[1:] if _is_users(base)]
    parts.append(_module_source(cls))
    parts += _state(_own_state(own))
    return _digest_parts(parts)


def _digest_parts(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode(errors="backslashreplace"))
    return digest.hexdigest()


def _package_file(cls: type) -> Iterator[str]:
    """The file of a class, or that of the package that it is in."""
    top = sys.modules.get(cls.__module__.split(".")[0])
    for module in (top, sys.modules.get(cls.__module__)):
        path = getattr(module, "__file__", None)
        if path is not None:
            yield path
            return


def _is_users(base: type) -> bool:
    is_ours = base in (Task, MiniBatchSpec, ETLSpec)
    return not is_ours and base.__module__.split(".")[0] not in sys.stdlib_module_names


def _source_of(base: type) -> str:
    try:
        return _class_source(base)
    except (OSError, TypeError):
        return f"{base.__module__}:{base.__qualname__}"


def _class_source(cls: type) -> str:
    """The lines of a class.

    Raises:
        OSError: they are nowhere to be read.
        TypeError: they are nowhere to be read, of a class without a module that is a file.
    """
    source = _module_source(cls)
    return _cut_source(cls, source) if source else inspect.getsource(cls)


@functools.lru_cache(maxsize=16)
def _cut_source(cls: type, module_source: str) -> str:
    # The whole file is parsed to find the class in it: once for each text of the file.
    return inspect.getsource(cls)


def _module_source(cls: type) -> str:
    path = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if path is None or not path.endswith(".py"):
        return ""
    try:
        with open(path, encoding="utf-8", errors="backslashreplace") as file:
            return file.read()
    except OSError:
        return ""


def _state(value: object, *, is_exact: bool = False, inside: tuple[int, ...] = ()) -> Iterator[str]:
    """A value as text that is the same in every process: of objects, only the type.

    With `is_exact` objects count by what they hold too. `inside` has the ids of what holds it.
    """
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield repr(value)
    elif isinstance(value, type | FunctionType | BuiltinFunctionType):
        yield f"{value.__module__}:{value.__qualname__}"
        if is_exact and isinstance(value, FunctionType) and id(value) not in inside:
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            given = [value.__defaults__, value.__kwdefaults__, cells]
            yield from _state(given, is_exact=True, inside=(*inside, id(value)))
    elif isinstance(value, range | slice | enum.Enum):
        yield repr(value)
    elif isinstance(value, functools.partial | MethodType) and id(value) not in inside:
        parts = [value.__func__, value.__self__] if isinstance(value, MethodType) else None
        held = parts or [value.func, value.args, value.keywords]  # type: ignore[union-attr]
        yield from _state(held, is_exact=is_exact, inside=(*inside, id(value)))
    elif id(value) in inside:
        yield f"the one {inside[::-1].index(id(value))} above"
    elif isinstance(value, Mapping | list | tuple | set | frozenset):
        yield f"{type(value).__qualname__} of {len(value)}"
        for item in _items(value):
            yield from _state(item, is_exact=is_exact, inside=(*inside, id(value)))
    else:
        yield f"{type(value).__module__}:{type(value).__qualname__}"
        if is_exact:
            yield from _content(value, (*inside, id(value)))


def _items(value: Collection[object]) -> list[object]:
    if isinstance(value, Mapping):
        pairs = sorted(value.items(), key=lambda pair: repr(pair[0]))
        return [part for pair in pairs for part in pair]
    return sorted(value, key=repr) if isinstance(value, set | frozenset) else list(value)


def _content(value: object, inside: tuple[int, ...]) -> Iterator[str]:
    """What an object holds: an array's memory, or its attributes; of others, that it is itself."""
    try:
        memory = memoryview(value)  # type: ignore[arg-type]
        yield f"{memory.format} {memory.shape} {memory.tobytes().hex()}"
    except (TypeError, ValueError, NotImplementedError, BufferError):
        # Types of other languages (tensors) may have an empty one and hold their values elsewhere.
        if getattr(value, "__dict__", None):
            yield from _state(vars(value), is_exact=True, inside=inside)
        else:
            yield f"{_UNKNOWN}{id(value):x}"
