"""`dever fmt` on any arrangement of declarations: the same program, the same comments, once."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dever_sql.fmt import format_source

pytestmark = pytest.mark.req("R1.9")

HEAD = "from __future__ import annotations\nfrom dever_sql import Jobs\njobs = Jobs()\n"
ARGUMENTS = {
    "spec": '"0  3 * *  *"',
    "retry": "3",
    "timeout": "f(1, 2)",
    "missed": "'skip'",
    "name": "'ü.a'",
    "other": "[1,\n        2]",
}


@st.composite
def calls(draw: st.DrawFn) -> str:
    names = draw(st.permutations(sorted(ARGUMENTS)))
    given_ = [f"{name}={ARGUMENTS[name]}" for name in names[: draw(st.integers(0, 6))]]
    form = draw(st.sampled_from(["inline", "lines", "mixed"]))
    if form == "inline":
        return ", ".join(given_)
    text = "\n"
    for number, each in enumerate(given_):
        last = number == len(given_) - 1
        above = draw(st.sampled_from(["", f"    # above {number}\n"]))
        beside = draw(st.sampled_from(["", f"  # beside {number}"]))
        comma = draw(st.sampled_from([",", ""])) if last else ","
        end = "\n" if form == "lines" or beside or last else draw(st.sampled_from(["\n", " "]))
        text += f"{above if text.endswith(chr(10)) else ''}    {each}{comma}{beside}{end}"
    return text + draw(st.sampled_from(["", "    # the end\n"]))


@st.composite
def parts(draw: st.DrawFn) -> str:
    number = draw(st.integers(0, 99))
    kind = draw(st.sampled_from(["job", "cron", "def", "constant", "call", "comment", "import"]))
    above = draw(st.sampled_from(["", f"# about {number}\n"]))
    if kind in ("job", "cron"):
        other = draw(st.sampled_from(["", f"@h{draw(st.integers(0, 9))}\n"]))
        return f"{above}{other}@jobs.{kind}({draw(calls())})\ndef j{number}() -> None: ...\n"
    return {
        "def": f"{above}def h{number}():\n    return {number}  # inside\n",
        "constant": f"{above}c{number} = {number}  # beside\n",
        "call": f"{above}h{number}()\n",
        "comment": f"\n# alone {number}\n\n",
        "import": f"{above}import m{number}\n",
    }[kind]


def program(text: str) -> list[str]:
    """The statements, without the order of keyword arguments, and cron specs spaced."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for keyword in [each for each in node.keywords if each.arg == "spec"]:
                node.keywords.remove(keyword)
                node.args.insert(0, keyword.value)
            node.keywords.sort(key=lambda each: each.arg or "")
        if isinstance(node, ast.Constant) and node.value == "0  3 * *  *":
            node.value = "0 3 * * *"
    return sorted(ast.dump(node) for node in tree.body)


def comments(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sorted(token.string for token in tokens if token.type == tokenize.COMMENT)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(parts(), max_size=7), st.sampled_from(["\n", "\n\n\n", ""]))
def test_the_same_program(pieces: list[str], gap: str) -> None:
    text = HEAD + gap.join(pieces)
    path = Path(__file__).with_name("job.py")
    once = format_source(text, path)
    assert format_source(once, path) == once
    assert program(once) == program(text)
    assert comments(once) == comments(text)
