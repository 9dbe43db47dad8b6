/** Sandboxes that are paused with their memory, in real machines, through real restarts of the service. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync, statSync } from "node:fs";
import { open, readFile, rename, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { SandboxClient } from "../../support/sandboxes/client.ts";
import { pause, until } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(240_000);

/** Writes numbered lines, has its number only in memory, and takes a word on its standard input to tell it. */
const COUNTER = `secret=$(head -c 8 /dev/urandom | md5sum)
echo "$secret" > /dev/shm/secret
i=0
while :; do i=$((i+1)); echo "line $i"; sleep 0.05; done &
while read word; do echo "$word $secret"; done
wait`;

let busybox: BusyboxAppliance;
let appliance: Appliance;
beforeAll(async () => {
  busybox = await BusyboxAppliance.start();
  ({ appliance } = busybox);
});
afterAll(() => busybox?.[Symbol.asyncDispose]());

const images = () => join(appliance.dataDir, "memory-images");
const directories = () => readdirSync(images());

async function openCounter(name: string): Promise<{ readonly box: SandboxClient; readonly spid: number }> {
  const box = await SandboxClient.open(appliance, { image: busybox.image, name });
  const { status, body } = await box.post("processes", { command: COUNTER, shell: true, stdin_open: true });
  expect(status).toBe(201);
  const { spid } = body as { spid: number };
  await until("it counts", async () => (await output(box, spid)).includes("line 5\n"));
  return { box, spid };
}

async function processOf(box: SandboxClient, spid: number) {
  const response = await appliance.fetch(`/sandboxes/${box.id}/processes/${spid}`);
  return (await response.json()) as { state: string; exit_code: number | null; stdout: { content: string } };
}

async function output(box: SandboxClient, spid: number): Promise<string> {
  return (await processOf(box, spid)).stdout.content;
}

/** Expects each line of a counter once, and returns the number of the last whole one. */
function counted(text: string): number {
  const lines = text
    .split("\n")
    .slice(0, -1)
    .filter((line) => line.startsWith("line "));
  expect(lines.findIndex((line, index) => line !== `line ${index + 1}`)).toBe(-1);
  return lines.length;
}

/** Makes the counter say a word, and its secret. */
async function say(box: SandboxClient, spid: number, word: string): Promise<string> {
  const answer = await appliance.post(`/sandboxes/${box.id}/processes/${spid}/stdin`, { content: `${word}\n` });
  expect([answer.status, await answer.text()]).toEqual([204, ""]);
  let said = "";
  await until("it answers", async () => {
    said = new RegExp(`^${word} (.*)$`, "m").exec(await output(box, spid))?.[1] ?? "";
    return said !== "";
  });
  return said;
}

test("a process continues after a pause with memory, a restart of the service, and a resume, and no line is lost or repeated", async () => {
  const { box, spid } = await openCounter("goes-on");
  const secret = await say(box, spid, "before");
  const boot = (await box.run("cat /proc/sys/kernel/random/boot_id")).output;
  await box.run("echo saved > /root/saved");
  await box.becomes("paused", "pause?wait=60", { memory: true });
  const paused = (await box.get()) as unknown as { memory: { size_bytes: number } };
  expect(paused.memory.size_bytes).toBeGreaterThan(1_000_000);
  expect(directories()).toHaveLength(1);
  const last = counted(await output(box, spid));
  expect(await processOf(box, spid)).toMatchObject({ state: "running", exit_code: null });
  // The head has the files, too.
  const head = await appliance.fetch(`/inspect/${(await box.get()).head}/download?path=/root/saved`);
  expect(await head.text()).toBe("saved\n");

  await appliance.down("SIGTERM");
  await appliance.up();
  await box.becomes("running", "resume?wait=60", {});
  expect(await say(box, spid, "after")).toBe(secret);
  await until("it counts on", async () => counted(await output(box, spid)) > last + 5);
  const now = await box.run("cat /proc/sys/kernel/random/boot_id; cat /root/saved; date +%s; hostname");
  const [bootNow, saved, seconds, hostname] = now.output.split("\n");
  expect([`${bootNow}\n`, saved, hostname]).toEqual([boot, "saved", "goes-on"]);
  expect(Math.abs(Number(seconds) - Date.now() / 1000)).toBeLessThan(30);
  expect(now.spid).toBeGreaterThan(spid);
  expect((await box.get()) as object).not.toHaveProperty("memory");
  await until("nothing is left of the image", () => directories().length === 0);

  // Its files lie on those of the first machine, and the states form one line.
  await box.run("echo later > /root/later");
  await box.becomes("paused", "pause?wait=60", {});
  await box.becomes("running", "resume?wait=60", {});
  expect((await box.run("cat /root/saved /root/later")).output).toBe("saved\nlater\n");
  expect((await box.states()).map(({ parent }) => parent)).toEqual([1, 0, null]);
  expect((await processOf(box, spid)).state).toBe("ended");
  await box.end();
});

