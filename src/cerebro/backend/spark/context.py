"""All that is needed of PySpark, which is loaded at first use."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cerebro.errors import MissingDependencyError, UsageError

_MAKE_ONE = "Make one first, for example with SparkSession.builder.master('local[2]').getOrCreate()"


def find_context(given: object) -> Any:
    """The SparkContext that was given, of a SparkSession that was given, or the active one."""
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingDependencyError(
            f"SparkBackend needs PySpark ({error}). Install it with `pip install 'cerebro[spark]'`."
        ) from error
    found: Any = SparkContext._active_spark_context if given is None else given
    if type(found).__module__.startswith("pyspark.sql.connect"):
        raise UsageError(
            "SparkBackend needs a classic SparkSession, but got one of Spark Connect, which has no "
            "SparkContext. Start the program beside the cluster with "
            "SparkSession.builder.master('spark://host:7077') instead of .remote(...)."
        )
    if found is None:
        raise UsageError(f"there is no active SparkContext. {_MAKE_ONE}, or give spark_context=.")
    if isinstance(found, SparkSession):
        found = found.sparkContext
    if not isinstance(found, SparkContext):
        raise UsageError(
            "spark_context must be a SparkContext or a SparkSession, but got "
            f"{type(found).__name__}."
        )
    if found.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        # On this machine tasks need this Python, not the first one of the PATH.
        found.pythonExec = sys.executable
    return found


def check_alive(context: Any) -> None:
    """Raise unless jobs can still be run."""
    if getattr(context, "_jsc", None) is None or context._jsc.sc().isStopped():
        raise UsageError(f"the SparkContext must be running, but was stopped. {_MAKE_ONE}.")


def cores_per_task(context: Any) -> int:
    """`spark.task.cpus`."""
    return max(1, int(float(context.getConf().get("spark.task.cpus", "1"))))


def default_workers(context: Any) -> int:
    """As many as tasks that run at once, as far as Spark knows its executors by now."""
    scala = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    # Before the first executor is there, what Spark would cut data into.
    return int(scala.maxNumConcurrentTasks(profile)) or max(
        1, int(context.defaultParallelism) // cores_per_task(context)
    )


def make_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """A thread that submits jobs; one of the JVM goes with it, and ends with it."""
    from pyspark import InheritableThread

    thread: threading.Thread = InheritableThread(target=target, name=name, daemon=True)
    return thread


def select(df: Any, names: Sequence[str], casts: Mapping[str, str]) -> Any:
    """Columns of a DataFrame, called c0, c1, ...; some of them as another type."""
    from pyspark.sql import functions

    found = []
    for number, name in enumerate(names):
        column = functions.col(quoted(name))
        if name in casts:
            column = column.cast(casts[name])
        found.append(column.alias(f"c{number}"))
    return df.select(*found)


def quoted(name: str) -> str:
    """A column's name, whatever it has in it, as Spark reads it.

    >>> quoted("a.b `c`")
    '`a.b ``c```'
    """
    return "`" + name.replace("`", "``") + "`"


def folds_case(df: Any) -> bool:
    """Whether Spark takes names for the same that differ in case alone, as it does by default."""
    return str(df.sparkSession.conf.get("spark.sql.caseSensitive")).lower() != "true"


def refuse_twins(df: Any, names: Iterable[str]) -> None:
    """Raise if one of these columns has a name that Spark cannot tell from another's."""
    is_folding = folds_case(df)
    for name in names:
        twins = [each for each in df.columns if _is_same(each, name, is_folding)]
        if len(twins) > 1:
            raise UsageError(
                f"columns must have names that Spark can tell apart, but there are "
                f"{' and '.join(map(repr, twins))}. Rename one of them before"
                + (", or set spark.sql.caseSensitive to true." if is_folding else ".")
            )


def meant(name: str, names: Iterable[str]) -> str:
    """A hint to the column that differs from an unknown one in case alone, if there is one.

    >>> meant("Price", ["id", "price"])
    " Did you mean 'price'?"
    """
    found = next((each for each in names if _is_same(each, name, True)), None)
    return "" if found is None else f" Did you mean {found!r}?"


def _is_same(first: str, second: str, is_folding: bool) -> bool:
    return first == second or (is_folding and first.lower() == second.lower())


def this_task() -> Any:
    """The context of the Spark task that this process carries out."""
    from pyspark import TaskContext

    return TaskContext.get()
