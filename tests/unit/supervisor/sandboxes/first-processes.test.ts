import { expect, test } from "bun:test";
import type { SandboxRow } from "../../../../src/db/sandboxes/rows.ts";
import { ApiError } from "../../../../src/domain/errors.ts";
import type { SandboxStart } from "../../../../src/domain/sandbox.ts";
import { checkProcess } from "../../../../src/domain/spawn.ts";
import { silentLog } from "../../../../src/log.ts";
import type { RunningInstances } from "../../../../src/supervisor/instance/running-instances.ts";
import { FirstProcesses } from "../../../../src/supervisor/sandboxes/first-processes.ts";
import { operationsStore } from "../../../support/operations.ts";
import { ACCOUNT, BASE } from "../../../support/sandboxes/scene.ts";
import { until } from "../../../support/waiting.ts";

test("the log of a sandbox says why its first process did not start, but no failure of the host", async () => {
  await using store = await operationsStore(ACCOUNT, BASE);
  using db = store.db;
  const errors: unknown[] = [];
  const causes = [new ApiError("invalid_path", "no such directory"), new Error("ENOENT: /var/lib/coppice/x")];
  const instances = {
    exec: () => Promise.reject(causes.shift()),
    eventsOf: () => ({ append: (_spid: null, _type: string, data: { error: string }) => errors.push(data.error) }),
  } as unknown as RunningInstances;
  const first = new FirstProcesses({ db, instances, log: silentLog });
  const row = { id: "a", state: "running", operationId: "b", headId: BASE, boot: null } as unknown as SandboxRow;
  for (const count of [1, 2]) {
    first.add(row.id, { command: {}, timeoutMs: null } as SandboxStart);
    first.onChange({ row, from: "starting", reason: "machine" });
    await until("the failure is logged", () => errors.length === count);
  }
  expect(errors).toEqual(["no such directory", "the process could not be started"]);
});

test("each machine of a sandbox begins with its own process, with the variables of the sandbox", async () => {
  await using store = await operationsStore(ACCOUNT, BASE);
  using db = store.db;
  const started: unknown[] = [];
  const instances = {
    exec: async (id: string, { argv, env }: { argv: unknown; env: unknown }) => void started.push([id, argv, env]),
  } as unknown as RunningInstances;
  const first = new FirstProcesses({ db, instances, log: silentLog });
  const boot = checkProcess({ command: "serve", env: { PORT: "1" } });
  const row = { id: "a", headId: BASE, boot, env: { A: "b" } } as unknown as SandboxRow;
  const change = (from: "starting" | "resuming" | "running", state: "running" | "pausing", operationId: string) =>
    first.onChange({ row: { ...row, state, operationId } as SandboxRow, from, reason: "machine" });
  change("starting", "running", "one");
  change("running", "pausing", "one");
  change("resuming", "running", "two");
  const env = { A: "b", PORT: "1" };
  await until("both have begun", () => started.length === 2);
  expect(started).toEqual(["one", "two"].map((id) => [id, ["serve"], env]));
});
