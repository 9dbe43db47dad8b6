/** The network of instances, from programs in real machines through the connecting process to servers on the loopback. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readFile } from "node:fs/promises";
import type { NetworkAudit, NetworkEntry } from "../../../src/domain/network.ts";
import { cgroupNamespace } from "../../../src/supervisor/machines/cgroups.ts";
import { Appliance, type Finished, processesWith, text } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import type { Registry } from "../../support/images/registry.ts";
import { http, Outside, type OutsideServer, silent } from "../../support/outside.ts";
import { type Body, resultOf, running } from "../../support/runs.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(240_000);

const MIB = 1_048_576;
const NAME = "www.site.test";
const OTHER = "other.site.test";

const owned = new AsyncDisposableStack();
let outside: Outside;
let web: OutsideServer;
let registry: Registry;
let appliance: Appliance;
let image: string;
let reference: string;

const flags = (...more: readonly string[]): string[] => [
  ...["--network-allow", "*.site.test:* 192.0.2.1:22", "--network-private", "127.0.0.0/8", "--network-record", "true"],
  ...["--network-resolvers", outside.names.address, ...more],
];

beforeAll(async () => {
  outside = owned.use(await Outside.start(NAME, OTHER));
  web = await outside.serve(http((path) => (path === "/big" ? Buffer.alloc(3 * MIB, "x") : `you asked for ${path}\n`)));
  ({ appliance, image, registry, reference } = owned.use(
    await BusyboxAppliance.start({ poolSize: 1, flags: flags() }),
  ));
});

afterAll(async () => {
  await owned.disposeAsync();
});

/** The network of most tests. */
const allowing = (...hosts: readonly string[]): Body => ({
  network: { allow: hosts.map((host) => ({ host, ports: "*" })) },
});

async function run(command: string, network: Body = allowing(NAME), more: Body = {}): Promise<Finished> {
  return await appliance.run(image, command, { disposable: true, timeout: 120, ...network, ...more });
}

const outputOf = (operation: Finished) => text(resultOf(operation)["stdout"]) + text(resultOf(operation)["stderr"]);

/** The network entries of an operation. */
function entriesOf(operation: Finished): NetworkEntry[] {
  const { network } = (operation.result ?? operation) as unknown as { network: NetworkAudit };
  return [...network.entries];
}
const entryLine = ({ verdict, host, port }: NetworkEntry) => `${verdict} ${host}:${port}`;

/** Makes descriptor 3 an input that has no bytes and no end. */
const QUIET = "mkfifo /tmp/quiet; exec 3<>/tmp/quiet";

/** Prints the exit code of a command, and the seconds that it took: without an answer a connect takes two minutes. */
const timed = (command: string) => `s=$(date +%s); ${command}; echo "code $? in $(( $(date +%s) - s ))"`;

