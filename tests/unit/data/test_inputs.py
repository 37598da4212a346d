"""Which columns are taken and which are refused, and how."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from cerebro.data.inputs import as_table, as_values, describe
from cerebro.errors import DataError


@dataclass
class Csr:
    """What SciPy's csr_matrix looks like from here."""

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    shape: tuple[int, int]
    format: str = "csr"


class Series:
    """What a pandas Series of strings looks like from here."""

    def __init__(self, values):
        self._values = np.array(values, dtype=object)

    def __array__(self, dtype=None, copy=None):
        return self._values


class DataFrame(Series):
    """What a pandas DataFrame looks like from here."""

    columns = ("x",)
    iloc = None


def csr(**changes):
    parts = {
        "indptr": np.array([0, 1, 2]),
        "indices": np.array([0, 2]),
        "data": np.array([1.0, 2.0]),
        "shape": (2, 3),
    }
    return Csr(**{**parts, **changes})


def kind_of(data):
    return str(describe(as_values(data, where="train column 'x'")))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (np.zeros((3, 2), np.float16), "float16[2]"),
        (torch.zeros(3, 2, requires_grad=True), "float32[2]"),
        ([torch.zeros(2), torch.ones(2)], "float32[2]"),
        (torch.tensor([True]), "bool"),
        ([1, 2], "int64"),
        ([[1.0], [2.0]], "float64[1]"),
        (["a", "b"], "text"),
        (("a", "b"), "text"),
        ([b"a"], "bytes"),
        (np.array(["a", "bc"]), "text"),
        (np.array([b"a"]), "bytes"),
        (np.array(["a", "bc"], dtype=object), "text"),
        (np.array([b"a"], dtype=object), "bytes"),
        (np.array(["a", "bc"], dtype=np.dtypes.StringDType()), "text"),
        (Series(["a", "b"]), "text"),
        ([torch.zeros(2), np.ones(2), [0.0, 1.0]], "float64[2]"),
        (csr(), "sparse float64[3]"),
        (range(3), "int64"),
    ],
)
def test_the_kind_of_a_column_follows_from_what_is_given(data, kind):
    assert kind_of(data) == kind


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.array([object()]), "dtype object.*list of str"),
        (np.array(["a", None], dtype=object), "row 1 is NoneType"),
        (np.array([["a"], ["b"]], dtype=object), "one value a row"),
        ([torch.zeros(2), "a"], "row 1 is str"),
        ([1.0, b"a"], "row 1 is bytes"),
        ([torch.zeros(2), None], "same shape"),
        ([1.0, torch.zeros(1, dtype=torch.bfloat16)], "row 1 cannot be stored"),
        (np.zeros(2, complex), "dtype complex128"),
        (np.zeros(2, "datetime64[s]"), "datetime64"),
        (torch.zeros(2, dtype=torch.bfloat16), "cannot be stored"),
        (torch.zeros(2, 2).to_sparse(), "cannot be stored"),
        (np.float64(3), "single value"),
        ("abc", "single value"),
        (["a", 1], "row 1 is int"),
        (["a", None], "row 1 is NoneType"),
        (["\ud800"], "cannot be stored"),
        ([[1], [1, 2]], "same shape"),
        (np.zeros((3, 0)), "must not be empty"),
        (np.array([["a"], ["b"]]), "one value a row"),
        (csr(format="csc"), "tocsr"),
        (csr(indices=np.array([0, 3])), "not a valid CSR"),
        (csr(indices=np.array([0, -1])), "not a valid CSR"),
        (csr(indptr=np.array([0, 3, 2])), "not a valid CSR"),
        (csr(indptr=np.array([0, 1])), "not a valid CSR"),
        (csr(data=np.array([1j, 2j])), "complex128"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_column_and_reason(data, message):
    with pytest.raises(DataError, match=f"train column 'x'.*{message}"):
        as_values(data, where="train column 'x'")


def test_columns_of_different_lengths_are_refused_with_both_lengths():
    with pytest.raises(DataError, match="x 3, y 2"):
        as_table({"x": np.zeros(3), "y": np.zeros(2)}, split="train")


@pytest.mark.parametrize("columns", [{}, {"x": []}, {"x": np.zeros((0, 3))}])
def test_no_columns_or_no_rows_are_refused(columns):
    with pytest.raises(DataError, match="at least one"):
        as_table(columns, split="val")


def test_something_else_than_a_mapping_is_refused():
    with pytest.raises(DataError, match="mapping of column names"):
        as_table(np.zeros(3), split="train")


@pytest.mark.parametrize("name", ["", " x", "x\n", 3, "x" * 201])
def test_a_name_no_one_could_type_is_refused(name):
    with pytest.raises(DataError, match="name"):
        as_table({name: np.zeros(3)}, split="train")


def test_dense_input_is_not_copied():
    values = np.zeros(3)
    assert as_values(values, where="x") is values


def test_a_data_frame_is_refused_with_what_to_pass_instead():
    with pytest.raises(DataError, match=r"got DataFrame\. Pass \{c: df\[c\]\.to_numpy\(\)"):
        as_table(DataFrame(["a"]), split="train")


def test_rows_of_a_mixed_list_are_all_there():
    values = as_values([torch.zeros(1), [1.0], np.full(1, 2.0)], where="x")
    assert values.tolist() == [[0.0], [1.0], [2.0]]
