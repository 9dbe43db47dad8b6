"""What a user of the Python SDK does with a sandbox, step by step. Works with every tested release; prints the name of each step
that held. Arguments: the steps to leave out."""

import http.client
import os
import sys
import time
import urllib.parse
import urllib.request

from e2b import CommandExitException, NotFoundException, PtySize, Sandbox, SandboxQuery, TimeoutException

BASE = urllib.parse.urlsplit(os.environ["E2B_SANDBOX_URL"])
METADATA = {"purpose": "story, 1 & 2 = 3%", "process": str(os.getpid())}


def raised(kind, function):
    """The error of this kind that the function raises."""
    try:
        function()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def until(what, function):
    """The first true value of the function, which reads a state that sends no event."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        value = function()
        if value:
            return value
        time.sleep(0.2)
    raise AssertionError(f"waited too long: {what}")


def commands(sandbox):
    run = sandbox.commands.run
    assert run('echo "$GREETING $USER $HOME $PWD"').stdout == "hello user /home/user /home/user\n"
    assert run("id -u; id -un; pwd", user="root", cwd="/srv").stdout == "0\nroot\n/srv\n"
    assert run('echo "$GREETING $E2B_SANDBOX"', envs={"GREETING": "other"}).stdout == "other true\n"
    ended = raised(CommandExitException, lambda: run("echo out; echo no >&2; exit 3"))
    assert (ended.exit_code, ended.stdout, ended.stderr) == (3, "out\n", "no\n"), ended
    raised(TimeoutException, lambda: run("sleep 60", timeout=1))
    lines = []
    run("printf 'ä\\nb\\n'", on_stdout=lines.append)
    assert "".join(lines) == "ä\nb\n", lines


def background(sandbox):
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    assert handle.pid in [process.pid for process in sandbox.commands.list()]
    sandbox.commands.send_stdin(handle.pid, "typed\n")
    for stdout, _, _ in handle:
        if stdout is not None:
            assert stdout == "typed\n", stdout
            break
    again = sandbox.commands.connect(handle.pid)
    assert sandbox.commands.kill(handle.pid)
    raised(CommandExitException, again.wait)
    until("the end of cat", lambda: handle.pid not in [process.pid for process in sandbox.commands.list()])
    assert not sandbox.commands.kill(handle.pid)


def files(sandbox):
    content = os.urandom(3_000_000)
    written = sandbox.files.write("dir/sub/bytes", content)
    assert written.path == "/home/user/dir/sub/bytes", written
    assert bytes(sandbox.files.read("dir/sub/bytes", format="bytes")) == content
    assert b"".join(sandbox.files.read("~/dir/sub/bytes", format="stream")) == content
    sandbox.files.write_files([{"path": "dir/a", "data": "grüße"}, {"path": "/home/user/dir/b", "data": b"2"}])
    assert sandbox.files.read("dir/a") == "grüße"
    assert [entry.path for entry in sandbox.files.list("dir", depth=2)] == [
        f"/home/user/dir/{name}" for name in ("a", "b", "sub", "sub/bytes")
    ]
    info = sandbox.files.get_info("dir/a")
    assert (info.owner, info.permissions, info.size) == ("user", "-rw-r--r--", len("grüße".encode())), info
    assert sandbox.files.rename("dir/a", "dir/c").path == "/home/user/dir/c"
    assert not sandbox.files.exists("dir/a")
    assert sandbox.files.make_dir("dir/new") and not sandbox.files.make_dir("dir/new")
    raised(NotFoundException, lambda: sandbox.files.read("dir/a"))
    sandbox.files.remove("dir/sub")
    assert not sandbox.files.exists("dir/sub/bytes")
    assert len(sandbox.files.read("/proc/sys/kernel/random/boot_id")) == 37


def links(sandbox):
    """Addresses that need no header: the signature in them finds the sandbox."""
    sandbox.files.write("linked", "by address")
    with urllib.request.urlopen(sandbox.download_url("linked", use_signature_expiration=60)) as answer:
        assert answer.read() == b"by address"
    expired = sandbox.download_url("linked", use_signature_expiration=-60)
    error = raised(urllib.error.HTTPError, lambda: urllib.request.urlopen(expired))
    assert error.code == 401, error


def watch(sandbox):
    sandbox.files.make_dir("watched")
    handle = sandbox.files.watch_dir("watched", recursive=True)
    sandbox.files.write("watched/new", "1")
    sandbox.files.rename("watched/new", "watched/moved")
    sandbox.files.remove("watched/moved")
    seen = [(event.name, event.type.value) for event in handle.get_new_events()]
    for event in [("new", "create"), ("new", "write"), ("new", "rename"), ("moved", "create"), ("moved", "remove")]:
        assert event in seen, (event, seen)
    handle.stop()


def terminal(sandbox):
    output = []
    pty = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=60)
    sandbox.pty.resize(pty.pid, PtySize(rows=30, cols=100))
    sandbox.pty.send_stdin(pty.pid, b"stty size; tty; exit 4\n")
    ended = raised(CommandExitException, lambda: pty.wait(on_pty=output.append))
    text = b"".join(output)
    assert ended.exit_code == 4 and b"30 100" in text and b"/dev/pts/" in text, text


def control(sandbox):
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id and info.metadata == METADATA and info.name == "base", info
    sandbox.set_timeout(1200)
    left = sandbox.get_info().end_at - info.started_at
    assert 1100 < left.total_seconds() < 1500, left
    listed = Sandbox.list(query=SandboxQuery(metadata=METADATA))
    assert [found.sandbox_id for found in listed.next_items()] == [sandbox.sandbox_id] and not listed.has_next
    assert Sandbox.list(query=SandboxQuery(metadata={"purpose": "other"})).next_items() == []
    sample = until("a sample of the load", sandbox.get_metrics)[0]
    assert sample.cpu_count >= 1 and 0 < sample.mem_used < sample.mem_total and 0 < sample.disk_used < sample.disk_total


def ports(sandbox):
    sandbox.files.write("site/index.html", "served")
    sandbox.commands.run("python3 -m http.server 8000 --bind 127.0.0.1 --directory site", background=True, timeout=0)
    host = sandbox.get_host(8000)
    assert host.startswith(f"8000-{sandbox.sandbox_id}."), host

    def answer():
        connection = http.client.HTTPConnection(BASE.hostname, BASE.port)
        connection.request("GET", "/", headers={"Host": host})
        response = connection.getresponse()
        return (response.status, response.read())

    until("the server in the sandbox", lambda: answer() == (200, b"served"))
    sandbox.commands.run("nohup python3 -m http.server 8001 --directory site >/dev/null 2>&1 &")
    read = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8001').read().decode())"
    ask = f'i=0; until python3 -c "{read}" 2>/dev/null; do i=$((i+1)); [ $i -lt 60 ] || exit 1; sleep 0.5; done'
    assert sandbox.commands.run(ask, timeout=120).stdout == "served\n"


def pause(sandbox):
    sandbox.files.write("kept", "over the pause")
    sandbox.pause()
    assert str(sandbox.get_info().state.value) == "paused"
    assert not sandbox.is_running()
    resumed = Sandbox.connect(sandbox.sandbox_id, timeout=900)
    assert resumed.sandbox_id == sandbox.sandbox_id
    assert resumed.files.read("kept") == "over the pause"
    assert sandbox.commands.run("echo $GREETING").stdout == "hello\n"


def snapshot(sandbox):
    sandbox.files.write("kept", "in the snapshot")
    made = sandbox.create_snapshot()
    sandbox.files.write("kept", "after the snapshot")
    with Sandbox.create(made.snapshot_id, timeout=300) as other:
        assert other.files.read("kept") == "in the snapshot"
    assert made.snapshot_id in [found.snapshot_id for found in sandbox.list_snapshots().next_items()]
    assert Sandbox.delete_snapshot(made.snapshot_id)
    assert not Sandbox.delete_snapshot(made.snapshot_id)


def fork(sandbox):
    sandbox.files.write("kept", "in the fork")
    forks = sandbox.fork(count=2, timeout=300)
    try:
        assert len({sandbox.sandbox_id, *(made.sandbox_id for made in forks)}) == 3
        for number, made in enumerate(forks):
            made.files.write("own", str(number))
        assert [made.files.read("kept") + made.files.read("own") for made in forks] == ["in the fork0", "in the fork1"]
        assert not sandbox.files.exists("own")
    finally:
        for made in forks:
            made.kill()


def offline():
    with Sandbox.create(timeout=300, allow_internet_access=False) as sandbox:
        ended = raised(CommandExitException, lambda: sandbox.commands.run("curl -sS -m 10 http://192.0.2.1/"))
        assert ended.exit_code != 0


def end(sandbox):
    assert sandbox.kill()
    assert not sandbox.kill()
    assert not sandbox.is_running()
    raised(Exception, lambda: sandbox.commands.run("true"))
    assert Sandbox.list(query=SandboxQuery(metadata=METADATA)).next_items() == []


def main():
    left_out = set(sys.argv[1:])
    if not hasattr(Sandbox, "fork"):
        left_out.add("fork")
    sandbox = Sandbox.create(timeout=600, metadata=METADATA, envs={"GREETING": "hello"})
    print("create", flush=True)
    for step in [commands, background, files, links, watch, terminal, control, ports, pause, snapshot, fork, offline, end]:
        if step.__name__ in left_out:
            continue
        step(*([] if step is offline else [sandbox]))
        print(step.__name__, flush=True)


main()
