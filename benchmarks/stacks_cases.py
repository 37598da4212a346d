"""What is measured on which device, and the bounds it must keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.stacks_measure import Bound
from cerebro.train.visit import Stacking


@dataclass(frozen=True, slots=True)
class Variant:
    """A stack of so many members, in a precision, compiled or not."""

    members: int
    precision: str
    is_compiled: bool = False

    @property
    def name(self) -> str:
        half = "_bf16" if self.precision == "bf16" else ""
        return f"k{self.members}{half}{'_compiled' if self.is_compiled else ''}"

    @property
    def stacking(self) -> Stacking:
        return Stacking(compiled=self.is_compiled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One network on one kind of device."""

    net: str
    sizes: tuple[int, ...]
    #: Those of a quick run.
    quick_sizes: tuple[int, ...]
    precisions: tuple[str, ...] = ("tf32",)
    #: Sizes that are compiled as well, in the last precision; and those of a quick run.
    compiled: tuple[int, ...] = ()
    quick_compiled: tuple[int, ...] = ()
    #: Sizes that JAX trains.
    jax: tuple[int, ...] = ()
    bounds: tuple[Bound, ...] = ()
    #: In how many trials "auto" may choose; 0: it is not asked.
    trials: int = 0
    #: How much slower than the best number of members the chosen one may be.
    regrets: Mapping[str, float] | None = None

    def variants(self, *, is_quick: bool) -> Iterator[Variant]:
        compiled = self.quick_compiled if is_quick else self.compiled
        for members in self.quick_sizes if is_quick else self.sizes:
            for precision in self.precisions:
                yield Variant(members, precision)
            if members in compiled:
                yield Variant(members, self.precisions[-1], is_compiled=True)


_EVERY = (1, 2, 4, 8, 16, 32, 64)
_REGRETS = {"auto": 0.15, "probe": 0.10}


def _on_cpu(net: str, must: float, *, sizes: tuple[int, ...] = _EVERY) -> Case:
    return Case(
        net=net,
        sizes=sizes,
        quick_sizes=tuple(size for size in sizes if size in (1, 4, 8, 16, 32)),
        precisions=("fp32",),
        jax=(1, 8, 32),
        bounds=(Bound(f"cpu_{net}", ("auto",), must),),
        trials=64,
        regrets=_REGRETS,
    )


CPU = {
    "mlp32_b32": _on_cpu("mlp32_b32", 4.0),
    "mlp128_b32": _on_cpu("mlp128_b32", 1.7),
    "mlp512_b128": _on_cpu("mlp512_b128", 0.98),
    # Never slower, but for what a run costs around the plain loop.
    "mlp128_b128": _on_cpu("mlp128_b128", 0.95),
    "small_cnn_b32": _on_cpu("small_cnn_b32", 0.95),
}

_CNN_64 = ("k64_bf16", "k64_bf16_compiled")
_CNN_1 = ("k1", "k1_compiled", "k1_bf16", "k1_bf16_compiled")

CUDA = {
    "mlp128_b128": Case(
        net="mlp128_b128",
        sizes=(1, 8, 64, 256, 1024),
        quick_sizes=(1, 64, 256, 1024),
        compiled=(1, 256),
        quick_compiled=(256,),
        jax=(256, 1024),
        bounds=(
            Bound("mlp128_k256_vs_eager", ("k256", "k256_compiled"), 300, 700),
            Bound("mlp128_k256_vs_jax", ("k256", "k256_compiled"), 0.8, 1.0, against="jax"),
            Bound("mlp_alone_vs_eager", ("k1", "k1_compiled"), 8, 14),
        ),
        trials=1024,
        regrets={"auto": 0.15},
    ),
    "mlp1024_b128": Case(
        net="mlp1024_b128",
        sizes=(1, 64),
        quick_sizes=(1, 64),
        compiled=(64,),
        quick_compiled=(64,),
        jax=(64,),
        bounds=(Bound("mlp1024_k64_vs_eager", ("k64", "k64_compiled"), 50, 80),),
    ),
    "cnn_b128": Case(
        net="cnn_b128",
        sizes=(1, 8, 64),
        quick_sizes=(1, 64),
        precisions=("tf32", "bf16"),
        compiled=(1, 8, 64),
        quick_compiled=(64,),
        bounds=(
            Bound("cnn_k64_vs_eager", _CNN_64, 10, 40),
            Bound("cnn_alone_vs_eager", _CNN_1, 2.5, 6),
        ),
    ),
}
#: In quick runs as well.
PROCESSES = (4, 8, 16)
