"""A command loads its own module; help and mistakes know of all commands."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from in_process import Main
from trueup.cli.app import COMMANDS, command_tree


def test_every_command_is_in_the_tree_in_order() -> None:
    tree = command_tree()
    commands = [command.name for command in tree.registered_commands]
    groups = [group.name for group in tree.registered_groups]
    assert sorted([*commands, *groups], key=COMMANDS.index) == list(COMMANDS)
    assert get_command(tree).get_short_help_str() != ""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_alone_is_called_as_in_the_whole_tree(name: str, main: Main) -> None:
    shown = main(name, "--help")
    assert shown.code == 0
    assert f"trueup {name}" in shown.out


def test_help_names_every_command(main: Main) -> None:
    shown = main("--help").out.split()
    assert [name for name in COMMANDS if name not in shown] == []


def test_a_mistyped_command_is_refused_with_one_that_is_like_it(main: Main) -> None:
    done = main("rnus", "list")
    assert done.code == 2
    assert "No such command 'rnus'" in done.err
    assert "runs" in done.err


def loaded(*arguments: str, home: Path) -> set[str]:
    """Modules that a command loads."""
    probe = (
        "import sys\nfrom trueup.cli import main\n"
        f"sys.argv = ['trueup', *{arguments!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe],
        env={**os.environ, "TRUEUP_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.splitlines()[-1].split())


def test_help_loads_no_records_and_no_database(tmp_path: Path) -> None:
    assert not loaded("--help", home=tmp_path) & {"pydantic", "sqlite3", "sqlalchemy", "trueup.schema.run"}


def test_a_list_of_runs_loads_no_other_command_and_no_mapper(tmp_path: Path) -> None:
    loaded("runs", "list", home=tmp_path)  # makes the database
    found = loaded("runs", "list", home=tmp_path)
    assert not found & {"sqlalchemy", "alembic", "trueup.cli.train", "trueup.cli.serve"}
    assert "trueup.cli.runs" in found


def test_garbage_is_collected_again_when_a_command_begins(main: Main) -> None:
    gc.disable()
    try:
        assert main("recipe", "schema").code == 0
        assert gc.isenabled()
    finally:
        gc.enable()
