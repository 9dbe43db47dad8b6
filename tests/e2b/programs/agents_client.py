"""The sandbox client of OpenAI's Agents SDK: a workspace from a manifest, commands, files, a terminal, and a session that is
resumed from its serialized state."""

import asyncio
import io
from pathlib import Path

from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.sandbox import Manifest
from agents.sandbox.entries import File
from e2b import AsyncSandbox


async def exec_text(session, *command):
    result = await session.exec(*command)
    assert result.exit_code == 0, result
    return result.stdout.decode()


async def main():
    client = E2BSandboxClient()
    manifest = Manifest(entries={"notes.txt": File(content=b"from the manifest\n")})
    options = E2BSandboxClientOptions("e2b", template="base", timeout=900, pause_on_exit=True, metadata={"by": "agents"})
    session = await client.create(manifest=manifest, options=options)
    async with session:
        root = Path(session.state.manifest.root)
        assert await exec_text(session, "cat notes.txt") == "from the manifest\n"
        await session.write(root / "made.bin", io.BytesIO(bytes(range(256))))
        assert (await session.read(root / "made.bin")).read() == bytes(range(256))
        assert (await session.exec("exit 7")).exit_code == 7
        print("workspace", flush=True)
        update = await session.pty_exec_start("cat", tty=True, yield_time_s=1)
        update = await session.pty_write_stdin(session_id=update.process_id, chars="typed\n", yield_time_s=5)
        assert b"typed" in update.output, update
        await session.pty_terminate_all()
        print("terminal", flush=True)
        state = client.serialize_session_state(session.state)
    resumed = await client.resume(client.deserialize_session_state(state))
    async with resumed:
        assert resumed.state.sandbox_id == session.state.sandbox_id
        assert await exec_text(resumed, "cat notes.txt") == "from the manifest\n"
        print("resumed", flush=True)
    await AsyncSandbox.kill(resumed.state.sandbox_id)


asyncio.run(main())
