"""ETLSpec: how rows of raw data become tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class ETLSpec:
    """How one row of a table, with the files it names, becomes an input and a label.

    Subclass it and write `row_prep`, or `batch_prep` to work on many rows at once. The object
    travels to the workers: attributes set in `read_misc` travel with it. Rows must come out the
    same wherever and whenever they are prepared: draw nothing at random.

    >>> class Halves(ETLSpec):
    ...     def row_prep(self, row, mode, object_dir):
    ...         return [row["a"] / 2, row["b"] / 2], row["label"] if mode != "predict" else None
    >>> Halves().row_prep({"a": 1, "b": 2, "label": 0}, "train", None)
    ([0.5, 1.0], 0)
    """

    #: How pictures in archives are decoded: "rgb8", "gray8", "float" or "bytes" (not at all).
    images: str = "rgb8"

    def initialize_worker(self) -> None:
        """Called once in each process that prepares rows, before its first."""

    def read_misc(self, misc_path: str) -> None:
        """Called once where the experiment is, with the directory that holds the `misc` files."""

    def set_features(self) -> Sequence[bool]:
        """For each column of the table, `id` included, whether it holds the name of a file.

        Such files are looked for in the split's `*_dir`, and fetched first where that is remote.
        Default: none does.
        """
        return []

    def row_prep(self, row: Mapping[str, Any], mode: str, object_dir: str | None) -> Any:
        """The input and the label of a row: `(tensor, label)`, in mode "predict" `(tensor, None)`.

        Both may be tensors, arrays, numbers, text or bytes, or dicts of these: then their keys are
        the names of columns. All rows must give the same shapes and dtypes.

        Args:
            row: Values by the name of their column; `row["label"]` or `row.label`.
            mode: "train", "val", "test" or "predict".
            object_dir: The directory with the files that the row names; None if there is none.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define row_prep(self, row, mode, object_dir), or "
            "batch_prep(self, table, mode, object_dir)."
        )

    def batch_prep(self, table: Any, mode: str, object_dir: str | None) -> Any:
        """The same for many rows at once, a `pyarrow.Table`: rows on axis 0 of what it gives.

        Written instead of `row_prep`, it spares a call for each row. A row that cannot be used is
        an error here: only `row_prep` can be told to skip.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define batch_prep.")

    def has(self, method: str) -> bool:
        """Whether the subclass defines the method of this name."""
        return getattr(type(self), method) is not getattr(ETLSpec, method)
