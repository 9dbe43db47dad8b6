import { afterEach, beforeEach, describe, expect, spyOn, test } from "bun:test";
import { type CliOptions, cli, errorReply, ScriptedAppliance, type ScriptedSocket } from "../../support/cli/cli.ts";
import { pause, until } from "../../support/waiting.ts";

const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";
const Channel = { stdout: 1, stderr: 2, status: 3, resize: 4 } as const;
const LOST = "coppice: the connection is lost; trying to reconnect\n";

let appliance: ScriptedAppliance;
/** what the appliance does with each connection, in their order; the last one is for all further ones */
let connections: ((socket: ScriptedSocket) => void | Promise<void>)[];
let process: Record<string, unknown>;
let status: string;

beforeEach(() => {
  appliance = new ScriptedAppliance();
  process = { spid: 2, stdout: { content: "", encoding: "ascii" } };
  status = "EXECUTING";
  appliance.answer = ({ method, path }) => {
    if (method === "POST") return Response.json({ spid: 2 }, { status: 201 });
    if (path === `/instances/${ID}/processes/2`) return Response.json(process);
    if (!path.startsWith(`/operations/${ID}`)) return undefined;
    return Response.json({ id: ID, kind: "instance", status });
  };
  appliance.onSocket = (socket) => {
    const serve = connections.length > 1 ? connections.shift() : connections[0];
    void serve?.(socket);
  };
});
afterEach(() => appliance[Symbol.asyncDispose]());

const coppice = (argv: readonly string[], options: CliOptions = {}) =>
  cli(argv, { environment: appliance.environment, ...options });
const attach = (options: CliOptions = {}) => coppice(["attach", ID, "2"], options);

function send(socket: ScriptedSocket, channel: number, bytes: string): void {
  socket.send(Buffer.from(`${String.fromCharCode(channel)}${bytes}`, "latin1"));
}
const tell = (socket: ScriptedSocket, content: object) => send(socket, Channel.status, JSON.stringify(content));

function finish(socket: ScriptedSocket, exitCode: number): void {
  tell(socket, { exit_code: exitCode, signal: null });
  socket.close(1000);
}

/** Queries of the attachments so far. */
const queries = () =>
  appliance.seen.flatMap(({ path }) => (path.includes("/attach") ? [path.slice(path.indexOf("?") + 1)] : []));

