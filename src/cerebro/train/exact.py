"""All that an object computes with, as a digest: values, code, and the modules behind it."""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any

import numpy as np

from cerebro.train.modules import UserModules

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
#: In a class: made by Python itself, or a cache of its own.
_OWN = {"_abc_impl"}


class CannotKnow(Exception):
    """What an object holds cannot be told."""


class ExactDigest:
    """Takes in values one after the other; equal digests mean that all of them are equal.

    Of classes and functions of the user, their code counts with all that it uses: defaults,
    closures, globals. Of others, the name.

    Args:
        modules: Tells whose code it is.
    """

    def __init__(self, modules: UserModules) -> None:
        self._modules = modules
        self._hash = hashlib.sha256()
        #: Number and object by id: kept, so that no other one gets its id.
        self._seen: dict[int, tuple[int, object]] = {}
        self._sources: set[str] = set()
        self._takers: tuple[tuple[tuple[type, ...], Callable[[Any], None]], ...] = (
            ((dict, list, tuple, set, frozenset, MappingProxyType), self._collection),
            ((ModuleType,), self._module),
            ((type,), self._class),
            ((FunctionType,), self._function),
            ((CodeType,), self._code),
            ((staticmethod, classmethod), lambda value: self.add(value.__func__)),
            ((property,), lambda value: self.add([value.fget, value.fset])),
            ((functools.cached_property,), lambda value: self.add(value.func)),
            ((MemberDescriptorType, GetSetDescriptorType), lambda value: self._put(value.__name__)),
            ((np.ndarray, np.generic), self._array),
        )

    def hexdigest(self) -> str:
        """Of all so far."""
        return self._hash.hexdigest()

    def add(self, value: object) -> None:
        """Take in a value.

        Raises:
            CannotKnow: for a lock, an open file and the like.
        """
        if type(value) in _PLAIN:
            self._put(repr(value))
        elif id(value) in self._seen:
            self._put(f"number {self._seen[id(value)][0]}")
        else:
            self._seen[id(value)] = len(self._seen), value
            self._add_new(value)

    def _add_new(self, value: Any) -> None:
        for kinds, take in self._takers:
            if isinstance(value, kinds):
                take(value)
                return
        if _is_tensor(value):
            self._tensor(value)
        else:
            self._object(value)

    def _put(self, data: str | bytes | memoryview) -> None:
        content = data.encode(errors="surrogatepass") if isinstance(data, str) else data
        self._hash.update(f"{len(content)}:".encode())
        self._hash.update(content)

    def _all(self, *values: object) -> None:
        for value in values:
            self.add(value)

    def _collection(self, value: Any) -> None:
        kind = type(value)
        if kind is MappingProxyType:
            value = dict(value)
        elif kind not in (dict, list, tuple, set, frozenset):
            self._object(value)
            return
        self._put(f"{kind.__name__} of {len(value)}")
        if isinstance(value, set | frozenset):
            for digest in sorted(map(self._alone, value)):
                self._put(digest)
            return
        parts = [part for pair in value.items() for part in pair] if kind is dict else value
        if all(type(part) in _PLAIN for part in parts):
            self._put(repr(list(parts)))
        else:
            self._all(*parts)

    def _alone(self, value: object) -> str:
        """The digest of one value, whatever came before it."""
        other = ExactDigest(self._modules)
        other.add(value)
        return other.hexdigest()

    def _array(self, value: Any) -> None:
        if isinstance(value, np.ndarray) and type(value) is not np.ndarray:
            self._object(value)
            return
        array = np.asarray(value)
        self._put(f"array {array.dtype.descr} {array.shape}")
        if array.dtype.hasobject:
            self.add(array.tolist())
        else:
            self._put(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def _tensor(self, tensor: Any) -> None:
        self._put(f"tensor {tensor.dtype} {tuple(tensor.shape)} {tensor.requires_grad}")
        try:
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            self._array(flat.view(sys.modules["torch"].uint8).numpy())
        except (RuntimeError, TypeError) as error:
            raise CannotKnow(f"a tensor with the layout {tensor.layout}") from error

    def _object(self, value: object) -> None:
        """What it would be made again from, somewhere else."""
        self._put(f"{type(value).__module__}:{type(value).__qualname__}")
        if isinstance(value, BuiltinFunctionType):
            self._put(value.__qualname__)
        wrapped = getattr(value, "__wrapped__", None)
        if isinstance(wrapped, FunctionType):
            self.add(wrapped)
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            made_from = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception as error:
            raise CannotKnow(f"a {type(value).__name__}") from error
        if isinstance(made_from, str):
            self._put(made_from)
            return
        for part in made_from:
            self.add(list(part) if isinstance(part, Iterator) else part)

    def _class(self, cls: type) -> None:
        self._put(f"{cls.__module__}:{cls.__qualname__}")
        module = sys.modules.get(cls.__module__)
        if not self._modules.is_users(module):
            return
        self._source(module)
        self._all(*cls.__bases__)
        for name, value in sorted(vars(cls).items()):
            is_special = name.startswith("__") and name.endswith("__")
            if name in _OWN or (is_special and not callable(_bare(value))):
                continue
            self._put(name)
            self.add(value)

    def _function(self, function: FunctionType) -> None:
        self._put(f"{function.__module__}:{function.__qualname__}")
        self._all(function.__defaults__, function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:
                self._put("empty")
            else:
                self.add(content)
        # Not its own word for it, which a decorator takes from what it decorates.
        module = sys.modules.get(function.__globals__.get("__name__", ""))
        if not self._modules.is_users(module):
            return
        self._source(module)
        self.add(function.__code__)
        names = sorted({name for code in _codes(function.__code__) for name in code.co_names})
        for name in sorted({name for code in _codes(function.__code__) for name in _globals(code)}):
            if name not in function.__globals__:
                continue
            used = function.__globals__[name]
            self._put(name)
            if isinstance(used, ModuleType):
                self._module(used, names)
            else:
                self.add(used)

    def _code(self, code: CodeType) -> None:
        self._put(code.co_code)
        self._all(code.co_names, code.co_varnames, code.co_freevars, code.co_consts)

    def _module(self, module: ModuleType, names: Sequence[str] = ()) -> None:
        """A module, and what code with these names in it may use of it."""
        self._put(module.__name__)
        if not self._modules.is_users(module):
            return
        self._source(module)
        for name in names:
            if name in vars(module):
                self._put(name)
                found = vars(module)[name]
                if not isinstance(found, ModuleType):
                    self.add(found)
                elif id(found) not in self._seen:
                    self._seen[id(found)] = len(self._seen), found
                    self._module(found, names)

    def _source(self, module: ModuleType | None) -> None:
        """The text of a module, and of those of the user that it imports."""
        name = getattr(module, "__name__", "")
        if name in self._sources:
            return
        self._sources.add(name)
        for path, text in self._modules.sources(module):
            self._put(path)
            self._put(text)


def _bare(value: object) -> object:
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A code, and those of functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _globals(code: CodeType) -> Iterator[str]:
    """Names that it looks for outside."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)


def digest_of(modules: UserModules, parts: Mapping[str, object]) -> str:
    """SHA-256 of what all of these hold and do; "" where that cannot be told."""
    digest = ExactDigest(modules)
    try:
        digest.add(dict(parts))
    except (CannotKnow, RecursionError):
        return ""
    return digest.hexdigest()
