/** A user of the JavaScript SDK works with a sandbox, step by step. The program prints the name of each step that held. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { request } from "node:http";
import { CommandExitError, FileNotFoundError, FilesystemEventType, Sandbox, TimeoutError } from "e2b";

const print = (text) => process.stdout.write(`${text}\n`);
const METADATA = { purpose: "story, 1 & 2 = 3%", process: String(process.pid) };
const base = new URL(process.env.E2B_SANDBOX_URL);

/** The first truthy result of a function that reads a state which sends no event. */
async function until(what, read) {
  const end = Date.now() + 30_000;
  while (Date.now() < end) {
    const value = await read();
    if (value) return value;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  throw new Error(`waited too long: ${what}`);
}

async function raised(kind, promise) {
  try {
    await promise;
  } catch (error) {
    assert(error instanceof kind, error);
    return error;
  }
  throw new Error(`no ${kind.name}`);
}

const steps = {
  async commands(sandbox) {
    const { commands } = sandbox;
    assert.equal((await commands.run('echo "$GREETING $USER $PWD"')).stdout, "hello user /home/user\n");
    assert.equal((await commands.run("id -u; pwd", { user: "root", cwd: "/srv" })).stdout, "0\n/srv\n");
    const ended = await raised(CommandExitError, commands.run("echo no >&2; exit 3"));
    assert.deepEqual([ended.exitCode, ended.stderr], [3, "no\n"]);
    await raised(TimeoutError, commands.run("sleep 60", { timeoutMs: 1000 }));
    const cat = await commands.run("cat", { background: true, stdin: true });
    await commands.sendStdin(cat.pid, "typed\n");
    await until("the echo of cat", () => cat.stdout === "typed\n");
    assert((await commands.list()).some(({ pid }) => pid === cat.pid));
    assert(await cat.kill());
    await raised(CommandExitError, cat.wait());
  },

  async files(sandbox) {
    const { files } = sandbox;
    const content = crypto.getRandomValues(new Uint8Array(60_000));
    await files.write("dir/bytes", content.buffer);
    assert.deepEqual(await files.read("dir/bytes", { format: "bytes" }), content);
    await files.write([
      { path: "dir/a", data: "grüße" },
      { path: "dir/b", data: new Blob(["2"]) },
    ]);
    assert.equal(await files.read("/home/user/dir/a"), "grüße");
    const streamed = await new Response(await files.read("dir/a", { format: "stream" })).text();
    assert.equal(streamed, "grüße");
    assert.deepEqual(
      (await files.list("dir")).map(({ name }) => name),
      ["a", "b", "bytes"],
    );
    await files.rename("dir/a", "dir/c");
    assert.equal(await files.exists("dir/a"), false);
    await raised(FileNotFoundError, files.read("dir/a"));
    await files.remove("dir");
    assert.equal(await files.exists("dir"), false);
  },

  async links(sandbox) {
    const form = new FormData();
    form.append("file", new Blob(["by address"]), "linked");
    const sent = await fetch(await sandbox.uploadUrl("linked", { useSignatureExpiration: 60_000 }), {
      method: "POST",
      body: form,
    });
    assert.equal(sent.status, 200);
    assert.equal(await (await fetch(await sandbox.downloadUrl("linked"))).text(), "by address");
    const foreign = (await sandbox.downloadUrl("linked")).replace(/signature=[^&]*/, "signature=v1_none");
    assert.equal((await fetch(foreign)).status, 401);
  },

  async watch(sandbox) {
    await sandbox.files.makeDir("watched");
    const events = [];
    const handle = await sandbox.files.watchDir("watched", (event) => events.push(event), { recursive: true });
    await sandbox.files.write("watched/sub/new", "1");
    await until("an event of the directory", () => events.some(({ type }) => type === FilesystemEventType.CREATE));
    await handle.stop();
  },

  async terminal(sandbox) {
    let output = "";
    const onData = (bytes) => {
      output += new TextDecoder().decode(bytes);
    };
    const pty = await sandbox.pty.create({ cols: 80, rows: 24, onData, timeoutMs: 60_000 });
    await sandbox.pty.resize(pty.pid, { cols: 100, rows: 30 });
    await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode("stty size; exit\n"));
    await pty.wait();
    assert.match(output, /30 100/);
  },

  async control(sandbox) {
    const info = await sandbox.getInfo();
    assert.deepEqual([info.sandboxId, info.metadata, info.name], [sandbox.sandboxId, METADATA, "base"]);
    await sandbox.setTimeout(1_200_000);
    const left = (await sandbox.getInfo()).endAt - info.startedAt;
    assert(left > 1_100_000 && left < 1_500_000, String(left));
    const page = Sandbox.list({ query: { metadata: METADATA } });
    assert.deepEqual(
      (await page.nextItems()).map(({ sandboxId }) => sandboxId),
      [sandbox.sandboxId],
    );
    assert.equal(page.hasNext, false);
    const [sample] = await until("a sample of the load", async () => {
      const samples = await sandbox.getMetrics();
      return samples.length > 0 && samples;
    });
    assert(sample.memUsed > 0 && sample.memTotal > sample.memUsed);
  },

  async ports(sandbox) {
    await sandbox.files.write("site/index.html", "served");
    await sandbox.commands.run("python3 -m http.server 8000 --directory site", { background: true, timeoutMs: 0 });
    const host = sandbox.getHost(8000);
    await until("the server in the sandbox", async () => {
      const sent = request({ host: base.hostname, port: base.port, headers: { host } }).end();
      const [answer] = await once(sent, "response");
      return (await new Response(answer).text()) === "served";
    });
  },

  async pause(sandbox) {
    await sandbox.files.write("kept", "over the pause");
    await sandbox.pause();
    assert.equal((await sandbox.getInfo()).state, "paused");
    const resumed = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 900_000 });
    assert.equal(await resumed.files.read("kept"), "over the pause");
    assert.equal((await sandbox.commands.run("echo $GREETING")).stdout, "hello\n");
  },

  async snapshot(sandbox) {
    const { snapshotId } = await sandbox.createSnapshot();
    const other = await Sandbox.create(snapshotId, { timeoutMs: 300_000 });
    assert.equal(await other.files.read("kept"), "over the pause");
    await other.kill();
    assert(await Sandbox.deleteSnapshot(snapshotId));
  },

  async end(sandbox) {
    assert(await sandbox.kill());
    assert.equal(await sandbox.isRunning(), false);
    assert.equal(await Sandbox.kill(sandbox.sandboxId), false);
  },
};

const sandbox = await Sandbox.create({ timeoutMs: 600_000, metadata: METADATA, envs: { GREETING: "hello" } });
print("create");
const leftOut = new Set(process.argv.slice(2));
for (const [name, step] of Object.entries(steps)) {
  if (leftOut.has(name)) continue;
  await step(sandbox);
  print(name);
}
process.exit(0);
