"""docs/deploy.md is true: its commands run as a plain owner, its exit codes hold (R9.1)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from postgres_server import Cluster
from upgrade import routes
from upgrade.conftest import NewDatabase
from upgrade.databases import FIRST, ROOT
from upgrade.routes import execute, rows
from upgrade.ways import Done, deploy, dever, environment, install_schema

PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")

# Roles of programs that the page grants something to.
LOGINS = ("shop_web", "shop_worker", "shop_operator", "dashboard")

SHOP = """
from dever_sql import Jobs, record

jobs = Jobs()


@record
class Receipt:
    order_id: int


@jobs.job(retry=5, timeout=30_000)
def send_receipt(receipt: Receipt) -> None:
    pass
"""


def blocks(language: str, heading: str = "") -> list[str]:
    """The blocks of the page, or of the section that begins with a heading."""
    text = PAGE[PAGE.index(f"## {heading}") :] if heading else PAGE
    if heading:
        text = text[: text.find("\n## ", 1)]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def _roles(extension_server: Cluster) -> None:
    """What the page leaves to whoever may create roles."""
    grant, create = blocks("sql", "Rights")
    programs = "; ".join(f"create role {name} login" for name in LOGINS)
    execute(extension_server.url("postgres"), f"{programs}; {create}; {grant}")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where a pipeline runs: the program, and the files of the release."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "dever-sql").symlink_to(ROOT)
    return tmp_path


def shell(directory: Path, script: str, **urls: str) -> None:
    variables = environment()
    variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"
    done = subprocess.run(
        ["sh", "-eu", "-c", script],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        env={**variables, **urls},
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}"


def version(url: str) -> str:
    return rows(url, "select dever.version()")[0][0]


@pytest.mark.req("R9.1", "R9.3")
@pytest.mark.usefixtures("_roles")
def test_every_command_of_the_page_runs_in_its_order(
    new_database: NewDatabase, directory: Path
) -> None:
    url, copy = new_database(), new_database()
    for script in blocks("sh"):
        shell(directory, script, DATABASE_URL=url, COPY_URL=copy)
    # The last one takes it away; the copy is still there.
    assert rows(url, "select to_regnamespace('dever')") == [(None,)]
    assert version(copy) == routes.VERSION


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("heading", ["psql", "The command line"])
def test_each_route_upgrades(new_database: NewDatabase, directory: Path, heading: str) -> None:
    url = new_database()
    routes.plain(url, FIRST)
    for script in blocks("sh", heading):
        shell(directory, script, DATABASE_URL=url)
    assert version(url) == routes.VERSION


@pytest.mark.req("R9.3")
@pytest.mark.usefixtures("_roles")
def test_grants_under_other_names_give_these_rights(
    new_database: NewDatabase, directory: Path
) -> None:
    url = new_database()
    routes.plain(url)
    shell(directory, blocks("sh", "Rights")[1], DATABASE_URL=url)
    may = "select has_function_privilege(%s, 'dever.' || %s, 'execute')"
    for role, function, expected in (
        ("shop_web", "send_many(text, jsonb[])", True),
        ("shop_web", "next_tick_at()", False),
        ("shop_worker", "next_tick_at()", True),
        ("shop_worker", "redrive(bigint[])", False),
        ("shop_operator", "redrive(bigint[])", True),
    ):
        assert rows(url, may, role, function) == [(expected,)], (role, function)


@pytest.mark.req("R5.4")
def test_the_query_for_jobs_of_old_code_runs(new_database: NewDatabase, directory: Path) -> None:
    url = new_database()
    routes.plain(url)
    shell(directory, blocks("sh", "Contracts")[0], DATABASE_URL=url)
    execute(url, "select dever.enqueue('shop.send_receipt', '1', '{\"order_id\": 1}')")
    (query,) = blocks("sql", "The order of a deploy")
    ((target, fingerprint, state, count),) = rows(url, query)
    assert (target, state, count) == ("shop.send_receipt", "ready", 1)
    assert len(fingerprint) == 64


# The table


def table() -> dict[str, list[str]]:
    lines = PAGE[PAGE.index("| in the database |") :].partition("\n\n")[0].splitlines()
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {state: cells for state, *cells in found[2:]}


def bring(url: str, state: str) -> None:
    """Bring an empty database into a state of the table."""
    if state in ("older", "same", "newer"):
        routes.plain(url, FIRST if state == "older" else routes.VERSION)
    if state == "newer":
        execute(url, "update dever.installation set version = '9.0.0'")
    if state.endswith("extension"):
        routes.extension(url, FIRST if state.startswith("older") else routes.VERSION)


def statement(url: str, text: str) -> Done:
    try:
        execute(url, text)
    except psycopg.Error as error:
        return Done(1, str(error))
    return Done(0, "")


@pytest.mark.req("R4.1", "R9.1")
@pytest.mark.parametrize("state", table())
def test_the_table_of_exit_codes_holds(new_database: NewDatabase, state: str) -> None:
    columns = [
        [deploy, install_schema, lambda url: dever("sql", "install", url)],
        [lambda url: dever("sql", "upgrade", url)],
        [
            lambda url: install_schema(url, "--check"),
            lambda url: dever("sql", "check", url),
        ],
        [lambda url: statement(url, "create extension dever")],
        [lambda url: statement(url, "alter extension dever update")],
    ]
    for cell, ways in zip(table()[state], columns, strict=True):
        expected = 1 if cell == "error" else int(re.findall("[0-9]", cell)[0])
        for way in ways:
            url = new_database()
            bring(url, state)
            done = way(url)
            assert done.code == expected, f"{state}, {cell}: {done.said}"
            if re.match("installs|upgrades|updates|nothing,", cell):
                assert version(url) == routes.VERSION


# The pipelines


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("heading", ["GitHub Actions", "GitLab CI"])
def test_a_pipeline_brings_the_schema_and_checks_it(
    new_database: NewDatabase, directory: Path, heading: str
) -> None:
    url = new_database()
    shell(directory, "dever sql contracts shop > contracts.sql")
    (pipeline,) = blocks("yaml", heading)
    commands = re.findall(r"^ +- (?:run: )?((?:dever|psql)\b.*)$", pipeline, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        shell(directory, command, DATABASE_URL=url)
    assert version(url) == routes.VERSION
    assert rows(url, "select target from dever.contract") == [("shop.send_receipt",)]


@pytest.mark.req("R9.1")
def test_the_pipelines_are_yaml_of_the_shape_their_services_read() -> None:
    yaml = pytest.importorskip("yaml", reason="comes with what scripts/check installs")
    github, gitlab = (yaml.safe_load(block) for block in blocks("yaml"))
    for job in github["jobs"].values():
        assert job["runs-on"]
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])
    assert github["jobs"]["programs"]["needs"] == "schema"
    assert set(gitlab["stages"]) == {gitlab[job]["stage"] for job in ("schema", "programs")}
    for job in ("schema", "programs"):
        assert all(isinstance(command, str) for command in gitlab[job]["script"])
