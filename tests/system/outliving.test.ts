import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Appliance, killAll, text } from "../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../support/appliance/busybox-appliance.ts";
import { type Body, operationOf, running } from "../support/runs.ts";
import { pause, until } from "../support/waiting.ts";

setDefaultTimeout(180_000);

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let base: string;
beforeAll(async () => {
  ({ appliance, image: base } = owned.use(await BusyboxAppliance.start({ poolSize: 0 })));
});
afterAll(() => owned.disposeAsync());

interface Event {
  readonly id: number;
  readonly spid: number;
  readonly type: string;
  readonly data: Record<string, unknown>;
}

const eventsOf = async (path: string): Promise<Event[]> =>
  (await (await appliance.fetch(path, { headers: { accept: "application/json" } })).json()) as Event[];
const operationEvents = (id: string) => eventsOf(`/operations/${id}/events`);

function outputOf(events: readonly Event[], spid: number): string {
  const chunks = events.filter((event) => event.spid === spid && event.type === "stdout");
  return chunks.map(({ data }) => String(data["content"] ?? "")).join("");
}

async function killed(meanwhile: () => Promise<void> | void = () => undefined): Promise<void> {
  await appliance.down("SIGKILL");
  await meanwhile();
  await appliance.up();
}

const numbered = (count: number) => Array.from({ length: count }, (_, at) => `line ${at + 1}\n`).join("");
const printed = (id: string, least: number) =>
  until("it prints", async () => outputOf(await operationEvents(id), 1).length >= least);

/** The machine of the only instance that runs. */
function machineOf(): { readonly path: string; readonly record: Record<string, unknown> } {
  const [id = ""] = readdirSync(join(appliance.dataDir, "vms"));
  const path = join(appliance.dataDir, "vms", id, "machine.json");
  return { path, record: JSON.parse(readFileSync(path, "utf8")) as Record<string, unknown> };
}

async function expectNothingLeft(): Promise<void> {
  await until("its machine is gone", async () => (await appliance.machinePids()).length === 0);
  await until("its directory is gone", async () => (await appliance.leftovers()).length === 0);
}

describe("an instance whose daemon is killed", () => {
  test("continues: every line is there once, and its input, file and image, too", async () => {
    const count = 12_000;
    const loop = `i=0; while [ $i -lt ${count} ]; do i=$((i+1)); echo line $i; done`;
    const command = `${loop}; cat > /root/input; echo slow; sleep 1; cat /root/input`;
    const more = { stdin: "x".repeat(100_000), truncate_output_at: 10_000_000 };
    const id = await appliance.spawn({ image: base, command, shell: true, ...more });
    for (const [round, least] of [1, 30_000, 60_000].entries()) {
      await printed(id, least);
      await killed();
      const count = async () => (await operationEvents(id)).filter(({ type }) => type === "adopted").length;
      await until("the next daemon has it", async () => (await count()) === round + 1);
    }
    const operation = await appliance.finished(id);
    expect(operation.status).toBe("SUCCESS");
    const result = operation.result as unknown as Body;
    expect(text(result["stdout"])).toBe(`${numbered(count)}slow\n${"x".repeat(100_000)}`);
    const events = await operationEvents(id);
    expect(events.map(({ id }) => id)).toEqual(events.map((_, at) => at));
    expect(events.filter(({ type }) => type === "adopted")).toHaveLength(3);
    expect(events.filter(({ type, spid }) => spid === 1 && type === "exit")).toHaveLength(1);
    expect(events.find(({ type }) => type === "stdin")?.data).toEqual({ bytes: 100_000 });
    const response = await appliance.fetch(`/inspect/${String(result["image"])}/download?path=/root/input`);
    expect((await response.text()).length).toBe(100_000);
    await expectNothingLeft();
  });

  test("ends while no daemon runs, by itself or at its time limit, and succeeds with the next one", async () => {
    const id = await appliance.spawn({ image: base, command: "echo before; sleep 2; exit 7", shell: true });
    const late = await appliance.spawn({ image: base, command: "sleep 300", shell: true, timeout: 2 });
    await Promise.all([running(appliance, id), running(appliance, late), printed(id, 1)]);
    await until("both have begun", async () => (await operationEvents(late)).some(({ type }) => type === "spawn"));
    await killed(() => pause("the programs end", 4000));
    expect((await appliance.finished(id)).result).toMatchObject({ exit_code: 7, timed_out: false });
    expect((await appliance.finished(late)).result).toMatchObject({ timed_out: true });
    await expectNothingLeft();
  });

  test("can be cancelled, extended, and gets further processes", async () => {
    const id = await appliance.spawn({ image: base, command: "sleep 300", shell: true, timeout: 200 });
    await running(appliance, id);
    await until("it has begun", async () => (await operationEvents(id)).some(({ type }) => type === "spawn"));
    await killed();
    const extended = async () => {
      const headers = { "content-type": "application/json" };
      const body = JSON.stringify({ timeout: 400 });
      return (await appliance.fetch(`/instances/${id}`, { method: "PATCH", headers, body })).status;
    };
    let status = 503;
    await until("the instance is there", async () => {
      status = await extended();
      return status !== 503;
    });
    expect(status).toBeLessThan(300);
    const added = await appliance.post(`/instances/${id}/processes`, { command: "echo added", shell: true });
    expect(added.status).toBe(201);
    await until("it has ended", async () => outputOf(await operationEvents(id), 2) === "added\n");
    await killed();
    await appliance.fetch(`/operations/${id}`, { method: "DELETE" });
    expect((await appliance.finished(id)).status).toBe("CANCELLED");
    await expectNothingLeft();
  });
});