describe("a program", () => {
  test("reaches a server by its name, and the operation reports what was reached", async () => {
    const id = await appliance.spawn({
      ...{ image, command: `wget -q -O - http://${NAME}:${web.port}/hello`, shell: true, disposable: true },
      ...allowing(NAME),
    });
    const operation = await appliance.finished(id);
    expect(outputOf(operation)).toBe("you asked for /hello\n");
    const [entry, ...more] = entriesOf(operation);
    expect(more).toEqual([]);
    expect(entry).toMatchObject({
      host: NAME,
      port: web.port,
      verdict: "allowed",
      connections: 1,
      addresses: ["127.0.0.1"],
    });
    expect(entry?.bytes_sent).toBeGreaterThan(20);
    expect(entry?.bytes_received).toBeGreaterThan(60);
    const events = (await (
      await appliance.fetch(`/operations/${id}/events`, { headers: { accept: "application/json" } })
    ).json()) as { type: string; data: unknown }[];
    expect(events.filter(({ type }) => type === "network").map(({ data }) => data)).toEqual([
      { host: NAME, port: null, verdict: "allowed" },
      { host: NAME, port: web.port, verdict: "allowed" },
    ]);
  });

  test("receives large answers and sends large requests completely", async () => {
    const sink = await outside.serve((socket) => {
      let bytes = 0;
      socket.on("data", (chunk) => {
        bytes += chunk.length;
      });
      socket.on("end", () => socket.end(`${bytes}\n`));
    });
    const get = `wget -q -O - http://${NAME}:${web.port}/big | wc -c`;
    const send = `head -c ${2 * MIB} /dev/zero | nc ${NAME} ${sink.port}`;
    const operation = await run(`${get}; ${send}`);
    expect(outputOf(operation).split("\n").map(Number)).toEqual([3 * MIB, 2 * MIB, 0]);
    const sent = entriesOf(operation).find(({ port }) => port === sink.port);
    expect(sent).toMatchObject({ bytes_sent: 2 * MIB, bytes_received: 8 });
  });

  test("sees each refusal at once, as from a real network", async () => {
    const closed = await outside.serve(() => undefined);
    const { port } = closed;
    await closed[Symbol.asyncDispose]();
    const count = outside.names.queries.length;
    const operation = await run(
      [
        timed(`wget -q -O - http://denied.test:${web.port}/`),
        timed(`wget -q -O - http://gone.site.test:${web.port}/`),
        timed(`nc ${NAME} ${port} </dev/null`),
        timed(`nc 127.0.0.9 ${web.port} </dev/null`),
        timed(`nc 192.0.2.1 ${web.port} </dev/null`),
      ].join("\n"),
      allowing("*.site.test"),
    );
    const output = outputOf(operation);
    expect(output).toContain("refused");
    expect(output.match(/code [1-9]\d* in \d{1,2}\n/g)).toHaveLength(5);
    // The loopback of the guest is its own.
    expect(entriesOf(operation).map(entryLine)).toEqual([
      ...["denied denied.test:null", "no_such_name gone.site.test:null"],
      ...[`refused ${NAME}:${port}`, `denied 192.0.2.1:${web.port}`],
    ]);
    // A name that no rule allows is not looked up.
    expect(outside.names.queries.slice(count)).not.toContain("denied.test");
    // The log arrives through a pipe, and may be read later than the answer.
    const denials = () => appliance.log.split("\n").filter((line) => line.includes("was denied a connection"));
    await until("both denials are logged", () => denials().some((line) => line.includes("192.0.2.1")));
    expect(
      denials()
        .map((line) => JSON.parse(line)["host"])
        .slice(-2),
    ).toEqual(["denied.test", "192.0.2.1"]);
  });

  test("sees a reset", async () => {
    const resetting = await outside.serve((socket) => socket.once("data", () => socket.resetAndDestroy()));
    const operation = await run(`wget -O - http://${NAME}:${resetting.port}/`);
    expect(outputOf(operation)).toContain("onnection reset");
  });

  test("opens 200 connections at once", async () => {
    const waiting = await outside.serve((socket) => {
      socket.on("data", () => undefined);
      if (waiting.openCount < 200) return;
      for (const each of waiting.sockets) each.end("all\n");
    });
    const command = `for i in $(seq 200); do nc ${NAME} ${waiting.port} <&3 >/tmp/$i & done; wait; cat /tmp/[0-9]* | grep -c all`;
    const operation = await run(`${QUIET}; ${command}`);
    expect(outputOf(operation)).toBe("200\n");
    expect(entriesOf(operation)).toMatchObject([{ verdict: "allowed", connections: 200, bytes_received: 800 }]);
  });

  test("is recorded, with the rules that would have been enough", async () => {
    const operation = await run(`wget -q -O - http://${NAME}:${web.port}/a; wget -q -O - http://denied.test/`, {
      network: { record: true },
    });
    const { network } = operation.result as unknown as { network: NetworkAudit };
    expect(network.policy).toEqual([{ host: NAME, ports: [web.port] }]);
    const again = await run(`wget -q -O - http://${NAME}:${web.port}/b`, { network: { allow: network.policy } });
    expect(outputOf(again)).toBe("you asked for /b\n");
  });

  test("without a network reaches nothing, and no name is looked up", async () => {
    const count = outside.names.queries.length;
    const operation = await run(`${timed(`nc 203.0.113.1 80 </dev/null`)}\n${timed(`wget -O - http://${NAME}/`)}`, {});
    expect(outputOf(operation).match(/code [1-9]\d* in \d{1,2}\n/g)).toHaveLength(2);
    expect(outputOf(operation)).toContain("unreachable");
    expect(operation.result).not.toHaveProperty("network");
    expect(outside.names.queries).toHaveLength(count);
  });
});

test("an additional process has the same network, and a checkpoint during its download does no harm", async () => {
  const rest = Promise.withResolvers<void>();
  const slow = await outside.serve((socket) => {
    socket.write(`HTTP/1.0 200 OK\r\nContent-Length: ${MIB}\r\n\r\n`);
    socket.write(Buffer.alloc(MIB / 2));
    void rest.promise.then(() => socket.end(Buffer.alloc(MIB / 2)));
    socket.resume();
  });
  const command = `until [ -e /over ]; do sleep 0.2; done; cat /over`;
  const id = await appliance.spawn({ image, command, shell: true, timeout: 120, ...allowing(NAME) });
  await running(appliance, id);
  await until("the command runs", async () => (await appliance.fetch(`/instances/${id}/processes/1`)).ok);
  const download = `wget -q -O /part http://${NAME}:${slow.port}/; wc -c </part >/done; mv /done /over`;
  const started = await appliance.post(`/instances/${id}/processes`, { command: download, shell: true });
  expect(started.status).toBe(201);
  await until("the download runs", () => slow.sockets.length > 0);
  const { uuid } = (await (await appliance.post(`/instances/${id}/checkpoint`, {})).json()) as { uuid: string };
  const checkpoint = await appliance.finished(uuid);
  rest.resolve();
  const operation = await appliance.finished(id);
  expect(outputOf(operation)).toBe(`${MIB}\n`);
  expect(entriesOf(operation)).toMatchObject([{ verdict: "allowed", connections: 1 }]);
  // The image of a run with a network works without one, and contains nothing of it.
  const images = [checkpoint, operation].map((each) => (each.result as unknown as { image: string }).image);
  for (const each of images) {
    const after = await appliance.run(each, `ls -A /etc; nc 203.0.113.1 80 </dev/null`, { disposable: true });
    expect(outputOf(after)).not.toContain("resolv.conf");
    expect(outputOf(after)).toContain("unreachable");
  }
});

test("a connection that carries nothing for too long, or too many bytes in all, is reset", async () => {
  const limits = ["--network-idle", "5s", "--network-bytes-max", "8MiB"];
  await using limited = await Appliance.start({ registries: [registry.host], flags: flags(...limits), poolSize: 0 });
  const quiet = await outside.serve(silent);
  const get = `wget -q -O - http://${NAME}:${web.port}/big | wc -c`;
  const operation = await limited.run(
    await limited.importImage(reference),
    `${QUIET}; ${timed(`nc ${NAME} ${quiet.port} <&3`)}; for i in 1 2 3 4; do ${get}; done`,
    { disposable: true, timeout: 120, ...allowing(NAME) },
  );
  const out = text(resultOf(operation).stdout);
  expect(out).toMatch(/^code \d+ in \d{1,2}\n/);
  await until("the connection is closed", () => quiet.openCount === 0);
  const [first, second, third, fourth] = out.match(/^\d+$/gm)?.map(Number) ?? [];
  expect([first, second, fourth]).toEqual([3 * MIB, 3 * MIB, 0]);
  expect(third).toBeLessThan(2 * MIB);
  expect(entriesOf(operation).map(({ verdict }) => verdict)).toEqual(["allowed", "allowed", "limited"]);
});

describe("an instance with an open connection", () => {
  /** An instance with an open connection to a server that sends nothing. */
  async function connected(): Promise<{ id: string; server: OutsideServer }> {
    const server = await outside.serve(silent);
    const command = `${QUIET}; nc ${NAME} ${server.port} <&3; wget -q -O - http://${NAME}:${web.port}/after`;
    const id = await appliance.spawn({
      image,
      command,
      shell: true,
      disposable: true,
      timeout: 120,
      ...allowing(NAME),
    });
    await running(appliance, id);
    await until("the server has a connection", () => server.openCount === 1);
    return { id, server };
  }

  test("that is cancelled leaves no connection, and keeps its audit", async () => {
    const { id, server } = await connected();
    expect((await appliance.fetch(`/operations/${id}`, { method: "DELETE" })).status).toBeLessThan(300);
    const operation = await appliance.finished(id);
    expect(operation.status).toBe("CANCELLED");
    expect(entriesOf(operation).map(entryLine)).toEqual([`allowed ${NAME}:${server.port}`]);
    await until("the connection is closed", () => server.openCount === 0);
  });

  test("does not end with the connecting process: its connections are reset, and later ones work", async () => {
    const { id, server } = await connected();
    const gate = await gatePid();
    process.kill(gate, "SIGKILL");
    const operation = await appliance.finished(id);
    expect(outputOf(operation)).toContain("you asked for /after\n");
    await until("the connection is closed", () => server.openCount === 0);
    expect(await gatePid()).not.toBe(gate);
  });

  test("loses its connection when the daemon is killed, and no connecting process is left", async () => {
    const { id, server } = await connected();
    await appliance.down("SIGKILL");
    await until("the connection is closed", () => server.openCount === 0);
    await appliance.up();
    // The next daemon has the instance, whose program sees that its connection is closed.
    expect((await appliance.finished(id)).status).toBe("SUCCESS");
    const again = await run(`wget -q -O - http://${NAME}:${web.port}/again`);
    expect(outputOf(again)).toBe("you asked for /again\n");
    expect(await gatePids()).toHaveLength(1);
  });
});

/** Processes that connect for this appliance. */
async function gatePids(): Promise<number[]> {
  const namespace = cgroupNamespace(appliance.dataDir);
  const programs = (await processesWith("/program")).filter(({ argv }) => argv.startsWith("/program "));
  const groups = await Promise.all(programs.map(({ pid }) => readFile(`/proc/${pid}/cgroup`, "utf8").catch(() => "")));
  return programs.filter((_, index) => groups[index]?.includes(namespace)).map(({ pid }) => pid);
}

async function gatePid(): Promise<number> {
  const [pid] = await gatePids();
  if (pid === undefined) throw new Error("nothing connects");
  return pid;
}
