/**
 * The rest of the JavaScript SDK, which the story leaves out: pages, private ports, limits of the network, forks, a pause at
 * the deadline, attributes and compressed files, errors by their types, and a template. Prints the name of each step that held.
 */
import assert from "node:assert/strict";
import { once } from "node:events";
import { request } from "node:http";
import {
  AuthenticationError,
  BuildError,
  InvalidArgumentError,
  NotFoundError,
  Sandbox,
  SandboxError,
  Template,
} from "e2b";

const print = (text) => process.stdout.write(`${text}\n`);
const METADATA = { program: `control ${process.pid}` };
const TEMPLATE = "ring-template-of-javascript";
const base = new URL(process.env.E2B_SANDBOX_URL);

/** Waits until a function returns true; it reads a state that sends no event. */
async function until(what, read) {
  const end = Date.now() + 60_000;
  while (Date.now() < end) {
    if (await read()) return;
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
  async pages(first, second) {
    const listed = Sandbox.list({ query: { metadata: METADATA }, limit: 1 });
    const items = [];
    while (listed.hasNext) items.push(...(await listed.nextItems()).map(({ sandboxId }) => sandboxId));
    assert.deepEqual(items, [second.sandboxId, first.sandboxId]);
  },

  async privatePort(_, guarded) {
    await guarded.commands.run("python3 -m http.server 8000", { background: true, timeoutMs: 0 });
    const host = guarded.getHost(8000);
    const status = async (headers) => {
      const sent = request({ host: base.hostname, port: base.port, headers: { host, ...headers } }).end();
      const [answer] = await once(sent, "response");
      answer.resume();
      return answer.statusCode;
    };
    const token = { "e2b-traffic-access-token": guarded.trafficAccessToken };
    await until("the server in the sandbox", async () => (await status(token)) === 200);
    assert.equal(await status({}), 403);
  },

  async network(sandbox) {
    await sandbox.updateNetwork({ allowInternetAccess: false });
    await sandbox.updateNetwork({});
    const error = await raised(SandboxError, sandbox.updateNetwork({ allowOut: ["beyond.example"] }));
    assert.match(error.message, /beyond\.example/);
  },

  async stdin(sandbox) {
    const handle = await sandbox.commands.run("wc -c", { background: true, stdin: true });
    await sandbox.commands.sendStdin(handle.pid, "12345");
    await sandbox.commands.closeStdin(handle.pid);
    assert.equal((await handle.wait()).stdout, "5\n");
  },

  async attributes(sandbox) {
    await sandbox.files.write("described", "1", { metadata: { origin: "control" } });
    assert.deepEqual((await sandbox.files.getInfo("described")).metadata, { origin: "control" });
  },

  async compressed(sandbox) {
    const text = "line\n".repeat(100_000);
    await sandbox.files.write("long", text, { gzip: true });
    assert.equal(await sandbox.files.read("long", { gzip: true }), text);
    await sandbox.files.write("streamed", new Blob([text]).stream(), { useOctetStream: true });
    assert.equal((await sandbox.files.getInfo("streamed")).size, text.length);
  },

  async errors(sandbox) {
    const missing = "0".repeat(32);
    await raised(NotFoundError, Sandbox.connect(missing));
    await raised(NotFoundError, sandbox.files.list("missing"));
    await raised(SandboxError, Sandbox.create("no-such-template"));
    await raised(InvalidArgumentError, sandbox.files.read("/etc"));
    await raised(InvalidArgumentError, sandbox.files.makeDir("/etc/passwd"));
    await raised(InvalidArgumentError, sandbox.commands.run("true", { cwd: "/missing" }));
    await raised(AuthenticationError, sandbox.commands.run("true", { user: "missing" }));
    await raised(AuthenticationError, Sandbox.create({ apiKey: `e2b_${"0".repeat(40)}` }));
  },

  async fork(sandbox) {
    await sandbox.files.write("kept", "in the fork");
    const forks = await sandbox.fork({ count: 2, timeoutMs: 300_000 });
    for (const made of forks) assert.equal(await made.files.read("kept"), "in the fork");
    for (const made of forks) assert(await made.kill());
  },

  async deadline(sandbox) {
    await sandbox.setTimeout(1000);
    await until("the pause at the deadline", async () => (await sandbox.getInfo()).state === "paused");
    const resumed = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 300_000 });
    assert.equal(await resumed.files.read("kept"), "in the fork");
  },

  async template() {
    const made = () => Template().fromTemplate("base").setEnvs({ MODE: "tested" }).runCmd("date +%s%N > built");
    const options = { cpuCount: 1, memoryMB: 512 };
    const builtAt = async () => {
      const sandbox = await Sandbox.create(TEMPLATE, { timeoutMs: 300_000 });
      const { stdout } = await sandbox.commands.run("echo $MODE; cat built");
      await sandbox.kill();
      return stdout;
    };
    const lines = [];
    await Template.build(made(), TEMPLATE, { ...options, onBuildLogs: ({ message }) => lines.push(message) });
    assert(lines.some((line) => line.includes("date")));
    const first = await builtAt();
    assert.match(first, /^tested\n\d+\n$/);
    await Template.build(made().runCmd("true"), TEMPLATE, options);
    assert.equal(await builtAt(), first);
    const failing = Template().fromTemplate("base").runCmd("exit 9");
    assert.match((await raised(BuildError, Template.build(failing, TEMPLATE, options))).message, /exit status 9/);
    await Template.assignTags(`${TEMPLATE}:default`, ["stable"]);
    assert((await Template.getTags(TEMPLATE)).some(({ tag }) => tag === "stable"));
    await Template.removeTags(TEMPLATE, ["stable"]);
    assert(await Template.exists(TEMPLATE));
  },
};

const common = { timeoutMs: 600_000, metadata: METADATA };
const first = await Sandbox.create({ ...common, lifecycle: { onTimeout: "pause" } });
const second = await Sandbox.create({ ...common, network: { allowPublicTraffic: false } });
for (const [name, step] of Object.entries(steps)) {
  await step(first, second);
  print(name);
}
for (const sandbox of [first, second]) assert(await sandbox.kill());
print("end");
process.exit(0);