describe("a connection that is lost", () => {
  test("is made again, and continues without a gap or a duplicate", async () => {
    connections = [
      (socket) => {
        send(socket, Channel.stdout, "one ");
        send(socket, Channel.stderr, "err");
        tell(socket, { position: 7 });
        send(socket, Channel.stdout, "two ");
        socket.close(1001);
      },
      // One that is lost before there is anything new.
      (socket) => {
        send(socket, Channel.stdout, "tw");
        socket.close(1001);
      },
      (socket) => {
        send(socket, Channel.stdout, "two three ");
        tell(socket, { position: 9 });
        socket.terminate();
      },
      (socket) => {
        send(socket, Channel.stderr, "or");
        finish(socket, 4);
      },
    ];
    const { code, stdout, stderr } = await attach();
    expect([code, stdout.toString(), stderr]).toEqual([4, "one two three ", `err${LOST.repeat(3)}or`]);
    expect(queries()).toEqual(
      ["", ...Array(2).fill("since=7&"), "since=9&"].map((since) => `lossless=false&${since}positions=true`),
    );
  });

  test("of exec continues after the printed output, and reports the bytes that were not kept", async () => {
    connections = [
      (socket) => {
        send(socket, Channel.stdout, "0123456789");
        socket.close(1001);
      },
      (socket) => {
        send(socket, Channel.stdout, "0123");
        tell(socket, { dropped: { stream: "stdout", bytes: 9 } });
        send(socket, Channel.stdout, "rest");
        finish(socket, 0);
      },
    ];
    const { code, stdout, stderr } = await coppice(["exec", ID, "--", "job"]);
    expect([code, stdout.toString()]).toEqual([0, "0123456789rest"]);
    expect(stderr).toBe(`${LOST}coppice: 3 bytes of stdout were not stored\n`);
    expect(queries()).toEqual(["lossless=true", "lossless=true"]);
  });

  test("is not made again when the instance has ended, or the appliance refuses it", async () => {
    connections = [
      (socket) => {
        send(socket, Channel.stdout, "x");
        status = "FAILED";
        socket.terminate();
      },
      (socket) => void socket.terminate(),
    ];
    const ended = await attach();
    expect([ended.code, ended.stderr]).toEqual([125, `${LOST}coppice attach: instance ${ID} has ended (FAILED)\n`]);
    expect(queries()).toHaveLength(2);

    status = "EXECUTING";
    const refused = () => errorReply(401, "unauthorized", "the token has expired");
    connections = [
      (socket) => {
        appliance.onSocket = null;
        const { answer } = appliance;
        appliance.answer = (request) => (request.path.includes("/attach") ? refused() : answer(request));
        socket.terminate();
      },
    ];
    const { code, stderr } = await attach();
    expect([code, stderr]).toEqual([125, expect.stringContaining("the token has expired")]);
  });

  test("is made again once the appliance has noticed that the one before is gone", async () => {
    connections = [(socket) => void socket.terminate()];
    const answers = [429, 503];
    const { answer } = appliance;
    const accept = appliance.onSocket;
    let first = true;
    appliance.onSocket = (socket) => {
      accept?.(socket);
      if (first) appliance.onSocket = null;
      first = false;
    };
    appliance.answer = (request) => {
      if (!request.path.includes("/attach")) return answer(request);
      const refusal = answers.shift() ?? 503;
      if (answers.length === 0) {
        connections = [(socket) => finish(socket, 0)];
        appliance.onSocket = accept;
      }
      return errorReply(refusal, "too_many_requests", "again");
    };
    expect((await attach()).code).toBe(0);
    expect(queries()).toHaveLength(4);
  });
});

test("a connection that stays lost ends after a minute, with the command to return to it", async () => {
  const { now } = performance;
  let skippedMs = 0;
  using _clock = spyOn(performance, "now").mockImplementation(() => now.call(performance) + skippedMs);
  const { answer } = appliance;
  appliance.answer = async (request) => {
    if (request.path.includes("wait=")) await pause("the end does not come", 100);
    if (!request.path.includes("/attach")) return await answer(request);
    // Each try takes longer than a good connection has to last.
    skippedMs += 20_000;
    return errorReply(503, "unavailable", "it starts");
  };
  connections = [
    (socket) => {
      appliance.onSocket = null;
      socket.terminate();
    },
  ];
  const { code, stderr } = await attach();
  const end = `coppice attach: the connection is lost; coppice attach ${ID} 2 comes back to process 2\n`;
  expect([code, stderr]).toEqual([125, `${LOST}${end}`]);
  // After a failed handshake, a request gets the reason.
  expect(queries().length).toBeLessThan(12);
});

test("a terminal gets no queries in repeated output, and its size on every connection", async () => {
  const query = "\x1b[6n";
  process = { ...process, pty: { rows: 1, cols: 1 }, stdout: { content: `a${query}b`, encoding: "ascii" } };
  const size = { rows: 30, cols: 90 };
  const keys = { size: () => size, raw: () => ({ [Symbol.dispose]: () => undefined }) };
  const sizes = () => appliance.messages.filter(([channel]) => channel === Channel.resize).length;
  connections = [
    async (socket) => {
      send(socket, Channel.stdout, `a${query}b`);
      tell(socket, { position: 1 });
      send(socket, Channel.stdout, `live${query}`);
      tell(socket, { position: 2 });
      await until("its size", () => sizes() === 1);
      socket.terminate();
    },
    async (socket) => {
      send(socket, Channel.stdout, query);
      await until("its size", () => sizes() === 2);
      finish(socket, 0);
    },
  ];
  const { code, stdout } = await attach({ keys, stdin: never });
  expect([code, stdout.toString()]).toEqual([0, `ablive${query}${query}`]);
});

/** Standard input without any input. */
async function* never(signal?: AbortSignal): AsyncGenerator<Uint8Array> {
  await new Promise<void>((resolve) => signal?.addEventListener("abort", () => resolve()));
}
