"""Templates by the Python SDK: steps, files of the caller, the cache, errors that name a step, and tags."""

import pathlib
import tempfile

from e2b import Sandbox, Template
from e2b.exceptions import BuildException

NAME = "ring-template"


def context():
    """A directory with the files of a template."""
    root = pathlib.Path(tempfile.mkdtemp())
    (root / "app").mkdir()
    (root / "app" / "main.py").write_text("print('from the template')\n")
    (root / "app" / "link.py").symlink_to("main.py")
    return root


def template(root):
    return (
        Template(file_context_path=root)
        .from_template("base")
        .copy("app", "/srv/app/")
        .set_envs({"MODE": "tested"})
        .run_cmd("date +%s%N > /srv/built", user="root")
        .run_cmd("id -un > who")
        .set_workdir("/srv/app")
    )


def built(text, **options):
    lines = []
    info = Template.build(text, NAME, cpu_count=1, memory_mb=512, on_build_logs=lambda entry: lines.append(entry.message), **options)
    return info, lines


def main():
    root = context()
    _, lines = built(template(root))
    assert any("date" in line for line in lines), lines
    print("build", flush=True)
    with Sandbox.create(NAME, timeout=300) as sandbox:
        run = sandbox.commands.run("python3 link.py; echo $MODE; cat ~/who; cat /srv/built; pwd").stdout.split("\n")
        assert run[:3] == ["from the template", "tested", "user"] and run[4] == "/srv/app", run
        first = run[3]
    print("use", flush=True)

    built(template(root).run_cmd("true"))
    with Sandbox.create(NAME, timeout=300) as sandbox:
        assert sandbox.files.read("/srv/built").strip() == first
    print("cache", flush=True)

    try:
        built(Template().from_template("base").run_cmd("echo before").run_cmd("exit 9"))
    except BuildException as error:
        assert "exit status 9" in str(error), error
    else:
        raise AssertionError("the build has no error")
    assert Template.exists(NAME)
    print("failure", flush=True)

    Template.assign_tags(f"{NAME}:default", ["stable"])
    assert {tag.tag for tag in Template.get_tags(NAME)} >= {"default", "stable"}
    with Sandbox.create(f"{NAME}:stable", timeout=300) as sandbox:
        assert sandbox.files.read("/srv/built").strip() == first
    Template.remove_tags(NAME, ["stable"])
    assert "stable" not in {tag.tag for tag in Template.get_tags(NAME)}
    print("tags", flush=True)

    started = Template().from_template("base").set_start_cmd("python3 -m http.server 8000 --directory /srv", "curl -sf localhost:8000/")
    built(started)
    with Sandbox.create(NAME, timeout=300) as sandbox:
        assert sandbox.commands.run("curl -s localhost:8000/ | head -1").stdout.startswith("<!DOCTYPE")
    print("start command", flush=True)


main()