describe("kept memory", () => {
  test("is compressed, and belongs to root alone; a fork of a continued sandbox has its files", async () => {
    const { box, spid } = await openCounter("modes");
    await box.becomes("paused", "pause?wait=60", { memory: true });
    const [name = ""] = directories();
    const directory = join(images(), name);
    expect(statSync(images()).mode & 0o777).toBe(0o700);
    expect(statSync(directory).mode & 0o777).toBe(0o700);
    await until("its memory is compressed", () => readdirSync(directory).includes("memory.zst"));
    await until("the plain memory is gone", () => !readdirSync(directory).includes("memory"));
    const own = readdirSync(directory).filter((file) => !file.startsWith("L"));
    expect(own.sort()).toEqual(["fork.json", "instance.json", "memory.zst", "scratch", "state"]);
    for (const file of own) expect([file, statSync(join(directory, file)).mode & 0o777]).toEqual([file, 0o600]);
    for (const file of own) expect([file, statSync(join(directory, file)).uid]).toEqual([file, 0]);
    const last = counted(await output(box, spid));
    // A request resumes it, too.
    expect((await box.run("echo file > /root/file; echo resumed")).output).toBe("resumed\n");
    await until("it counts on", async () => counted(await output(box, spid)) > last);
    const { status, body } = await box.post("fork?wait=60", { count: 1 });
    expect(status).toBe(201);
    const [fork] = body as unknown as { uuid: string }[];
    const child = new SandboxClient(appliance, fork?.uuid ?? "");
    expect((await child.run("cat /root/file")).output).toBe("file\n");
    await child.end();
    // Again, from the memory of a machine that continued.
    await box.becomes("paused", "pause?wait=60", { memory: true });
    const later = counted(await output(box, spid));
    await box.becomes("running", "resume?wait=60", { memory: true });
    await until("it counts on again", async () => counted(await output(box, spid)) > later);
    await box.end();
    await until("nothing is left", () => directories().length === 0);
  });

  test("of another host is not resumed and not lost; the files are there", async () => {
    const { box, spid } = await openCounter("foreign");
    await box.run("echo kept > /root/kept");
    await box.becomes("paused", "pause?wait=60", { memory: true });
    const path = join(images(), directories()[0] ?? "", "fork.json");
    const text = await readFile(path, "utf8");
    const foreign = JSON.parse(text);
    foreign.origin.qemu = "6.0.0 (other)";
    await writeFile(path, JSON.stringify(foreign));
    for (const memory of [{}, { memory: true }]) {
      const { status, body } = await box.post("resume?wait=60", memory);
      expect([status, body]).toMatchObject([409, { error: "not_resumable" }]);
      expect((body as { message: string }).message).toMatch(/QEMU 6.0.0 \(other\) saved its memory.*memory false/);
    }
    const { status } = await box.post("processes", { command: "true" });
    expect([status, (await box.get()).state]).toEqual([409, "paused"]);
    await writeFile(path, text);
    const last = counted(await output(box, spid));
    await box.becomes("running", "resume?wait=60", {});
    await until("it counts on", async () => counted(await output(box, spid)) > last);
    await box.becomes("paused", "pause?wait=60", { memory: true });
    await box.becomes("running", "resume?wait=60", { memory: false });
    expect((await box.run("cat /root/kept")).output).toBe("kept\n");
    expect((await processOf(box, spid)).state).toBe("lost");
    await until("nothing is left", () => directories().length === 0);
    expect((await box.post("resume", { memory: true })).status).toBe(409);
    await box.end();
  });

  test.each(["memory", "scratch", "instance.json", "fork.json", "L00"])(
    "whose file %s is damaged is not resumed; the files are there",
    async (file) => {
      const { box } = await openCounter(`damaged-${file.replace(".", "-").toLowerCase()}`);
      await box.run("echo kept > /root/kept");
      await box.becomes("paused", "pause?wait=60", { memory: true });
      const directory = join(images(), directories()[0] ?? "");
      await until("its memory is compressed", () => !readdirSync(directory).includes("memory"));
      const path = join(directory, file === "memory" ? "memory.zst" : file);
      if (file === "L00") await writeFile(`${path}.other`, "").then(() => rename(`${path}.other`, path));
      else if (file === "scratch") await truncate(path, 4096);
      else await flip(path);
      await box.post("resume?wait=60", {});
      await until("it is paused again", async () => (await box.get()).state === "paused");
      const { status, body } = await box.post("resume?wait=60", {});
      expect([status, body]).toMatchObject([409, { error: "not_resumable" }]);
      await box.becomes("running", "resume?wait=60", { memory: false });
      expect((await box.run("cat /root/kept")).output).toBe("kept\n");
      await box.end();
      await until("nothing is left", () => directories().length === 0);
    },
  );

  test("goes with the end of its sandbox, and with a rollback", async () => {
    const { box } = await openCounter("gone");
    await box.becomes("paused", "pause?wait=60", { memory: true });
    await box.becomes("paused", "rollback?wait=60", { image: "HEAD" });
    await until("nothing is left", () => directories().length === 0);
    await box.becomes("running", "resume?wait=60", {});
    await box.becomes("paused", "pause?wait=60", { memory: true });
    expect(directories()).toHaveLength(1);
    expect((await box.end()).status).toBe(200);
    await until("nothing is left", () => directories().length === 0);
  });

  test("is not kept during another copy, nor of a sandbox that is paused", async () => {
    const { box } = await openCounter("twice");
    const both = await Promise.all([
      box.post("pause?wait=60", { memory: true }),
      box.post("pause?wait=60", { memory: true }),
    ]);
    expect(both.map(({ status }) => status).sort()).toEqual([200, 409]);
    expect((await box.post("pause", { memory: true })).status).toBe(409);
    await box.end();
    await until("nothing is left", () => directories().length === 0);
  });
});

