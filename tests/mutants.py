"""Breaks one predicate of the SQL at a time and asks whether the suite notices.

    python tests/mutants.py                 all mutants
    python tests/mutants.py sqlite claim    those whose engine or file holds these words

A mutant that no test notices is printed and makes the exit code 1: write the test that is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Mutant:
    engine: Literal["postgresql", "sqlite"]
    file: str
    old: str
    new: str


def postgresql(file: str, old: str, new: str) -> Mutant:
    return Mutant("postgresql", file, old, new)


def sqlite(file: str, old: str, new: str) -> Mutant:
    return Mutant("sqlite", file, old, new)


MUTANTS = [
    # Claim: due, free, within its attempts, not expired, ours, in order
    postgresql("60_claim", "and j.run_at <= v_now", "and j.run_at < v_now"),
    postgresql("60_claim", "or j.lease_until <= v_now)", "or j.lease_until < v_now)"),
    postgresql("60_claim", "and j.attempt < j.max_attempts", "and j.attempt <= j.max_attempts"),
    postgresql("60_claim", "or j.expires_at > v_now)", "or j.expires_at >= v_now)"),
    postgresql("60_claim", "else j.contract_id = any (claim.contracts)", "else true"),
    postgresql("60_claim", "and not q.paused", ""),
    postgresql("60_claim", "for update skip locked", "for update"),
    postgresql("60_claim", "attempt = j.attempt + 1", "attempt = j.attempt"),
    postgresql("60_claim", "pg_catalog.nextval('dever.token_seq')", "j.token + 1"),
    postgresql("60_claim", "order by c.run_at, c.id", "order by c.id"),
    # Fencing
    postgresql("70_finish", "where i.id = u.id and i.token = u.token", "where i.id = u.id"),
    postgresql("70_finish", "where l.lease_until > v_now", "where l.lease_until >= v_now"),
    postgresql("70_finish", "where l.lease_until > v_now", "where true"),
    postgresql("70_finish", "if v_first_end > v_now", "if v_first_end >= v_now"),
    postgresql("70_finish", "for update skip locked", "for update"),
    # Outcomes
    postgresql("70_finish", "and i.attempt >= i.max_attempts", "and i.attempt > i.max_attempts"),
    postgresql("70_finish", "and j.attempt >= j.max_attempts", "and j.attempt > j.max_attempts"),
    postgresql("70_finish", "greatest(u.delay, 0)", "u.delay"),
    postgresql("70_finish", "end > 0\n    ),", "end >= 0\n    ),"),
    postgresql("70_finish", "due_at = j.run_at", "due_at = null"),
    # Sweep
    postgresql("75_sweep", "s.expires_at <= v_now)", "s.expires_at < v_now)"),
    postgresql("75_sweep", "where c.created_at <= since", "where c.created_at < since"),
    postgresql("75_sweep", "if not v_queue.paused then", "if true then"),
    postgresql("75_sweep", "where s.reason in ('unknown_target', 'schema_mismatch') and", "where"),
    postgresql("75_sweep", "where k.keep_us < 3153600000000000", "where true"),
    # Enqueue
    postgresql("50_enqueue", "greatest(v_delay, 0)", "v_delay"),
    postgresql("40_contract", "and w.alive_until > is_policy_live.at_instant", ""),
    postgresql("40_contract", "order by p.id desc", "order by p.id"),
    # Operate
    postgresql("92_operate", "due_at = null, attempt = 0", "due_at = null"),
    postgresql("92_operate", "and i.outcome = 'dead' for update", "for update"),
    # SQLite: the same
    sqlite("60_claim", "and j.run_at <= (select", "and j.run_at < (select"),
    sqlite("60_claim", "or j.lease_until <= (select", "or j.lease_until < (select"),
    sqlite("60_claim", "and j.attempt < j.max_attempts", "and j.attempt <= j.max_attempts"),
    sqlite("60_claim", "or j.expires_at > (select", "or j.expires_at >= (select"),
    sqlite("60_claim", "else j.contract_id in (select", "else 1 or j.contract_id in (select"),
    sqlite("60_claim", "and not q.paused", ""),
    sqlite("60_claim", "attempt = attempt + 1", "attempt = attempt"),
    sqlite("60_claim", "set value = value + json_array_length(:ids)", "set value = value"),
    sqlite("60_claim", "order by j.run_at, j.id", "order by j.id"),
    sqlite("70_finish", "and j.token = i.value ->> 1", ""),
    sqlite("70_finish", "where j.lease_until > (select", "where j.lease_until >= (select"),
    sqlite("70_finish", "and token = i.value ->> 1", ""),
    sqlite("70_finish", "and lease_until > c.now", "and lease_until >= c.now"),
    sqlite("70_finish", "end > 0", "end >= 0"),
    sqlite("70_finish", "<< (max(attempt, 1) - 1)", "<< max(attempt, 1)"),
    sqlite("75_sweep", "when j.expires_at <= c.now", "when j.expires_at < c.now"),
    sqlite("75_sweep", "when j.lease_until > c.now then null", "when false then null"),
    sqlite("75_sweep", "where s.reason in ('unknown_target', 'schema_mismatch')\n", "where true\n"),
    sqlite("75_sweep", "where not q.paused", "where true"),
]

# Where a broken predicate shows first; the slow and the unrelated files are left out.
SUITE = [
    *(
        f"tests/contract/test_{name}.py"
        for name in ("claim", "outcomes", "sweep", "register", "queue", "enqueue", "model")
    ),
    "tests/postgres/test_interleavings.py",
]


def run(mutant: Mutant) -> tuple[bool, str]:
    """Whether a test fails, and what pytest said; with nothing broken (`old` is `new`) none may."""
    with tempfile.TemporaryDirectory() as directory:
        for name in ("sql", "sqlite_port"):
            shutil.copytree(ROOT / name, Path(directory) / name)
        folder = Path(directory) / ("sql/src" if mutant.engine == "postgresql" else "sqlite_port")
        path = folder / f"{mutant.file}.sql"
        text = path.read_text(encoding="utf-8")
        assert mutant.old in text, f"{mutant.file}: there is no {mutant.old!r} any more"
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        if mutant.engine == "postgresql":
            # Without it the tests install the sources.
            for built in (Path(directory) / "sql").glob("dever--*.sql"):
                built.unlink()
        else:
            for built in (Path(directory) / "sqlite_port").glob("dever--*.sql"):
                whole = built.read_text(encoding="utf-8")
                built.write_text(whole.replace(mutant.old, mutant.new), encoding="utf-8")
        # The model runs both engines, the interleavings PostgreSQL: chosen by neither name.
        chosen = f"{mutant.engine} or test_engines_do"
        if mutant.engine == "postgresql":
            chosen += " or interleavings"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"),
                *("-k", chosen, "--timeout=120", *SUITE),
            ],
            cwd=ROOT,
            env={**os.environ, "DEVER_TEST_SQL": directory, "DEVER_MODEL_SEQUENCES": "60"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    return done.returncode == 1, done.stdout


def main(words: list[str]) -> int:
    chosen = [m for m in MUTANTS if all(word in f"{m.engine} {m.file}" for word in words)]
    survivors = 0
    for engine, file in {mutant.engine: mutant.file for mutant in chosen}.items():
        failed, said = run(Mutant(engine, file, "select", "select"))
        if failed:
            print(said)
            print(f"{engine}: the suite fails with nothing broken")
            return 2
    for mutant in chosen:
        began = time.monotonic()
        noticed, _ = run(mutant)
        survivors += not noticed
        print(
            f"{'noticed ' if noticed else 'SURVIVED'} {time.monotonic() - began:5.1f} s "
            f"{mutant.engine} {mutant.file}: {mutant.old!r} -> {mutant.new!r}",
            flush=True,
        )
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants noticed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
