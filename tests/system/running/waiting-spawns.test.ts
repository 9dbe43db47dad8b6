import { afterAll, beforeAll, expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { type Appliance, text } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { until } from "../../support/waiting.ts";

const COUNT = 30;
const STDIN_BYTES = 10_485_760;
/** Additional memory of the daemon with all of them waiting: a tenth of their standard input. */
const WAITING_MIB_MAX = 30;
/** While they are received: a few times the size of those that are received at the same time. */
const RECEIVING_MIB_MAX = 400;
/** A daemon that starts with all of them waiting, 300 MiB, and runs one; one that has run nothing uses about 85. */
const RESTARTED_MIB_MAX = 130;

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let image: string;

beforeAll(async () => {
  ({ appliance, image } = owned.use(await BusyboxAppliance.start({ poolSize: 0, flags: ["--vm-cpu-budget", "1"] })));
}, 120_000);

afterAll(async () => {
  await owned.disposeAsync();
}, 60_000);

/** A line of the daemon's status, in MiB. */
function mib(name: "VmRSS" | "VmHWM"): number {
  const status = readFileSync(`/proc/${appliance.pid}/status`, "utf8");
  return Math.round(Number(new RegExp(`^${name}:\\s+(\\d+)`, "m").exec(status)?.[1]) / 1024);
}

const pending = async () =>
  (await appliance.fetch("/operations?status=PENDING&limit=100")).json() as Promise<{ id: string }[]>;
const kept = () => readdir(join(appliance.dataDir, "requests"));

test("waiting spawns with large standard inputs are on the disk, not in memory, before and after a restart", async () => {
  const blocker = await appliance.spawn({ image, command: "sleep 600", shell: true, timeout: 600 });
  await until("the budget is taken", async () => (await pending()).length === 0);
  const beforeMib = mib("VmRSS");
  // 5 resets the high-water mark.
  writeFileSync(`/proc/${appliance.pid}/clear_refs`, "5");
  const stdin = `base64:${Buffer.alloc(STDIN_BYTES, 7).toString("base64")}`;
  const request = { image, command: "sha256sum", shell: true, disposable: true, stdin };
  const ids = await Promise.all(Array.from({ length: COUNT }, () => appliance.spawn(request)));
  expect(mib("VmHWM")).toBeLessThan(RECEIVING_MIB_MAX);
  await until("the memory is given back", () => mib("VmRSS") <= beforeMib + WAITING_MIB_MAX);
  expect(await pending()).toHaveLength(COUNT);
  expect((await kept()).sort()).toEqual(ids.toSorted());

  await appliance.down("SIGKILL");
  await appliance.up();
  expect(await pending()).toHaveLength(COUNT);
  expect(mib("VmHWM")).toBeLessThan(RESTARTED_MIB_MAX);
  // It has outlived the service, and holds the budget.
  await appliance.fetch(`/operations/${blocker}`, { method: "DELETE" });
  expect(await appliance.finished(blocker)).toMatchObject({ status: "CANCELLED" });

  const [first = "", ...others] = ids;
  const hash = new Bun.CryptoHasher("sha256").update(Buffer.alloc(STDIN_BYTES, 7)).digest("hex");
  const { result } = await appliance.finished(first);
  expect(text(result?.["stdout"])).toBe(`${hash}  -\n`);
  for (const id of others) await appliance.fetch(`/operations/${id}`, { method: "DELETE" });
  for (const id of others) await appliance.finished(id);
  await until("nothing of the requests is left", async () => (await kept()).length === 0);
  expect(mib("VmHWM")).toBeLessThan(RESTARTED_MIB_MAX);
}, 240_000);
