/** ComputeSDK's provider: what its users call, through its own interface. */
import assert from "node:assert/strict";
import { e2b } from "@computesdk/e2b";

const print = (text) => process.stdout.write(`${text}\n`);
const provider = e2b({});
const sandbox = await provider.sandbox.create({ timeout: 600_000 });
assert.equal((await sandbox.runCommand("printenv KEY", { env: { KEY: "value" } })).stdout, "value\n");
assert.equal((await sandbox.runCommand("pwd", { cwd: "/tmp" })).stdout, "/tmp\n");
assert.equal((await sandbox.runCommand("exit 4")).exitCode, 4);
print("commands");

const { filesystem } = sandbox;
await filesystem.mkdir("/tmp/made");
await filesystem.writeFile("/tmp/made/file", "content");
assert.equal(await filesystem.readFile("/tmp/made/file"), "content");
assert.deepEqual(
  (await filesystem.readdir("/tmp/made")).map(({ name }) => name),
  ["file"],
);
await filesystem.remove("/tmp/made");
assert.equal(await filesystem.exists("/tmp/made/file"), false);
print("files");

assert.match(await sandbox.getUrl({ port: 3000 }), new RegExp(`^https://3000-${sandbox.sandboxId}\\.`));
assert.equal((await provider.sandbox.getById(sandbox.sandboxId)).sandboxId, sandbox.sandboxId);
assert((await provider.sandbox.list()).some(({ sandboxId }) => sandboxId === sandbox.sandboxId));
print("sandboxes");

const made = await provider.snapshot.create(sandbox.sandboxId, { name: "provider" });
const other = await provider.sandbox.create({ snapshotId: made.id, timeout: 300_000 });
await provider.sandbox.destroy(other.sandboxId);
await provider.sandbox.destroy(sandbox.sandboxId);
assert.equal(await provider.sandbox.getById(sandbox.sandboxId), null);
print("snapshot");
process.exit(0);