describe("a service that is killed", () => {
  test("while memory is being kept leaves a sandbox that runs, is paused or has failed, and nothing else", async () => {
    for (const delayMs of [100, 250, 400, 700]) {
      const { box, spid } = await openCounter(`killed-${delayMs}`);
      void box.post("pause?wait=60", { memory: true }).catch(() => undefined);
      await pause("the pause is under way", delayMs);
      await appliance.down("SIGKILL");
      await appliance.up();
      // A pause that was under way continues, without the memory.
      await until("its state is known", async () => (await box.get()).state !== "pausing" && (await isKnown(box)));
      const { state, memory } = (await box.get()) as unknown as { state: string; memory?: object };
      expect(["running", "paused", "failed"]).toContain(state);
      await until("only whole images are left", () => directories().length === (memory === undefined ? 0 : 1));
      const last = counted(await output(box, spid));
      if (state !== "running") await box.becomes("running", "resume?wait=60", {});
      const continues = state === "running" || memory !== undefined;
      if (continues) await until("it counts on", async () => counted(await output(box, spid)) > last);
      else expect((await processOf(box, spid)).state).not.toBe("running");
      await box.end();
      await until("nothing is left", () => directories().length === 0);
    }
  });

  test("while the machine stands still for that leaves the sandbox running", async () => {
    for (const name of ["held", "held-again"]) {
      const { box, spid } = await openCounter(name);
      void box.post("pause?wait=60", { memory: true }).catch(() => undefined);
      await until("the memory is being written", () => directories().length > 0);
      await appliance.down("SIGKILL");
      await appliance.up();
      await until("its state is known", () => isKnown(box));
      expect((await box.get()).state).toBe("running");
      const last = counted(await output(box, spid));
      await until("it counts on", async () => counted(await output(box, spid)) > last);
      await box.end();
      await until("nothing is left", () => directories().length === 0);
    }
  });

  test("while a sandbox continues leaves one that failed with its files, or is paused as before", async () => {
    for (const delayMs of [50, 150, 300]) {
      const { box, spid } = await openCounter(`resumed-${delayMs}`);
      await box.run("echo kept > /root/kept");
      await box.becomes("paused", "pause?wait=60", { memory: true });
      void box.post("resume?wait=60", {}).catch(() => undefined);
      await pause("the resume is under way", delayMs);
      await appliance.down("SIGKILL");
      await appliance.up();
      const { state } = await box.get();
      expect(["paused", "failed"]).toContain(state);
      await until("an image is there or not", () => directories().length === (state === "paused" ? 1 : 0));
      const last = counted(await output(box, spid));
      await box.becomes("running", "resume?wait=60", {});
      if (state === "paused") await until("it counts on", async () => counted(await output(box, spid)) > last);
      expect((await box.run("cat /root/kept")).output).toBe("kept\n");
      await box.end();
    }
  });
});

