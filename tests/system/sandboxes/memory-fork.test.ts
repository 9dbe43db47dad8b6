/** Forks of sandboxes with their memory, on real machines: processes, output, files, and what is left of them. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { killAll } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { SandboxClient, type WireEvent, type WireSandbox } from "../../support/sandboxes/client.ts";
import { until } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(480_000);

let busybox: BusyboxAppliance;
beforeAll(async () => {
  busybox = await BusyboxAppliance.start({ poolSize: 0 });
});
afterAll(async () => {
  await busybox?.[Symbol.asyncDispose]();
});

interface Forked {
  readonly paused_ms: number;
  readonly copied_bytes: number;
  readonly warning: string;
  readonly sandboxes: (WireSandbox & { readonly parent?: string; readonly forked_at_event?: number })[];
}

const open = (more: Record<string, unknown> = {}) =>
  SandboxClient.open(busybox.appliance, { image: busybox.image, ...more });
const clientOf = ({ uuid }: Pick<WireSandbox, "uuid">) => new SandboxClient(busybox.appliance, uuid);

async function forked(parent: SandboxClient, request: Record<string, unknown> = {}): Promise<Forked> {
  const { status, body } = await parent.post("fork?wait=60", { memory: true, ...request });
  expect([status, body]).toEqual([201, expect.anything()]);
  return body;
}

/** Starts a process that lasts, and returns its number. */
async function start(sandbox: SandboxClient, command: string, more: Record<string, unknown> = {}): Promise<number> {
  const { status, body } = await sandbox.post("processes", { command, shell: true, ...more });
  expect([status, body]).toEqual([201, expect.anything()]);
  return (body as { spid: number }).spid;
}

const outputOf = (events: readonly WireEvent[], spid: number, upTo = Infinity): string =>
  events
    .filter((event) => event.type === "stdout" && event.spid === spid && event.id <= upTo)
    .map(({ data }) => String(data["content"]))
    .join("");

async function output(sandbox: SandboxClient, spid: number): Promise<string> {
  return outputOf(await sandbox.events(), spid);
}

async function write(sandbox: SandboxClient, spid: number, content: string): Promise<void> {
  const response = await busybox.appliance.post(`/sandboxes/${sandbox.id}/processes/${spid}/stdin`, { content });
  expect(response.status).toBe(204);
}

/** Expects lines with the numbers from 1 on, the last of which may be incomplete. */
function expectNumbered(text: string, countMin: number): void {
  const lines = text.split("\n").slice(0, -1);
  expect(lines.length).toBeGreaterThan(countMin);
  expect(lines.findIndex((line, at) => line !== `line ${at + 1}`)).toBe(-1);
}

const numbered = (sleep: string) => `i=0; while :; do i=$((i+1)); echo line $i; ${sleep} done`;
const directories = (name: string): string[] => readdirSync(join(busybox.appliance.dataDir, name));