describe("a machine that cannot be continued is ended with the reason, and leaves nothing:", () => {
  async function ended(meanwhile: () => Promise<void> | void): Promise<string> {
    const id = await appliance.spawn({ image: base, command: "echo begun; sleep 300", shell: true });
    await printed(id, 1);
    await killed(meanwhile);
    const operation = await appliance.finished(id);
    expect(operation.status).toBe("FAILED");
    await expectNothingLeft();
    return (operation as unknown as { error: { message: string } }).error.message;
  }
  const changed = (change: Record<string, unknown>) => () => {
    const { path, record } = machineOf();
    writeFileSync(path, JSON.stringify({ ...record, ...change }));
  };

  test("it died", async () => {
    const message = await ended(async () => {
      killAll(await appliance.machinePids());
      await until("it is dead", async () => (await appliance.machinePids()).length === 0);
    });
    expect(message).toContain("the machine's launcher has ended");
  });
  test("another boot", async () => {
    expect(await ended(changed({ bootId: "another" }))).toContain("another boot of the host");
  });
  test("another format", async () => {
    expect(await ended(changed({ format: 2 }))).toContain("another format");
  });
  test("another protocol", async () => {
    expect(await ended(changed({ protocol: 3 }))).toContain("its agent speaks protocol version 3");
  });
  test("a damaged record", async () => {
    expect(await ended(() => writeFileSync(machineOf().path, "{"))).toContain("restarted while the operation ran");
  });
});

test("a sandbox continues, with its processes, its files and its deadline", async () => {
  const created = await appliance.post("/sandboxes", { image: base, name: "dev", timeout: 900 });
  const { uuid } = (await created.json()) as { uuid: string };
  const sandbox = async () => (await (await appliance.fetch(`/sandboxes/${uuid}`)).json()) as Body;
  await until("it runs", async () => (await sandbox())["state"] === "running");
  const { ends_at, instance } = await sandbox();
  const command = "i=0; while true; do i=$((i+1)); echo line $i; sleep 0.01; done";
  const started = await appliance.post(`/sandboxes/${uuid}/processes`, { command, shell: true });
  const { spid } = (await started.json()) as { spid: number };
  const output = async () => outputOf(await eventsOf(`/sandboxes/${uuid}/events`), spid);
  for (let round = 1; round <= 5; round++) {
    const before = (await output()).length;
    await until("it prints", async () => (await output()).length > before + 200);
    await killed();
    expect(await sandbox()).toMatchObject({ state: "running", ends_at, instance });
  }
  const lines = (await output()).trimEnd().split("\n");
  expect(`${lines.join("\n")}\n`).toBe(numbered(lines.length));
  expect((await operationOf(appliance, String(instance)))["status"]).toBe("EXECUTING");
  await until("it can be used", async () => {
    const command = "echo kept > /root/kept";
    return (await appliance.post(`/sandboxes/${uuid}/processes`, { command, shell: true })).status === 201;
  });
  const hasEnded = ({ type, spid: ended }: Event) => type === "exit" && ended > spid;
  await until("the file is there", async () => (await eventsOf(`/sandboxes/${uuid}/events`)).some(hasEnded));
  await appliance.post(`/sandboxes/${uuid}/pause`, {});
  await until("it is paused", async () => (await sandbox())["state"] === "paused");
  const { head } = await sandbox();
  const kept = await appliance.fetch(`/inspect/${String(head)}/download?path=/root/kept`);
  expect(await kept.text()).toBe("kept\n");
  await appliance.fetch(`/sandboxes/${uuid}`, { method: "DELETE" });
  await expectNothingLeft();
});
