/** Forks with memory against those who race, leave, lie or belong to others, on real machines. */
import { afterAll, afterEach, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { SandboxClient, type WireSandbox } from "../../support/sandboxes/client.ts";
import { pause, until } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(480_000);

let busybox: BusyboxAppliance;
beforeAll(async () => {
  busybox = await BusyboxAppliance.start({ poolSize: 0, flags: ["--vm-cpu-budget", "8"] });
});
afterAll(async () => {
  await busybox?.[Symbol.asyncDispose]();
});

const open = () => SandboxClient.open(busybox.appliance, { image: busybox.image });
const names = (directory: string): string[] => readdirSync(join(busybox.appliance.dataDir, directory));
const copies = () => names("tmp").filter((name) => name.startsWith("fork-"));

async function living(): Promise<WireSandbox[]> {
  const all = (await (await busybox.appliance.fetch("/sandboxes")).json()) as WireSandbox[];
  return all.filter(({ state }) => state !== "ended" && state !== "failed");
}

async function endAll(): Promise<void> {
  for (const { uuid } of await living()) await new SandboxClient(busybox.appliance, uuid).end();
}

/** Starts a process that writes a number each 100 ms, and returns a function that expects it to continue without a gap. */
async function counting(sandbox: SandboxClient): Promise<() => Promise<void>> {
  const command = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done";
  const { status, body } = await sandbox.post("processes", { command, shell: true });
  expect(status).toBe(201);
  const { spid } = body as { spid: number };
  const lines = async () => {
    const events = (await sandbox.events()).filter((event) => event.spid === spid && event.type === "stdout");
    return events
      .map(({ data }) => String(data["content"]))
      .join("")
      .trim()
      .split("\n");
  };
  return async () => {
    const before = (await lines()).length;
    await until("it continues", async () => (await lines()).length > before);
    const all = await lines();
    expect(all).toEqual(all.map((_, at) => String(at + 1)));
  };
}

// Every test leaves nothing: no machine, no copy of a disk, no share of the budget.
afterEach(async () => {
  await endAll();
  await until("no machine is left", () => names("vms").length === 0);
  await until("no copy is left", () => copies().length === 0);
});

test("of 20 forks at once the sandbox makes one after another or refuses, and the budget is whole afterwards", async () => {
  const parent = await open();
  const continues = await counting(parent);
  const answers = await Promise.all(Array.from({ length: 20 }, () => parent.post("fork", { memory: true })));
  const successes = answers.filter(({ status }) => status === 201);
  expect(successes.length).toBeGreaterThan(0);
  for (const { status, body } of answers) {
    if (status === 201) continue;
    expect([409, 503]).toContain(status);
    expect(["conflict", "unavailable"]).toContain((body as { error: string }).error);
  }
  expect((await living()).length).toBe(1 + successes.length);
  expect(names("vms").length).toBe(1 + successes.length);
  await continues();
  for (const { uuid } of await living()) {
    if (uuid !== parent.id) await new SandboxClient(busybox.appliance, uuid).end();
  }
  await until("its forks are gone", () => names("vms").length === 1);
  const again = await parent.post("fork?wait=60", { memory: true, count: 4 });
  expect([again.status, again.body]).toEqual([201, expect.anything()]);
});

test("a client that leaves at any time leaves no half fork, and the next one forks", async () => {
  const parent = await open();
  const continues = await counting(parent);
  for (const afterMs of [0, 2, 5, 10, 20, 40, 80, 160, 320, 640]) {
    const leaving = new AbortController();
    const request = busybox.appliance
      .fetch(`/sandboxes/${parent.id}/fork`, {
        ...{ method: "POST", headers: { "content-type": "application/json" }, signal: leaving.signal },
        body: JSON.stringify({ memory: true, count: 2 }),
      })
      .catch(() => null);
    await pause("the fork is under way", afterMs);
    leaving.abort();
    await request;
    // All forks or none.
    await until("nothing is half done", async () => {
      const count = (await living()).length;
      return count % 2 === 1 && names("vms").length === count && copies().length === 0;
    });
    for (const { uuid } of await living()) {
      if (uuid !== parent.id) await new SandboxClient(busybox.appliance, uuid).end();
    }
  }
  await continues();
  expect((await parent.post("fork?wait=60", { memory: true })).status).toBe(201);
});

test("the sandbox of another account is not there, by its id, its name, its instance and its forks", async () => {
  const mallory = await busybox.appliance.createToken("mallory");
  const parent = await SandboxClient.open(busybox.appliance, { image: busybox.image, name: "private" });
  const forked = await parent.post("fork?wait=60", { memory: true });
  expect([forked.status, forked.body]).toEqual([201, expect.anything()]);
  const [fork] = (forked.body as { sandboxes: WireSandbox[] }).sandboxes;
  const { instance } = await parent.get();
  const ask = async (path: string) => {
    const response = await busybox.appliance.post(path, path.startsWith("/instances") ? {} : { memory: true }, mallory);
    return { status: response.status, text: await response.text() };
  };
  const unknown = Bun.randomUUIDv7();
  for (const [path, absent] of [
    [`/sandboxes/${parent.id}/fork`, `/sandboxes/${unknown}/fork`],
    [`/sandboxes/${fork?.uuid}/fork`, `/sandboxes/${unknown}/fork`],
    ["/sandboxes/name:private/fork", "/sandboxes/name:nothing/fork"],
    [`/instances/${instance}/fork`, `/instances/${unknown}/fork`],
  ] as const) {
    const [theirs, none] = [await ask(path), await ask(absent)];
    expect([path, theirs.status, theirs.text]).toEqual([path, 404, expect.anything()]);
    const withoutName = (text: string, of: string) => text.replaceAll(of.split("/")[2]?.replace("name:", "") ?? "", "");
    expect(withoutName(theirs.text, path)).toBe(withoutName(none.text, absent));
  }
  // Its own account cannot take it for an instance without a sandbox either.
  const own = await busybox.appliance.post(`/instances/${instance}/fork`, {});
  expect([own.status, names("vms").length]).toEqual([404, 2]);
  const listed = (await (await busybox.appliance.fetch("/sandboxes", { token: mallory })).text()) + unknown;
  expect(listed).not.toContain(parent.id);
  expect(listed).not.toContain(fork?.uuid ?? "");
});

test("a guest that ends itself while it is forked leaves nothing, and its forks end as they like", async () => {
  for (const delay of ["0", "0.05", "0.2"]) {
    const parent = await open();
    await parent.post("processes", { command: `sleep ${delay}; reboot -f`, shell: true });
    const { status } = await parent.post("fork", { memory: true, count: 2 });
    expect([201, 409, 503]).toContain(status);
    await until("the parent has ended", async () => ["failed", "ended"].includes((await parent.get()).state), 60_000);
    await endAll();
    await until("no machine is left", () => names("vms").length === 0);
  }
});

test("a guest that floods its output and starts processes without end is forked, or refused in time", async () => {
  const parent = await open();
  const continues = await counting(parent);
  await parent.post("processes", { command: "yes & yes >&2 & while :; do (: &) done", shell: true });
  const startedAt = performance.now();
  const { status, body } = await parent.post("fork", { memory: true });
  expect([201, 409, 503]).toContain(status);
  expect(performance.now() - startedAt).toBeLessThan(120_000);
  if (status === 201) expect((body as { paused_ms: number }).paused_ms).toBeLessThan(20_000);
  await continues();
});
