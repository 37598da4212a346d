"""Which modules are the user's."""

from __future__ import annotations

import importlib
import sys

from cerebro.train.modules import UserModules

FILES = {
    "users_main.py": "import users_part, pip_package, pip_module",
    "users_part.py": "",
    "pip_package/__init__.py": "import users_part\nfrom pip_package import inner",
    "pip_package/inner.py": "",
    "pip_module.py": "",
    "pip_package-1.0.dist-info/RECORD": "pip_package/__init__.py,sha256=a,1\npip_module.py,,\n",
}


def test_what_pip_has_put_beside_the_users_modules_is_not_theirs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    main = importlib.import_module("users_main")
    users = UserModules()
    try:
        assert [name for name, _ in users.sources(main)] == ["users_main", "users_part"]
        loaded = ("users_part", "pip_package", "pip_package.inner", "pip_module")
        assert [users.is_users(sys.modules[name]) for name in loaded] == [True] + [False] * 3
    finally:
        for name in [name for name in sys.modules if name.startswith(("users_", "pip_"))]:
            del sys.modules[name]


def test_a_program_that_runs_in_the_root_directory_ends(tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "users_alone.py").write_text("")
    main = importlib.import_module("users_alone")
    try:
        assert UserModules().is_users(main)
    finally:
        del sys.modules["users_alone"]
