"""What the package must never do with bytes or text that somebody else may have written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "cerebro"

# Modules whose readers can run code found in what they read.
UNSAFE_READERS = {"_pickle", "cPickle", "dill", "joblib", "marshal", "pickle", "shelve"}
# Private pipes between the driver and what it started: its own, of Ray and of Spark.
ALLOWED_READERS = {
    ("backend/worker.py", "pickle"),
    ("backend/gang/rank.py", "pickle"),
    ("backend/ray/packed.py", "pickle"),
    ("backend/spark/wire.py", "pickle"),
}

BANNED_CALLS = {
    "__import__",
    "compile",
    "eval",
    "exec",
    "os.popen",
    "os.system",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "tempfile.mktemp",
    "torch.load",
    "torch.save",
    "yaml.full_load",
    "yaml.load",
    "yaml.unsafe_load",
}
BANNED_METHODS = {"extractall", "load_model", "read_pickle", "to_pickle"}
BANNED_KEYWORDS = {"allow_pickle", "shell"}


def violations(source: str, file: str = "x.py") -> list[str]:
    """Everything forbidden in a piece of source, as `file:line: what`."""
    found = [
        (node.lineno, what)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt | ast.expr)
        for what in forbidden_in(node, file)
    ]
    return [f"{file}:{line}: {what}" for line, what in sorted(found)]


def forbidden_in(node: ast.AST, file: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        names = [alias.name.split(".")[0] for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [(node.module or "").split(".")[0]]
    else:
        names = []
    yield from (n for n in names if n in UNSAFE_READERS and (file, n) not in ALLOWED_READERS)
    if isinstance(node, ast.Call):
        yield from forbidden_call(node)


def forbidden_call(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    if name in BANNED_CALLS and not reads_weights_only(node, name):
        yield f"{name}()"
    if isinstance(node.func, ast.Attribute) and node.func.attr in BANNED_METHODS:
        yield f".{node.func.attr}()"
    for keyword in node.keywords:
        is_false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        if keyword.arg in BANNED_KEYWORDS and not is_false:
            yield f"{keyword.arg}="


def reads_weights_only(node: ast.Call, name: str) -> bool:
    """Whether it says that only tensors and plain containers are made of what is read."""
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    value = given.get("weights_only")
    return name == "torch.load" and isinstance(value, ast.Constant) and value.value is True


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import dill",
        "import shelve",
        "import joblib",
        "def f():\n    import pickle",
        "torch.load('x')",
        "torch.load('x', weights_only=False)",
        "torch.load('x', weights_only=flag)",
        "torch.load('x', **options)",
        "np.load('x', allow_pickle=True)",
        "np.load('x', allow_pickle=flag)",
        "eval('1')",
        "exec('1')",
        "yaml.load(text)",
        "subprocess.run('ls', shell=True)",
        "os.system('ls')",
        "archive.extractall()",
        "keras.models.load_model('x')",
        "pd.read_pickle('x')",
    ],
)
def test_the_scan_finds(source):
    assert violations(source) != []


@pytest.mark.parametrize(
    "source",
    [
        "re.compile('x')",
        "json.loads(x)",
        "np.load('x')",
        "f(shell=False)",
        "torch.load('x', weights_only=True)",
    ],
)
def test_the_scan_passes(source):
    assert violations(source) == []


def test_the_package_runs_no_code_from_data():
    found = [
        violation
        for path in sorted(SOURCE.rglob("*.py"))
        for violation in violations(
            path.read_text(encoding="utf-8"), path.relative_to(SOURCE).as_posix()
        )
    ]
    assert found == []
