"""The rest of the Python SDK, which the story leaves out: pages, private ports, limits of the network, a pause at the deadline,
attributes and compressed files, and errors by their types. Prints the name of each step that held."""

import http.client
import inspect
import os
import time
import urllib.parse
import urllib.request

from e2b import (
    AuthenticationException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxQuery,
)

BASE = urllib.parse.urlsplit(os.environ["E2B_SANDBOX_URL"])
METADATA = {"program": f"control {os.getpid()}"}


def raised(kind, function, *args, **options):
    try:
        function(*args, **options)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def until(what, function):
    """The first true value of the function, which reads a state that sends no event."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        value = function()
        if value:
            return value
        time.sleep(0.2)
    raise AssertionError(f"waited too long: {what}")


def pages(first, second):
    listed = Sandbox.list(query=SandboxQuery(metadata=METADATA), limit=1)
    items = []
    while listed.has_next:
        page = listed.next_items()
        assert len(page) <= 1, page
        items += [item.sandbox_id for item in page]
    assert items == [second.sandbox_id, first.sandbox_id], items


def private_port(_, private):
    private.commands.run("python3 -m http.server 8000 --bind 127.0.0.1", background=True, timeout=0)
    host = private.get_host(8000)

    def status(**headers):
        connection = http.client.HTTPConnection(BASE.hostname, BASE.port)
        connection.request("GET", "/", headers={"Host": host, **headers})
        return connection.getresponse().status

    token = {"e2b-traffic-access-token": private.traffic_access_token}
    until("the server in the sandbox", lambda: status(**token) == 200)
    assert status() == 403


def network(sandbox, _):
    if hasattr(sandbox, "update_network"):
        sandbox.update_network({"allow_internet_access": False})
        sandbox.update_network({})
        error = raised(SandboxException, sandbox.update_network, {"allow_out": ["beyond.example"]})
        assert "beyond.example" in str(error), error


def stdin(sandbox, _):
    if hasattr(sandbox.commands, "close_stdin"):
        handle = sandbox.commands.run("wc -c", background=True, stdin=True)
        sandbox.commands.send_stdin(handle.pid, "12345")
        sandbox.commands.close_stdin(handle.pid)
        assert handle.wait().stdout == "5\n"


def attributes(sandbox, _):
    if "metadata" in inspect.signature(sandbox.files.write).parameters:
        sandbox.files.write("described", "1", metadata={"origin": "control"})
        assert sandbox.files.get_info("described").metadata == {"origin": "control"}


def compressed(sandbox, _):
    text = "line\n" * 100_000
    sandbox.files.write("long", text, gzip=True)
    assert sandbox.files.read("long", gzip=True) == text
    sandbox.files.write("streamed", text.encode(), use_octet_stream=True)
    assert sandbox.files.get_info("streamed").size == len(text)


def upload_link(sandbox, _):
    head = '--part\r\nContent-Disposition: form-data; name="file"; filename="linked"\r\n\r\n'
    request = urllib.request.Request(
        sandbox.upload_url("linked", use_signature_expiration=60),
        data=f"{head}by address\r\n--part--\r\n".encode(),
        headers={"Content-Type": "multipart/form-data; boundary=part"},
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200
    assert sandbox.files.read("linked") == "by address"


def repository(sandbox, _):
    sandbox.git.init("repository")
    sandbox.files.write("repository/file", "1")
    assert [status.name for status in sandbox.git.status("repository").file_status] == ["file"]


def errors(sandbox, _):
    missing = "0" * 32
    raised(NotFoundException, Sandbox.connect, missing)
    raised(NotFoundException, Sandbox.get_info, missing)
    raised(NotFoundException, sandbox.files.list, "missing")
    raised(SandboxException, Sandbox.create, "no-such-template")
    raised(InvalidArgumentException, sandbox.files.read, "/etc")
    raised(InvalidArgumentException, sandbox.files.write, "/etc", "1")
    raised(InvalidArgumentException, sandbox.files.make_dir, "/etc/passwd")
    raised(InvalidArgumentException, sandbox.commands.run, "true", cwd="/missing")
    raised(AuthenticationException, sandbox.commands.run, "true", user="missing")
    wrong = "e2b_" + "0" * 40
    raised(AuthenticationException, Sandbox.create, api_key=wrong)


def deadline(sandbox, _):
    sandbox.files.write("kept", "over the deadline")
    sandbox.set_timeout(1)
    until("the pause at the deadline", lambda: sandbox.get_info().state.value == "paused")
    assert Sandbox.connect(sandbox.sandbox_id, timeout=300).files.read("kept") == "over the deadline"


def main():
    first = Sandbox.create(timeout=600, metadata=METADATA, lifecycle={"on_timeout": "pause"})
    second = Sandbox.create(timeout=600, metadata=METADATA, network={"allow_public_traffic": False})
    steps = [pages, private_port, network, stdin, attributes, compressed, upload_link, repository, errors, deadline]
    for step in steps:
        step(first, second)
        print(step.__name__, flush=True)
    for sandbox in (first, second):
        assert sandbox.kill()
    print("end", flush=True)


main()
