/** Requests that contend, a daemon that is killed, and many states, on real machines. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { busyboxImage, pushImage } from "../../support/images/images.ts";
import { seededRandom, seedOfTests } from "../../support/random.ts";
import { SandboxClient } from "../../support/sandboxes/client.ts";
import { impossibleSteps, type StoryStep } from "../../support/sandboxes/story.ts";
import { pause, until } from "../../support/waiting.ts";

setDefaultTimeout(480_000);

/** Turns of checkpoint and rollback; COPPICE_TEST_SANDBOX_TURNS sets another number. */
const TURNS_COUNT = Number(process.env["COPPICE_TEST_SANDBOX_TURNS"] ?? 12);
const KEPT_COUNT = 4;

let busybox: BusyboxAppliance;
beforeAll(async () => {
  busybox = await BusyboxAppliance.start({ flags: ["--sandboxes-keep-states", String(KEPT_COUNT)] });
});
afterAll(async () => {
  await busybox?.[Symbol.asyncDispose]();
});

const open = (more: Record<string, unknown> = {}) =>
  SandboxClient.open(busybox.appliance, { image: busybox.image, ...more });

const storyOf = async (sandbox: SandboxClient): Promise<StoryStep[]> =>
  (await sandbox.events()).filter(({ type }) => type === "state").map(({ data }) => data as unknown as StoryStep);

const images = async (): Promise<string[]> => {
  const response = await busybox.appliance.fetch("/images?limit=1000");
  return ((await response.json()) as { uuid: string }[]).map(({ uuid }) => uuid);
};

test("eight threads of random requests leave a story that could have happened", async () => {
  const random = seededRandom(seedOfTests());
  const sandboxes = [await open(), await open()];
  const requests: readonly (readonly [string, unknown])[] = [
    ["pause", {}],
    ["resume", {}],
    ["rollback", { image: "HEAD~1" }],
    ["rollback", { keep: true }],
    ["checkpoint", {}],
    ["processes", { command: "echo $RANDOM > /root/f", shell: true }],
  ];
  const statuses = new Set<number>();
  const thread = async (): Promise<void> => {
    for (let round = 0; round < 12; round++) {
      await pause("other requests come first", random.below(300));
      const [path, body] = requests[random.below(requests.length)] ?? ["pause", {}];
      const { status, ...answer } = await (sandboxes[random.below(2)] as SandboxClient).post(path, body);
      statuses.add(status);
      if (status >= 500) throw new Error(JSON.stringify(answer));
    }
  };
  await Promise.all(Array.from({ length: 8 }, thread));
  expect([...statuses].filter((status) => ![200, 201, 202, 404, 409].includes(status))).toEqual([]);
  for (const sandbox of sandboxes) {
    await until("it rests", async () => ["running", "paused", "failed"].includes((await sandbox.get()).state), 120_000);
    const { head, state } = await sandbox.get();
    expect(await images()).toContain(head);
    const steps = await storyOf(sandbox);
    expect([impossibleSteps(steps), steps.at(-1)?.to]).toEqual([[], state as never]);
    expect((await sandbox.end()).status).toBe(200);
  }
});

test("many turns of checkpoint and rollback leave the newest states, those with a tag, and nothing else", async () => {
  const before = new Set(await images());
  const sandbox = await open();
  for (let turn = 0; turn < TURNS_COUNT; turn++) {
    await sandbox.run(`echo ${turn} > /root/turn`);
    await sandbox.checkpoint(turn === 1 ? { tag: "second-turn" } : {});
    await sandbox.becomes("running", "rollback?wait=60", { image: turn % 2 === 0 ? "HEAD" : "HEAD~1" });
  }
  const states = await sandbox.states();
  const named = states.filter(({ tags }) => tags.length > 0);
  expect(named.map(({ tags }) => tags)).toEqual([["second-turn"]]);
  // An image from which the present instance started stays until it ends.
  expect(states.length - named.length).toBeLessThanOrEqual(KEPT_COUNT + 1);
  await sandbox.becomes("paused", "pause?wait=60");
  // Excess states are forgotten after the end of the operation.
  await until("only the images of its states are left", async () => {
    const left = (await images()).filter((image) => !before.has(image));
    const own = (await sandbox.states()).map(({ image }) => image).filter((image) => !before.has(image));
    return left.sort().join() === own.sort().join();
  });
  await sandbox.end();
});

const TRUE = { command: "true", shell: true };

test.each(["running", "pausing", "paused", "resuming"] as const)(
  "a daemon that is killed while a sandbox is %s leaves it truthful, with its head",
  async (state) => {
    const { appliance } = busybox;
    const sandbox = await open();
    await sandbox.run("echo 1 > /root/saved");
    await sandbox.checkpoint();
    if (state === "paused" || state === "resuming") await sandbox.becomes("paused", "pause?wait=60");
    if (state === "pausing") await sandbox.becomes("pausing", "pause");
    if (state === "resuming") await sandbox.becomes("resuming", "resume");
    const { head, instance } = await sandbox.get();
    await appliance.down("SIGKILL");
    await appliance.up();
    let after = await sandbox.get();
    if (state === "pausing") {
      await until("it is paused, or its machine had ended", async () => {
        after = await sandbox.get();
        return after.state !== "pausing";
      });
      expect(["paused", "failed"]).toContain(after.state);
      if (after.state === "failed") expect(after.error?.message).toContain("the service was restarted");
    } else if (state === "running")
      expect([after.state, after.head, after.instance]).toEqual(["running", head, instance]);
    else if (state === "paused") expect([after.state, after.instance]).toEqual(["paused", null]);
    else {
      expect([after.state, after.head, after.instance]).toEqual(["failed", head, null]);
      expect(after.error?.message).toContain("the appliance was restarted");
    }
    if (state === "running")
      await until("its machine is opened", async () => (await sandbox.post("processes", TRUE)).status === 201);
    else await sandbox.becomes("running", "resume?wait=60");
    expect((await sandbox.run("cat /root/saved")).output).toBe("1\n");
    expect(impossibleSteps(await storyOf(sandbox))).toEqual([]);
    await sandbox.end();
  },
);

test("a stop of the daemon fails a running sandbox, and its log says so", async () => {
  const { appliance } = busybox;
  const sandbox = await open();
  await appliance.down("SIGTERM");
  await appliance.up();
  expect((await sandbox.get()).state).toBe("failed");
  const steps = await storyOf(sandbox);
  expect([impossibleSteps(steps), steps.at(-1)?.to]).toEqual([[], "failed"]);
  await sandbox.end();
});

test("an image with nothing but one static program lives as a sandbox", async () => {
  const program = (await busyboxImage()).layers.flat().find(({ path }) => path === "bin/busybox");
  const layers = [[{ path: "busybox", mode: 0o755, content: program?.content ?? "" }]];
  const image = await busybox.appliance.importImage(await pushImage(busybox.registry, "static:1", { layers }));
  const sandbox = await SandboxClient.open(busybox.appliance, { image });
  expect((await sandbox.run("/busybox", { args: ["echo", "alone"] })).output).toBe("alone\n");
  await sandbox.becomes("paused", "pause?wait=60");
  await sandbox.becomes("running", "resume?wait=60");
  await sandbox.end();
});
