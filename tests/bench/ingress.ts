import { join } from "node:path";
import { interleaved, timed } from "../../src/cli/bench/measure.ts";
import { type Finding, rowOf } from "../../src/cli/bench/row.ts";
import { exec } from "../../src/cli/bench/running.ts";
import { startProcess } from "../../src/client/processes.ts";
import { freePort } from "../support/free-port.ts";
import { uploadProgram } from "../support/runs.ts";
import { until } from "../support/waiting.ts";
import { BenchHost, FLAGS } from "./host.ts";

const MEGABYTE = 1_000_000;
const PROGRAM = "/usr/bin/traffic";
const GUEST_PORT = 8080;

/** HTTP from outside to a program of a sandbox, against the standard output of the same sandbox. */
export async function* ingressRows({ quick }: BenchHost): AsyncGenerator<Finding> {
  const port = await freePort();
  await using host = await BenchHost.start(quick, { flags: [...FLAGS, "--ingress-listen", `127.0.0.1:${port}`] });
  const { appliance, target } = host;
  const source = await Bun.file(join(import.meta.dir, "../support/network/traffic.c")).text();
  const { uuid: sandbox } = await target.open({
    files: { [PROGRAM]: { uuid: await uploadProgram(appliance, "traffic", source), mode: "0755" } },
  });
  const place = { sandbox };
  const headers = { host: `${GUEST_PORT}-${sandbox}.localhost:${port}`, "x-access-token": appliance.token };
  const get = (bytes: number) => fetch(`http://127.0.0.1:${port}/bytes/${bytes}`, { headers });
  await startProcess(target.client, place, { command: `exec ${PROGRAM} serve ${GUEST_PORT}`, shell: true });
  await until("the server of the guest answers", async () => (await get(1)).status === 200);
  await target.poolFull();

  const bytes = (quick ? 50 : 100) * MEGABYTE;
  const rate = async (work: () => Promise<void>): Promise<number> => bytes / MEGABYTE / ((await timed(work)) / 1000);
  const download = async (): Promise<void> => {
    const response = await get(bytes);
    let count = 0;
    for await (const chunk of response.body ?? []) count += chunk.byteLength;
    if (count !== bytes) throw new Error(`the ingress answered ${response.status} with ${count} bytes of ${bytes}`);
  };
  const values = await interleaved(target.rounds(9, 3), {
    ingress: () => rate(download),
    stdout: () => rate(() => exec(target, place, `${PROGRAM} write ${bytes}`)),
  });
  await target.end(sandbox);
  yield rowOf({
    name: `${bytes / MEGABYTE} MB over HTTP from outside, out of a sandbox`,
    from: "request to the ingress, sent",
    to: "last byte read",
    values: values.ingress,
    unit: "MB/s",
    against: { name: "the same bytes by standard output", values: values.stdout },
    atLeast: 0.9,
  });
}
