"""The asynchronous flavour of the Python SDK: many streams of one sandbox at once, callbacks, and sandboxes side by side."""

import asyncio

from e2b import AsyncSandbox, CommandExitException, FilesystemEventType, PtySize

STREAMS = 30


async def many_streams(sandbox):
    """All commands run at the same time: each waits until the last one has begun."""
    await sandbox.commands.run("mkdir -p begun")
    wait = f"touch begun/$N; while [ $(ls begun | wc -l) -lt {STREAMS} ]; do sleep 0.2; done; echo $N"
    runs = [sandbox.commands.run(wait, envs={"N": str(number)}, timeout=300) for number in range(STREAMS)]
    results = await asyncio.gather(*runs)
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(STREAMS)]


async def watch(sandbox):
    events: asyncio.Queue = asyncio.Queue()
    await sandbox.files.make_dir("watched")
    handle = await sandbox.files.watch_dir("watched", on_event=events.put_nowait)
    await sandbox.files.write("watched/new", "1")
    async with asyncio.timeout(30):
        kinds = [(await events.get()).type for _ in range(3)]
    assert kinds == [FilesystemEventType.CREATE, FilesystemEventType.CHMOD, FilesystemEventType.WRITE], kinds
    await handle.stop()


async def terminal(sandbox):
    output: list[bytes] = []
    pty = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=output.append, timeout=60)
    await sandbox.pty.send_stdin(pty.pid, b"echo $((40 + 2)); exit\n")
    assert (await pty.wait()).exit_code == 0
    assert b"42" in b"".join(output)


async def abandoned(sandbox):
    """A command whose client has left runs to its end, however much it writes."""
    handle = await sandbox.commands.run("head -c 5000000 /dev/zero; touch written", background=True)
    await handle.disconnect()
    async with asyncio.timeout(60):
        while not await sandbox.files.exists("written"):
            await asyncio.sleep(0.2)


async def ended(sandbox):
    """A sandbox that is killed ends the streams of its commands."""
    handle = await sandbox.commands.run("sleep 300", background=True, timeout=0)
    await sandbox.kill()
    try:
        await handle.wait()
    except CommandExitException:
        raise
    except Exception:
        return
    raise AssertionError("the command has a result")


async def main():
    async with asyncio.TaskGroup() as group:
        made = [group.create_task(AsyncSandbox.create(timeout=600)) for _ in range(2)]
    first, second = [task.result() for task in made]
    for step in [many_streams, watch, terminal, abandoned]:
        await step(first)
        print(step.__name__, flush=True)
    await ended(second)
    print("ended", flush=True)
    await first.kill()


asyncio.run(main())
