"""Writes the script that makes an extension of a plain install: every object becomes a member."""

import re

# No function is overloaded, so a function's name is enough.
CREATED = re.compile(
    r"^create (schema|table|sequence|view|function) (\w+(?:\.\w+)?)", re.MULTILINE | re.IGNORECASE
)
IDENTITY = re.compile(r"^create table (\S+) \((.*?)^\)", re.MULTILINE | re.DOTALL)
IDENTITY_COLUMN = re.compile(r"^\s+(\w+) \w+ generated always as identity", re.MULTILINE)

HEAD = """\
do $$
declare
    v_installed text := (select i.version from dever.installation as i);
begin
    if v_installed is distinct from '{version}' then
        raise exception using
            errcode = 'DV009',
            message = pg_catalog.format(
                'this database has Dever SQL %s as a plain install, the extension is {version}',
                v_installed
            ),
            hint = 'drop extension dever, which is empty still, and bring the plain install to'
                || ' {version}: deploy.sql, or dever sql upgrade';
    end if;
end
$$;

"""

# What is granted now counts as the extension's own from here on.
GRANTS = """
do $$
begin
    if exists (
        select
        from pg_catalog.pg_init_privs as i
        inner join pg_catalog.pg_depend as d
            on d.classid = i.classoid and d.objid = i.objoid and d.deptype = 'e'
        inner join pg_catalog.pg_extension as e
            on d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass and d.refobjid = e.oid
        cross join lateral pg_catalog.aclexplode(i.initprivs) as a
        where e.extname = 'dever' and a.grantee <> a.grantor
    ) then
        raise warning using
            message = 'the grants to other roles are kept, but pg_dump will leave them out',
            hint = 'adopt with adopt.sql, or give the grants again after a restore';
    end if;
end
$$;
"""


def members(install_script: str) -> list[tuple[str, str]]:
    """(kind, name) of everything that the install script creates and an extension owns."""
    found = [(kind, name) for kind, name in CREATED.findall(install_script)]
    for table, columns in IDENTITY.findall(install_script):
        found += [("sequence", f"{table}_{c}_seq") for c in IDENTITY_COLUMN.findall(columns)]
    return found


def configuration(install_script: str) -> str:
    """The install script's block that tells pg_dump which tables hold user data."""
    start = install_script.rindex("do $$", 0, install_script.index("pg_extension_config_dump"))
    return install_script[start : install_script.index("$$;", start)] + "$$;\n"


def adoption_script(version: str, install_script: str) -> str:
    """What `alter extension dever update` runs on a plain install of the version."""
    adds = "".join(
        f"alter extension dever add {kind} {name};\n" for kind, name in members(install_script)
    )
    return HEAD.format(version=version) + adds + "\n" + configuration(install_script) + GRANTS
