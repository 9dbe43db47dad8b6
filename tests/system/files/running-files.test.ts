/** Files of running instances in real machines, by the client: compared with a local directory, long ones, and /proc. */
import { expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Client } from "../../../src/client/client.ts";
import { listFiles, readFile, statFile, writeFile } from "../../../src/client/guest-files.ts";
import { onceStarted } from "../../../src/client/operation-events.ts";
import { startProcess } from "../../../src/client/processes.ts";
import { BusyboxCommands } from "../../support/appliance/busybox-commands.ts";
import { residentMib } from "../../support/appliance/resident.ts";
import { compareRandomFiles } from "../../support/files/random-files.ts";
import { seededRandom, seedOfTests } from "../../support/random.ts";
import { until } from "../../support/waiting.ts";

/** COPPICE_TEST_FILE_OPERATIONS=10000 does as many as the acceptance of the interface asks for. */
const STEPS = Number(process.env["COPPICE_TEST_FILE_OPERATIONS"] ?? 1000);
const MIB = 1_048_576;
const LONG_MIB = 300;
/** Memory that the daemon may need for both directions, with what its runtime keeps. */
const GROWTH_MIB_MAX = 96;

setDefaultTimeout(240_000 + STEPS * 200);

const box = new BusyboxCommands();

/** A running instance of busybox that only waits, and a client. */
async function running() {
  const { appliance, image } = box;
  const client = new Client({ url: appliance.url, token: appliance.token });
  const id = await appliance.spawn({ image, command: "sleep", args: ["3000"], disposable: true, timeout: 3000 });
  const at = (path: string) => ({ place: { instance: id }, path });
  await onceStarted(client, id, () => statFile(client, at("/")));
  const end = async () => void (await client.call("DELETE", `/operations/${id}`));
  return { client, id, at, [Symbol.asyncDispose]: end };
}

test("random operations have the same outcomes as in a local directory", async () => {
  await using instance = await running();
  const local = mkdtempSync(join(tmpdir(), "coppice-random-files-"));
  using _removed = { [Symbol.dispose]: () => rmSync(local, { recursive: true }) };
  const { client, id, at } = instance;
  const run = async (command: string, args: string[]) => {
    const { spid } = await startProcess(client, id, { command, args });
    const state = async () => (await client.call("GET", `/instances/${id}/processes/${spid}`)).json();
    await until(`${command} has ended`, async () => ((await state()) as { state: string }).state === "ended");
  };
  await run("mkdir", ["/work"]);
  const succeeded = await compareRandomFiles({
    client,
    place: at("/").place,
    guest: "/work",
    local,
    // The shell gets the bytes of the path as octal escapes, because arguments are texts.
    link: async (target, path) => {
      const octal = Array.from(path, (byte) => `\\${byte.toString(8).padStart(3, "0")}`).join("");
      await run("sh", ["-c", `path="$(printf '${octal}x')"; ln -sn -- "${target}" "\${path%x}"`]);
    },
    random: seededRandom(seedOfTests()),
    steps: STEPS,
  });
  expect(succeeded).toBeGreaterThan(STEPS / 4);
});

test("long files pass in both directions, and the daemon keeps little of them", async () => {
  await using instance = await running();
  const { client, at } = instance;
  const before = residentMib(box.appliance.pid, "VmHWM");
  let sent = 0;
  const body = new ReadableStream<Uint8Array>(
    {
      pull(controller) {
        if (sent === LONG_MIB) return controller.close();
        sent += 1;
        controller.enqueue(new Uint8Array(MIB).fill(sent));
      },
    },
    { highWaterMark: 0 },
  );
  expect((await writeFile(client, at("/long"), body)).size).toBe(LONG_MIB * MIB);
  const response = await readFile(client, at("/long"));
  let bytes = 0;
  for await (const chunk of response.body ?? []) {
    const [first, last] = [bytes, bytes + chunk.byteLength - 1].map((at) => (Math.floor(at / MIB) + 1) & 0xff);
    if (chunk[0] !== first || chunk.at(-1) !== last) throw new Error(`other bytes at ${bytes}`);
    bytes += chunk.byteLength;
  }
  expect(bytes).toBe(LONG_MIB * MIB);
  expect(residentMib(box.appliance.pid, "VmHWM") - before).toBeLessThan(GROWTH_MIB_MAX);
});

test("files of /proc are read to their end, and a directory of many entries is listed", async () => {
  await using instance = await running();
  const { client, id, at } = instance;
  // The process that reads is not in the sandbox's namespace of processes, so there is no /proc/self.
  const mounts = await (await readFile(client, at("/proc/1/mounts"))).text();
  expect(mounts).toContain("overlay / overlay ");
  const ranged = await readFile(client, at("/proc/1/mounts"), { start: 2, end: 4 });
  expect(ranged.status).toBe(200);
  await startProcess(client, id, {
    command: "mkdir /many && cd /many && seq 1 5000 | xargs touch && touch /done",
    shell: true,
  });
  const isDone = () =>
    statFile(client, at("/done")).then(
      () => true,
      () => false,
    );
  await until("the files exist", isDone, 120_000);
  let count = 0;
  for await (const entry of listFiles(client, at("/many"))) if (entry.type === "file") count += 1;
  expect(count).toBe(5000);
});
