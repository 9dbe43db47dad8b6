"""The code interpreter by its Python client, with a template that has a server in place of the kernel's."""

import pathlib

from e2b import Template
from e2b_code_interpreter import Sandbox

PROGRAMS = pathlib.Path(__file__).parent


def main():
    template = (
        Template(file_context_path=PROGRAMS)
        .from_template("base")
        .copy("kernel.py", "kernel.py")
        .set_start_cmd("python3 kernel.py", "curl -sf localhost:49999/health")
    )
    Template.build(template, Sandbox.default_template, cpu_count=1, memory_mb=512)
    with Sandbox.create(timeout=300) as sandbox:
        lines = []
        execution = sandbox.run_code("answer = 42\nprint('seen')\nanswer", on_stdout=lambda message: lines.append(message.line))
        assert "".join(lines) == "seen\n" and execution.text == "42", execution
        assert sandbox.run_code("answer / 0").error.name == "ZeroDivisionError"
        print("code", flush=True)

        sandbox.files.write("numbers.txt", "1\n2\n")
        assert sandbox.commands.run("wc -l < numbers.txt").stdout.strip() == "2"
        assert sandbox.run_code("len(open('/home/user/numbers.txt').readlines())").text == "2"
        print("files and commands", flush=True)

        sandbox.pause()
        resumed = Sandbox.connect(sandbox.sandbox_id)
        assert resumed.run_code("6 * 7").text == "42"
        print("resumed", flush=True)


main()
