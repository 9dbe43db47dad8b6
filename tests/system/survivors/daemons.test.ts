/** More than one daemon for one data directory: one that hangs, one that is started in addition, and two at once. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import type { OperationId } from "../../../src/domain/ids.ts";
import { eventLogPath } from "../../../src/storage/events/event-file.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import { DIE_WITH_PARENT } from "../../../src/system/exec.ts";
import { type Appliance, text } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { programWords } from "../../support/cli/cli-process.ts";
import { eventsOf, outputOf } from "../../support/event-client.ts";
import type { Body } from "../../support/runs.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(180_000);

const LINES_COUNT = 250;
const LINES = Array.from({ length: LINES_COUNT }, (_, at) => `line ${at + 1}\n`).join("");
const TALK = `i=0; while [ $i -lt ${LINES_COUNT} ]; do i=$((i+1)); echo line $i; sleep 0.01; done`;

const owned = new AsyncDisposableStack();
let appliance: Appliance;
beforeAll(async () => {
  ({ appliance } = owned.use(await BusyboxAppliance.start({ poolSize: 0, tag: "busybox" })));
});
afterAll(() => owned.disposeAsync());

/** A daemon on the data directory that the test itself starts. */
function serve() {
  const argv = [
    ...DIE_WITH_PARENT,
    ...programWords(),
    "serve",
    "--config",
    appliance.configFile,
    "--log-format",
    "json",
  ];
  const environment = { PATH: process.env["PATH"] ?? "", HOME: "/root" };
  const child = Bun.spawn(argv, { env: environment, stdin: "ignore", stdout: "ignore", stderr: "pipe" });
  const listening = Promise.withResolvers<boolean>();
  let log = "";
  const read = async () => {
    for await (const chunk of child.stderr) {
      log += Buffer.from(chunk).toString();
      if (log.includes('"message":"listening"')) listening.resolve(true);
    }
    listening.resolve(false);
  };
  void read();
  return { child, listens: listening.promise, log: () => log };
}

/** The files and processes that only a daemon changes. */
async function facts(id: string) {
  const vms = join(appliance.dataDir, "vms");
  const machines = (await readdir(vms)).sort();
  const records = await Promise.all(machines.map((name) => readFile(join(vms, name, "machine.json"), "utf8")));
  const log = await readFile(eventLogPath(dataLayout(appliance.dataDir), id as OperationId));
  return { machines, records, pids: (await appliance.machinePids()).sort(), log };
}

test("one that hangs keeps its data from others, and is replaced when it is killed: nothing is lost", async () => {
  const id = await appliance.spawn({ image: "tag:busybox", command: TALK, shell: true, truncate_output_at: 1_000_000 });
  await until("it prints", async () => outputOf(await eventsOf(appliance, id), 1, "stdout").length > 500);
  process.kill(appliance.pid, "SIGSTOP");
  const before = await facts(id);
  expect(before.pids).toHaveLength(2);
  const second = serve();
  expect([await second.listens, await second.child.exited]).toEqual([false, 1]);
  expect(second.log()).toContain("is in use by another daemon");
  expect(await facts(id)).toEqual(before);

  await appliance.down("SIGKILL");
  await appliance.up();
  const operation = await appliance.finished(id);
  const result = operation.result as unknown as Body;
  expect([operation.status, text(result["stdout"]) === LINES]).toEqual(["SUCCESS", true]);
  const types = (await eventsOf(appliance, id)).map(({ type }) => type);
  expect([types.filter((type) => type === "adopted").length, types.filter((type) => type === "exit").length]).toEqual([
    1, 1,
  ]);
});

test("of two that start at once after a kill, one continues the machine, and the other ends", async () => {
  const id = await appliance.spawn({ image: "tag:busybox", command: TALK, shell: true, truncate_output_at: 1_000_000 });
  await until("it prints", async () => outputOf(await eventsOf(appliance, id), 1, "stdout").length > 500);
  await appliance.down("SIGKILL");
  const daemons = [serve(), serve()];
  const listening = await Promise.all(daemons.map(({ listens }) => listens));
  expect(listening.toSorted()).toEqual([false, true]);
  const [winner, other] = listening[0] === true ? daemons : daemons.toReversed();
  expect([await other?.child.exited, other?.log()]).toEqual([
    1,
    expect.stringContaining("is in use by another daemon"),
  ]);
  expect(await appliance.machinePids()).toHaveLength(2);
  winner?.child.kill("SIGKILL");
  await winner?.child.exited;
  await appliance.up();
  const operation = await appliance.finished(id);
  const result = operation.result as unknown as Body;
  expect([operation.status, text(result["stdout"]) === LINES]).toEqual(["SUCCESS", true]);
  await until("nothing is left", async () => (await appliance.leftovers()).length === 0);
});
