/** Kept memory against those who race, look or belong to others, in real machines. */
import { afterAll, afterEach, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { readdirSync, readlinkSync, statSync } from "node:fs";
import { join } from "node:path";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { SandboxClient, type WireSandbox } from "../../support/sandboxes/client.ts";
import { pause, until } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(480_000);

let busybox: BusyboxAppliance;
let appliance: Appliance;
beforeAll(async () => {
  busybox = await BusyboxAppliance.start({ poolSize: 0 });
  ({ appliance } = busybox);
});
afterAll(() => busybox?.[Symbol.asyncDispose]());

const names = (directory: string): string[] => readdirSync(join(appliance.dataDir, directory));
/** Copies of memory that the daemon has open, each once. */
function memfds(): string[] {
  const files = readdirSync(`/proc/${appliance.pid}/fd`).flatMap((fd) => {
    const path = `/proc/${appliance.pid}/fd/${fd}`;
    try {
      return readlinkSync(path).startsWith("/memfd:fork-memory") ? [String(statSync(path).ino)] : [];
    } catch {
      // Closed meanwhile.
      return [];
    }
  });
  return [...new Set(files)];
}

afterEach(async () => {
  const all = (await (await appliance.fetch("/sandboxes")).json()) as WireSandbox[];
  for (const { uuid } of all) await new SandboxClient(appliance, uuid).end();
  await until("no machine is left", () => names("vms").length === 0);
  await until("no memory is left", () => names("memory-images").length === 0);
  await until("no copy is left", () => names("tmp").every((name) => !name.startsWith("fork-")));
  await until("no memory is open", () => memfds().length === 0);
});

/** A sandbox with a process that counts. `continues` expects all of its numbers, and further ones. */
async function counter(name: string) {
  const box = await SandboxClient.open(appliance, { image: busybox.image, name });
  const command = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done";
  const { spid } = (await box.post("processes", { command, shell: true })).body as { spid: number };
  const lines = async () => {
    const response = await appliance.fetch(`/sandboxes/${box.id}/processes/${spid}`);
    const { stdout } = (await response.json()) as { stdout: { content: string } };
    return stdout.content.split("\n").slice(0, -1);
  };
  await until("it counts", async () => (await lines()).length > 3);
  const continues = async () => {
    const before = (await lines()).length;
    await until("it continues", async () => (await lines()).length > before);
    const all = await lines();
    expect(all.findIndex((line, at) => line !== String(at + 1))).toBe(-1);
  };
  return { box, continues };
}

test("a secret of the memory is in no file but the image, in no answer and in no log", async () => {
  const { box } = await counter("secret");
  const secret = crypto.randomUUID();
  const command = "read word; export word; sleep 1000";
  const { spid } = (await box.post("processes", { command, shell: true, stdin_open: true })).body as { spid: number };
  await appliance.post(`/sandboxes/${box.id}/processes/${spid}/stdin`, { content: `${secret}\n` });
  await box.becomes("paused", "pause?wait=60", { memory: true });
  // The disks of machines are sparse and large; the memory of a process is not in them.
  const grep = (path: string) =>
    spawnSync(
      "grep",
      ["-rlaF", ...["memory-images", "vms", "scratch"].map((name) => `--exclude-dir=${name}`), secret, path],
      {
        encoding: "utf8",
      },
    ).stdout;
  expect(grep(appliance.dataDir)).toBe("");
  for (const path of ["", "/events", "/states", `/processes/${spid}`, "/processes"]) {
    expect(await (await appliance.fetch(`/sandboxes/${box.id}${path}`)).text()).not.toContain(secret);
  }
  expect(appliance.log).not.toContain(secret);
});

test("the kept memory of another account is not there", async () => {
  const mallory = await appliance.createToken("mallory");
  const { box } = await counter("mine");
  await box.becomes("paused", "pause?wait=60", { memory: true });
  for (const path of ["resume", "pause", "fork"]) {
    const theirs = await appliance.post(`/sandboxes/${box.id}/${path}`, { memory: true }, mallory);
    expect([path, theirs.status]).toEqual([path, 404]);
  }
  expect((await box.get()).state).toBe("paused");
});

test("of many resumes at once one machine continues, and the memory is used once", async () => {
  const { box, continues } = await counter("many");
  for (let round = 0; round < 3; round++) {
    await box.becomes("paused", "pause?wait=60", { memory: true });
    const answers = await Promise.all(Array.from({ length: 8 }, () => box.post("resume?wait=60", {})));
    for (const { status } of answers) expect([200, 409]).toContain(status);
    await until("it runs", async () => (await box.get()).state === "running");
    expect(names("vms").length).toBe(1);
    await continues();
  }
});

test("pauses, resumes and ends that race leave nothing", async () => {
  for (const afterMs of [0, 10, 50, 150, 400, 1000]) {
    const { box } = await counter(`race-${afterMs}`);
    const pausing = box.post("pause?wait=60", { memory: true });
    await pause("the pause is under way", afterMs);
    await Promise.all([box.post("resume", {}), box.end(), pausing]);
    await box.end();
    await until("it has ended", async () => (await box.get()).state === "ended");
    await until("no memory is left", () => names("memory-images").length === 0);
  }
  for (const afterMs of [0, 10, 50, 150, 400]) {
    const { box } = await counter(`again-${afterMs}`);
    await box.becomes("paused", "pause?wait=60", { memory: true });
    const resuming = box.post("resume?wait=60", {});
    await pause("the resume is under way", afterMs);
    await Promise.all([resuming, box.end()]);
    await until("it has ended", async () => (await box.get()).state === "ended");
    await until("no memory is left", () => names("memory-images").length === 0);
  }
});

test("a guest that ends itself during a pause leaves nothing", async () => {
  for (const delay of ["0", "0.1", "0.5"]) {
    const { box } = await counter(`reboot-${delay.replace(".", "-")}`);
    await box.post("processes", { command: `sleep ${delay}; reboot -f`, shell: true });
    const { status } = await box.post("pause?wait=60", { memory: true });
    expect(status).toBeLessThan(504);
    await box.end();
    await until("no memory is left", () => names("memory-images").length === 0);
  }
});

test("of sandboxes that are paused at once, one after another has a copy of its memory in the service's", async () => {
  const boxes = await Promise.all([1, 2, 3, 4].map((number) => counter(`one-${number}`)));
  let most = 0;
  const over = new AbortController();
  const watching = (async () => {
    while (!over.signal.aborted) {
      most = Math.max(most, memfds().length);
      await pause("memory is open", 5);
    }
  })();
  const answers = await Promise.all(boxes.map(({ box }) => box.post("pause?wait=60", { memory: true })));
  over.abort();
  await watching;
  expect(answers.map(({ status }) => status)).toEqual([200, 200, 200, 200]);
  expect(most).toBe(1);
});