test("limits of the kept memory and of its time", async () => {
  await appliance.down("SIGTERM");
  await upWith("--limits-memory-images-bytes", "1M");
  const { box, spid } = await openCounter("full");
  const { status, body } = await box.post("pause?wait=60", { memory: true });
  expect([status, body]).toMatchObject([
    507,
    { error: "insufficient_storage", details: { limit: 1_048_576, used: 0 } },
  ]);
  expect((body as { details: { bytes: number } }).details.bytes).toBeGreaterThan(1_048_576);
  expect(directories()).toEqual([]);
  // It continues as if nothing had been.
  const last = counted(await output(box, spid));
  await until("it counts on", async () => counted(await output(box, spid)) > last + 3);
  await box.becomes("paused", "pause?wait=60", {});
  await appliance.down("SIGTERM");
  await appliance.up();
  await box.becomes("running", "resume?wait=60", {});
  await box.change({ pause_memory: true, timeout: 1 });
  await until("it pauses by itself", async () => (await box.get()).state === "paused");
  const paused = (await box.get()) as unknown as { memory?: object; state_changed_at: string };
  expect(paused).toHaveProperty("memory");
  await until("it is older than its time", () => Date.now() - Date.parse(paused.state_changed_at) > 1000);
  await appliance.down("SIGTERM");
  await upWith("--images-memory-ttl", "1s");
  await until("the memory has expired", () => directories().length === 0);
  expect(await box.get()).not.toHaveProperty("memory");
  await box.becomes("running", "resume?wait=60", {});
  await box.end();
});

/** True when a sandbox that ran at the end of the former service runs on, or does not. */
async function isKnown(box: SandboxClient): Promise<boolean> {
  if ((await box.get()).state !== "running") return true;
  const response = await appliance.fetch(`/sandboxes/${box.id}/events`, { headers: { accept: "application/json" } });
  return ((await response.json()) as { type: string }[]).some(({ type }) => type === "adopted");
}

/** Starts the service with other settings. */
async function upWith(...flags: readonly string[]): Promise<void> {
  const own = appliance.flags;
  appliance.flags = [...own, ...flags];
  await appliance.up();
  appliance.flags = own;
}

/** Changes one byte in the middle of a file. */
async function flip(path: string): Promise<void> {
  await using file = await open(path, "r+");
  const { size } = await file.stat();
  const at = Math.floor(size / 2);
  const { buffer } = await file.read(Buffer.alloc(1), 0, 1, at);
  buffer[0] = (buffer[0] ?? 0) ^ 1;
  await file.write(buffer, 0, 1, at);
}