test("eight forks continue their parent's processes, each with its own state, and no line is lost or doubled", async () => {
  const parent = await open({ name: "dev", metadata: { team: "a" } });
  await parent.run("echo before > /root/file");
  const slow = await start(parent, numbered("sleep 0.1;"));
  const bulk = await start(parent, `x=0; while [ $x -lt 400 ]; do x=$((x+1)); echo line $x; done; exec sleep 1000`);
  const stateful = await start(parent, 'n=41; while read word; do n=$((n+1)); echo "$n $word"; done', {
    stdin_open: true,
  });
  await write(parent, stateful, "first\n");
  await until("it has read", async () => (await output(parent, stateful)) === "42 first\n");
  const { paused_ms, copied_bytes, warning, sandboxes } = await forked(parent, { count: 8 });
  expect(paused_ms).toBeGreaterThan(0);
  expect(copied_bytes).toBeGreaterThan(1_000_000);
  expect(warning).toContain("secrets");
  expect(sandboxes.map(({ name, state, parent: from }) => [name, state, from])).toEqual(
    Array.from({ length: 8 }, (_, at) => [`dev-${at + 1}`, "running", parent.id]),
  );
  await parent.run("echo parent > /root/file");
  const children = sandboxes.map(clientOf);
  await Promise.all(
    children.map(async (child, at) => {
      const read = child.run("cat /root/file; cat /run/coppice/fork");
      expect((await read).output).toBe(`before\ngeneration=1\nindex=${at + 1}\n`);
      await write(child, stateful, `child${at}\n`);
    }),
  );
  await write(parent, stateful, "parent\n");
  await until("the parent answers", async () => (await output(parent, stateful)) === "42 first\n43 parent\n");
  const atEvent = Number(sandboxes[0]?.forked_at_event);
  const ofParent = await parent.events();
  for (const [at, child] of children.entries()) {
    await until("the fork continues", async () => (await output(child, slow)).split("\n").length > 5);
    const events = await child.events();
    expect(events[0]).toMatchObject({ type: "fork", data: { parent: parent.id, at_event: atEvent } });
    expect(outputOf(events, stateful)).toBe(`43 child${at}\n`);
    expectNumbered(outputOf(ofParent, slow, atEvent) + outputOf(events, slow), 5);
    const whole = outputOf(ofParent, bulk, atEvent) + outputOf(events, bulk);
    if (whole.split("\n").length > 400) expectNumbered(whole, 399);
    // It continues the numbers of its parent's processes.
    expect(events.filter(({ type, spid }) => type === "spawn" && spid === slow).length).toBe(1);
    expect((await child.run("echo new")).spid).toBeGreaterThan(stateful);
  }
  await until("the parent talks", async () => (await output(parent, slow)).split("\n").length > 20);
  expectNumbered(await output(parent, slow), 19);
  expectNumbered(await output(parent, bulk), 399);
  const random = await Promise.all([parent, ...children].map((one) => one.run("head -c 16 /dev/urandom | md5sum")));
  expect(new Set(random.map((one) => one.output)).size).toBe(9);
  for (const sandbox of [...children, parent]) await sandbox.end();
  await until("no machine is left", () => directories("vms").length === 0);
  expect(directories("tmp").filter((name) => name.startsWith("fork-"))).toEqual([]);
});

test("output at full speed continues exactly in the parent and in its forks", async () => {
  const parent = await open();
  const spid = await start(parent, numbered("[ $i -lt 15000 ] || exec sleep 1000;"));
  await until("it talks", async () => (await output(parent, spid)).length > 0);
  const { sandboxes } = await forked(parent, { count: 2 });
  const children = sandboxes.map(clientOf);
  const isDone = async (sandbox: SandboxClient) => (await output(sandbox, spid)).endsWith("line 15000\n");
  for (const sandbox of [parent, ...children]) await until("it is done", () => isDone(sandbox), 240_000);
  const ofParent = await parent.events();
  const atEvent = Number(sandboxes[0]?.forked_at_event);
  expectNumbered(outputOf(ofParent, spid), 14_999);
  for (const child of children) {
    expectNumbered(outputOf(ofParent, spid, atEvent) + (await output(child, spid)), 14_999);
  }
  for (const sandbox of [...children, parent]) await sandbox.end();
});

