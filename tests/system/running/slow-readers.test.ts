/** Runs whose output a lossless client does not read, in real machines. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { stalledReader } from "../../support/api/stalled-reader.ts";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { parseExposition } from "../../support/exposition.ts";
import { type Body, names, resultOf, running } from "../../support/runs.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(180_000);

/** Runs until a process has written nothing for a second, although it has more to write. */
const UNTIL_STUCK = `stuck() {
  while :; do
    before=$(grep wchar /proc/$1/io); sleep 1
    [ "$(grep wchar /proc/$1/io)" = "$before" ] && [ "$before" != "wchar: 0" ] && return
  done
}`;

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let image: string;

beforeAll(async () => {
  ({ appliance, image } = owned.use(await BusyboxAppliance.start({ poolSize: 1 })));
});
afterAll(async () => {
  await owned.disposeAsync();
});

async function spawn(script: string, request: Body): Promise<string> {
  const id = await appliance.spawn({ image, command: `${UNTIL_STUCK}; ${script}`, shell: true, ...request });
  await running(appliance, id);
  await until("the command runs", async () => {
    return ((await (await appliance.fetch(`/instances/${id}/processes`)).json()) as Body[]).length === 1;
  });
  return id;
}

/** Starts an additional process. */
async function start(id: string, request: Body): Promise<number> {
  const answer = await appliance.post(`/instances/${id}/processes`, { shell: true, ...request });
  expect(answer.status).toBe(201);
  return ((await answer.json()) as { spid: number }).spid;
}

async function readersCount(): Promise<number | undefined> {
  const { value } = parseExposition(await (await fetch(`${appliance.url}/metrics`)).text());
  return value("coppice_clients", { doing: "read_lossless" });
}

async function lossless(id: string, spid = 1): Promise<Disposable> {
  await until("the readers of other tests have left", async () => (await readersCount()) === 0);
  const reader = await stalledReader(appliance, `/v1/instances/${id}`, spid);
  await until("it is attached", async () => (await readersCount()) === 1);
  return reader;
}

test("a command that ends before its time limit has its exit code and its image", async () => {
  const script = "read line; head -c 1000000000 /dev/zero & stuck $!; echo x > /root/kept; exit 4";
  const id = await spawn(script, { stdin_open: true, timeout: 20 });
  using _reader = await lossless(id);
  await appliance.post(`/instances/${id}/processes/1/stdin`, { content: "go\n" });
  const result = resultOf(await appliance.finished(id));
  expect([result.exit_code, result.timed_out]).toEqual([4, false]);
  expect(await names(appliance, String(result.image), "/root")).toEqual(["kept"]);
});

test("a command that reaches its time limit while it waits has an image", async () => {
  const id = await spawn("read line; echo x > /root/kept; cat /dev/zero", { stdin_open: true, timeout: 8 });
  using _reader = await lossless(id);
  await appliance.post(`/instances/${id}/processes/1/stdin`, { content: "go\n" });
  const result = resultOf(await appliance.finished(id));
  expect([result.exit_code, result.timed_out]).toEqual([137, true]);
  expect(await names(appliance, String(result.image), "/root")).toEqual(["kept"]);
});

test("an additional process delays neither the end of the command nor its image", async () => {
  const id = await spawn("echo x > /root/kept; read line", { stdin_open: true, timeout: 170 });
  const command = `${UNTIL_STUCK}; read line; head -c 1000000000 /dev/zero & stuck $!; echo stuck > /tmp/stuck; wait`;
  const spid = await start(id, { command, stdin_open: true });
  using _reader = await lossless(id, spid);
  await appliance.post(`/instances/${id}/processes/${spid}/stdin`, { content: "go\n" });
  const other = await start(id, { command: "until [ -e /tmp/stuck ]; do sleep 0.1; done" });
  const isStuck = async () => {
    const { state } = (await (await appliance.fetch(`/instances/${id}/processes/${other}`)).json()) as Body;
    return state === "ended";
  };
  await until("the reader holds it back", isStuck, 100_000);
  await appliance.post(`/instances/${id}/processes/1/stdin`, { content: "end\n", close: true });
  const result = resultOf(await appliance.finished(id));
  expect([result.exit_code, result.timed_out]).toEqual([0, false]);
  expect(await names(appliance, String(result.image), "/root")).toEqual(["kept"]);
  const ended = (await (await appliance.fetch(`/instances/${id}/processes/${spid}`)).json()) as Body;
  expect(ended).toMatchObject({ state: "ended", exit_code: 137 });
});
