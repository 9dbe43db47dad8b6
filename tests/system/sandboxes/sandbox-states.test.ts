/** The ways between the states of sandboxes, with their files, on real machines. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { SandboxClient, type WireSandbox } from "../../support/sandboxes/client.ts";
import { impossibleSteps, type StoryStep } from "../../support/sandboxes/story.ts";
import { until } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(240_000);

let busybox: BusyboxAppliance;
beforeAll(async () => {
  busybox = await BusyboxAppliance.start();
});
afterAll(async () => {
  await busybox?.[Symbol.asyncDispose]();
});

const open = (more: Record<string, unknown> = {}) =>
  SandboxClient.open(busybox.appliance, { image: busybox.image, ...more });

const storyOf = async (sandbox: SandboxClient): Promise<StoryStep[]> =>
  (await sandbox.events()).filter(({ type }) => type === "state").map(({ data }) => data as unknown as StoryStep);

async function parentOf(image: string): Promise<string | null> {
  const response = await busybox.appliance.fetch(`/images/${image}`);
  return ((await response.json()) as { parent?: string }).parent ?? null;
}

test("pause saves the files in the head, resume starts from there, and numbers of processes continue", async () => {
  const sandbox = await open({ env: { SECRET: "s3" }, name: "dev" });
  expect((await sandbox.run("echo one > /root/a; echo $SECRET")).output).toBe("s3\n");
  const paused = await sandbox.becomes("paused", "pause?wait=60");
  expect([paused.instance, paused.ends_at, await parentOf(paused.head)]).toEqual([null, null, busybox.image]);
  const resumed = await sandbox.becomes("running", "resume?wait=60");
  expect([resumed.head, resumed.name, resumed.image]).toEqual([paused.head, "dev", busybox.image]);
  const second = await sandbox.run("cat /root/a; echo $SECRET");
  expect([second.spid, second.output]).toEqual([3, "one\ns3\n"]);
  // Nothing changed since the head, so there is no further state.
  expect((await sandbox.becomes("paused", "pause?wait=60")).head).toBe(paused.head);
  expect((await sandbox.end()).body.state).toBe("ended");
  const steps = await storyOf(sandbox);
  expect(impossibleSteps(steps)).toEqual([]);
  expect(steps.map(({ to }) => to)).toEqual([
    "starting",
    "running",
    "pausing",
    "paused",
    "resuming",
    "running",
    "pausing",
    "paused",
    "ended",
  ] as never);
  expect((await sandbox.post("resume")).status).toBe(409);
});

test("a checkpoint moves the head, and the next one is its child, with all files since the start", async () => {
  const sandbox = await open();
  await sandbox.run("echo 1 > /root/one");
  const first = await sandbox.checkpoint({ tag: "first" });
  await sandbox.run("echo 2 > /root/two");
  const second = await sandbox.checkpoint();
  expect([await parentOf(first), await parentOf(second)]).toEqual([busybox.image, first]);
  expect((await sandbox.get()).head).toBe(second);
  const changes = await busybox.appliance.fetch(`/images/${second}/diff`);
  expect(await changes.text()).not.toContain("/root/one");
  const states = await sandbox.states();
  expect(states.map(({ reason, ref }) => [reason, ref])).toEqual([
    ["checkpoint", "HEAD"],
    ["checkpoint", "HEAD~1"],
    ["start", "HEAD~2"],
  ]);
  const back = await sandbox.becomes("running", "rollback?wait=60", { image: "HEAD~1" });
  expect(back.head).toBe(first);
  expect((await sandbox.run("cat /root/one; cat /root/two 2>&1 || true")).output).toContain("1\ncat: ");
  // The next state is a child of the one that the sandbox went back to.
  await sandbox.run("echo 3 > /root/three");
  const paused = await sandbox.becomes("paused", "pause?wait=60");
  expect(await parentOf(paused.head)).toBe(first);
  const base = await sandbox.becomes("paused", "rollback", { image: busybox.image });
  expect(base.head).toBe(busybox.image);
  expect(impossibleSteps(await storyOf(sandbox))).toEqual([]);
  await sandbox.end();
});

test("rollback gives up what is not saved, unless it is kept", async () => {
  const sandbox = await open();
  const before = await sandbox.get();
  await sandbox.run("echo lost > /root/lost");
  const back = await sandbox.becomes("running", "rollback?wait=60", {});
  expect([back.head, back.uuid, back.ends_at]).toEqual([before.head, before.uuid, before.ends_at]);
  expect(back.instance).not.toBe(before.instance);
  expect((await sandbox.run("ls /root")).output).toBe("");
  await sandbox.run("echo kept > /root/kept");
  const kept = await sandbox.post("rollback?wait=60", { keep: true, tag: "kept" });
  expect(kept.status).toBe(200);
  await until("it runs on the earlier head", async () => {
    const { state, head } = await sandbox.get();
    return state === "running" && head === before.head;
  });
  const saved = (await sandbox.states()).find(({ reason }) => reason === "keep");
  expect(saved?.tags).toEqual(["kept"]);
  expect((await sandbox.run("ls /root")).output).toBe("");
  await sandbox.end();
});

test("the end can save the files first, and deletes the sandbox's variables", async () => {
  const sandbox = await open({ env: { SECRET: "s" } });
  await sandbox.run("echo x > /root/x");
  const ended = await sandbox.end("keep=true&tag=last&wait=60");
  expect([ended.status, ended.body.state]).toEqual([200, "ended"]);
  const tagged = await busybox.appliance.fetch("/images?tagged=true");
  expect(await tagged.text()).toContain('"last"');
  expect(impossibleSteps(await storyOf(sandbox))).toEqual([]);
});

test("a machine that dies fails its sandbox with the reason, and resume begins at the head", async () => {
  const sandbox = await open();
  await sandbox.run("echo 1 > /root/saved");
  const head = await sandbox.checkpoint();
  await sandbox.run("echo 2 > /root/unsaved");
  for (const pid of await busybox.appliance.monitorPids()) process.kill(pid, "SIGKILL");
  await until("it has failed", async () => (await sandbox.get()).state === "failed", 60_000);
  const failed = await sandbox.get();
  expect([failed.head, failed.instance, failed.error?.error]).toEqual([head, null, "unavailable"]);
  await sandbox.becomes("running", "resume?wait=60");
  expect((await sandbox.run("ls /root")).output).toBe("saved\n");
  await sandbox.end();
});

test("no process of the guest can end the machine of its sandbox", async () => {
  const sandbox = await open();
  await sandbox.run("kill -9 -1; true");
  expect((await sandbox.run("echo alive")).output).toBe("alive\n");
  await sandbox.end();
});

test("a fork has the present files, and its own life", async () => {
  const sandbox = await open({ name: "base" });
  await sandbox.run("echo shared > /root/a");
  const { status, body } = await sandbox.post("fork?wait=60", { count: 2 });
  expect(status).toBe(201);
  const forks = body as unknown as WireSandbox[];
  expect(forks.map(({ name }) => name)).toEqual(["base-1", "base-2"]);
  const [one, two] = forks.map(({ uuid }) => new SandboxClient(busybox.appliance, uuid));
  await until(
    "they run",
    async () => (await one?.get())?.state === "running" && (await two?.get())?.state === "running",
  );
  await one?.run("echo other > /root/a");
  expect((await two?.run("cat /root/a"))?.output).toBe("shared\n");
  expect((await sandbox.run("cat /root/a")).output).toBe("shared\n");
  for (const each of [sandbox, one, two]) await each?.end();
});

describe("deadlines", () => {
  test("pause a sandbox, and a request resumes it", async () => {
    const sandbox = await open();
    await sandbox.run("echo 1 > /root/a");
    await sandbox.change({ timeout: 1 });
    await until("it is paused", async () => (await sandbox.get()).state === "paused", 60_000);
    await sandbox.change({ timeout: 600 });
    expect((await sandbox.run("cat /root/a")).output).toBe("1\n");
    const events = await sandbox.events();
    expect(events.map(({ type }) => type)).toContain("ends_soon");
    expect(events.filter(({ type }) => type === "state").map(({ data }) => data["reason"])).toContain("auto_resume");
    await sandbox.end();
  });

  test("end it when it says so", async () => {
    const sandbox = await open({ timeout: 2, on_timeout: "end" });
    await until("it has ended", async () => (await sandbox.get()).state === "ended", 60_000);
  });

  test("pause an idle sandbox, but not one that is used", async () => {
    const sandbox = await open({ idle_timeout: 2 });
    await until("it is paused", async () => (await sandbox.get()).state === "paused", 60_000);
    const reasons = (await sandbox.events()).filter(({ type }) => type === "state").map(({ data }) => data["reason"]);
    expect(reasons).toContain("idle");
    await sandbox.end();
  });
});