test("a fork is a sandbox: it is forked again, checkpointed, paused and resumed, and its signal tells its processes", async () => {
  const parent = await open({ name: "first" });
  const spid = await start(parent, "trap 'echo told' USR1; echo ready; while :; do sleep 0.1; done");
  const terminal = await start(parent, "trap '' USR1; exec sh", { pty: { rows: 24, cols: 80 }, stdin_open: true });
  await until("it is ready", async () => (await output(parent, spid)) === "ready\n");
  const [wire] = (await forked(parent, { name: "second", signal: "USR1" })).sandboxes;
  const child = clientOf(wire as WireSandbox);
  await until("the fork gets its signal", async () => (await output(child, spid)) === "told\n");
  await write(child, terminal, "echo $((40+2))\n");
  await until("its terminal answers", async () => (await output(child, terminal)).includes("42\r\n"));
  await child.run("echo 1 > /root/one");
  const image = await child.checkpoint();
  const [again] = (await forked(child)).sandboxes;
  const grandchild = clientOf(again as WireSandbox);
  expect(again).toMatchObject({ name: "second-1-1", parent: child.id });
  expect((await grandchild.run("cat /root/one; head -n 1 /run/coppice/fork")).output).toBe("1\ngeneration=2\n");
  await child.end();
  await grandchild.run("echo 2 > /root/two");
  const paused = await grandchild.becomes("paused", "pause?wait=60");
  expect(paused.head).not.toBe(image);
  await grandchild.becomes("running", "resume?wait=60");
  expect((await grandchild.run("cat /root/one /root/two")).output).toBe("1\n2\n");
  expect(await output(parent, spid)).toBe("ready\n");
  for (const sandbox of [grandchild, parent]) await sandbox.end();
});

test("a fork whose machine dies begins again at the head that its parent had", async () => {
  const parent = await open({ name: "saved" });
  await parent.run("echo 1 > /root/one");
  const head = await parent.checkpoint();
  await parent.run("echo 2 > /root/two");
  const [wire] = (await forked(parent)).sandboxes;
  const child = clientOf(wire as WireSandbox);
  await parent.end();
  expect(wire).toMatchObject({ head, image: head });
  expect((await child.run("cat /root/one /root/two")).output).toBe("1\n2\n");
  killAll(await busybox.appliance.machinePids());
  await until("it has failed", async () => (await child.get()).state === "failed");
  await child.becomes("running", "resume?wait=60");
  expect((await child.run("cat /root/one; ls /root")).output).toBe("1\none\n");
  const [first] = (await child.states()).slice(-1);
  expect(first).toMatchObject({ image: head, reason: "start", is_head: true });
  await child.end();
});

describe("a fork is refused", () => {
  test("when the sandbox is not running, is asked for too many, or has no room", async () => {
    const parent = await open();
    const spid = await start(parent, numbered("sleep 0.1;"));
    const tooMany = await parent.post("fork", { memory: true, count: 17 });
    expect(tooMany).toMatchObject({ status: 400, body: { error: "validation_error", details: { field: "count" } } });
    const unknown = await parent.post("fork", { memory: true, signal: "NOPE" });
    expect(unknown).toMatchObject({ status: 400, body: { details: { field: "signal" } } });
    expect(await parent.post("fork", { signal: "USR1" })).toMatchObject({ status: 400 });
    const other = await open({ name: "taken-2" });
    const named = await parent.post("fork", { memory: true, count: 2, name: "taken" });
    expect(named).toMatchObject({ status: 409, body: { details: { name: "taken-2" } } });
    await other.end();
    const lines = (await output(parent, spid)).length;
    await until("it continues", async () => (await output(parent, spid)).length > lines);
    await parent.becomes("paused", "pause?wait=60");
    expect(await parent.post("fork", { memory: true })).toMatchObject({
      status: 409,
      body: { details: { state: "paused" } },
    });
    await parent.end();
  });

  test("as a whole when the budget has no room for all: nothing was paused, and nothing is left", async () => {
    const gib = 1024 ** 3;
    await using small = await BusyboxAppliance.start({
      poolSize: 0,
      flags: ["--vm-memory-budget-bytes", "2147483648"],
    });
    const parent = await SandboxClient.open(small.appliance, {
      image: small.image,
      resources: { memory_bytes: gib / 4 },
    });
    const { status, body } = await parent.post("fork", { memory: true, count: 16 });
    expect([status, body]).toMatchObject([503, { error: "unavailable", details: { count: 16 } }]);
    expect(readdirSync(join(small.appliance.dataDir, "vms")).length).toBe(1);
    expect((await parent.run("echo alive")).output).toBe("alive\n");
    const one = await parent.post("fork?wait=60", { memory: true });
    expect(one.status).toBe(201);
  });
});
