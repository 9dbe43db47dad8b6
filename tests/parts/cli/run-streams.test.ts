import { afterEach, beforeEach, describe, expect, spyOn, test } from "bun:test";
import { outputObject } from "../../../src/api/v1/schema/operations.ts";
import { type CliOptions, cli, errorReply, ScriptedAppliance, type ScriptedSocket } from "../../support/cli/cli.ts";
import { pause, until } from "../../support/waiting.ts";

const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";
const RUN = ["run", "--image", "tag:x", "--disposable", "--", "job"];
const Channel = { stdout: 1, stderr: 2, status: 3 } as const;
const MIB = 1_048_576;

let appliance: ScriptedAppliance;
/** Ends the run with this exit code. */
let end: PromiseWithResolvers<number | "CANCELLED">;

beforeEach(() => {
  appliance = new ScriptedAppliance();
  end = Promise.withResolvers();
  appliance.answer = async ({ method, path }) => {
    if (path === "/instances") return Response.json({ uuid: ID }, { status: 201 });
    if (path.startsWith(`/operations/${ID}/events`)) return events();
    if (method === "DELETE" && path === `/operations/${ID}`) end.resolve("CANCELLED");
    if (path.startsWith(`/operations/${ID}`)) return await operation();
    if (path.startsWith(`/instances/${ID}/processes/1`)) return new Response(null, { status: 204 });
    return undefined;
  };
});
afterEach(() => appliance[Symbol.asyncDispose]());

const coppice = (options: CliOptions = {}, argv = RUN) => cli(argv, { environment: appliance.environment, ...options });

function events(): Response {
  const spawn = { id: 1, type: "spawn", spid: 1, time: "2026-11-20T10:30:00.000000000Z", data: { pid: 2 } };
  return new Response(`id: 1\nevent: spawn\ndata: ${JSON.stringify(spawn)}\n\n`, {
    headers: { "content-type": "text/event-stream" },
  });
}

async function operation(): Promise<Response> {
  const how = await Promise.race([end.promise, pause("a poll without an end", 20).then(() => null)]);
  const row = { id: ID, kind: "instance", created_at: "2026-11-20T10:30:00.000Z" };
  if (how === null || how === "CANCELLED") return Response.json({ ...row, status: how ?? "EXECUTING" });
  const stdout = outputObject(Buffer.from("all that was kept"), false);
  const stderr = outputObject(new Uint8Array(0), false);
  const result = { exit_code: how, cpu_time_ms: 1, memory_bytes: 1, timed_out: false, isolation: "vm", stdout, stderr };
  return Response.json({ ...row, status: "SUCCESS", result });
}

function send(socket: ScriptedSocket, channel: number, bytes: Uint8Array | string): void {
  socket.send(Buffer.concat([Buffer.from([channel]), Buffer.from(bytes)]));
}

/** Ends the command, as an attachment reports it. */
function finish(socket: ScriptedSocket, exitCode: number): void {
  send(socket, Channel.status, JSON.stringify({ exit_code: exitCode, signal: null }));
  socket.close(1000);
  end.resolve(exitCode);
}

const signals = () =>
  appliance.seen.flatMap(({ method, path }) => (method === "DELETE" ? [path.replace(/^.*[?]signal=/, "")] : []));

/** Resolves when the appliance has got a request that `fits`. */
async function requested(fits: (path: string, method: string) => boolean): Promise<void> {
  await until("the request", () => appliance.seen.some(({ path, method }) => fits(path, method)));
}

test("output is passed on as it comes, each stream where it belongs", async () => {
  const attached = Promise.withResolvers<ScriptedSocket>();
  appliance.onSocket = (socket) => attached.resolve(socket);
  const first = Promise.withResolvers<string>();
  const running = coppice({ stdout: async (data) => first.resolve(data.toString()) });
  const socket = await attached.promise;
  expect(socket.data.path).toBe(`/instances/${ID}/processes/1/attach?lossless=true`);
  expect(socket.data.authorization).toBe("Bearer t");
  send(socket, Channel.stdout, "early\n");
  expect(await first.promise).toBe("early\n");
  send(socket, Channel.stderr, "warn\n");
  send(socket, Channel.stdout, new Uint8Array([0, 255]));
  finish(socket, 3);
  const { code, stdout, stderr } = await running;
  expect([code, stderr]).toEqual([3, "warn\n"]);
  expect(stdout).toEqual(Buffer.from("early\n\0\xff", "latin1"));
});

test("a reader that is slow holds the appliance back", async () => {
  const count = 64;
  const bufferedMax = 4 * MIB;
  const open = Promise.withResolvers<void>();
  let sentBefore = 0;
  appliance.onSocket = async (socket) => {
    for (let sent = 0; sent < count; sent += 1) {
      send(socket, Channel.stdout, new Uint8Array(MIB));
      // Bytes that were not read by now wait in the client, in the kernel, and here.
      if (socket.getBufferedAmount() > bufferedMax && sentBefore === 0) {
        sentBefore = sent;
        open.resolve();
      }
      await until("room in the socket", () => socket.getBufferedAmount() <= bufferedMax);
    }
    finish(socket, 0);
  };
  const { code, stdout } = await coppice({ stdout: () => open.promise });
  expect([code, stdout.length]).toEqual([0, count * MIB]);
  expect(sentBefore).toBeGreaterThan(0);
  expect(sentBefore).toBeLessThan(count / 2);
});

test("the bytes that a broken connection loses come from the result", async () => {
  const printed = Promise.withResolvers<void>();
  appliance.onSocket = async (socket) => {
    send(socket, Channel.stdout, "all that");
    await printed.promise;
    socket.terminate();
    end.resolve(0);
  };
  const { code, stdout } = await coppice({ stdout: async () => printed.resolve() });
  expect([code, stdout.toString()]).toEqual([0, "all that was kept"]);
});

test("output for which the appliance did not wait comes from the result", async () => {
  appliance.onSocket = (socket) => {
    send(socket, Channel.stdout, "all that");
    send(socket, Channel.status, JSON.stringify({ dropped: { stream: "stdout", bytes: 9 } }));
    finish(socket, 0);
  };
  const { code, stdout } = await coppice();
  expect([code, stdout.toString()]).toEqual([0, "all that was kept"]);
});

test("an appliance that stays away leaves the run, and its id is printed", async () => {
  const { now } = performance;
  let skippedMs = 0;
  let skipMs = 0;
  using _clock = spyOn(performance, "now").mockImplementation(() => {
    skippedMs += skipMs;
    return now.call(performance) + skippedMs;
  });
  appliance.onSocket = async (socket) => {
    socket.terminate();
    await appliance[Symbol.asyncDispose]();
    // Every reading of the clock is a minute later.
    skipMs = 60_000;
  };
  const { code, stderr } = await coppice();
  expect(code).toBe(125);
  expect(stderr).toStartWith("coppice run: cannot reach an appliance at ");
  expect(stderr).toEndWith(`operation ${ID} may continue: coppice op wait ${ID} comes back to it\n`);
});

test("a reader that leaves ends the command as a pipe does", async () => {
  appliance.onSocket = async (socket) => {
    send(socket, Channel.stdout, "one\n");
    await requested((path) => path.endsWith("signal=PIPE"));
    send(socket, Channel.stdout, "two\n");
    finish(socket, 141);
  };
  const { code, stdout } = await coppice({
    stdout: async () => {
      throw Object.assign(new Error("broken"), { code: "EPIPE" });
    },
  });
  expect([code, stdout.length]).toEqual([141, 0]);
});

describe("signals", () => {
  test("the first Ctrl-C is the command's, which may end as it likes", async () => {
    const pressed = Promise.withResolvers<(signal: "SIGINT") => void>();
    appliance.onSocket = async (socket) => {
      (await pressed.promise)("SIGINT");
      await requested((path) => path.endsWith("signal=INT"));
      finish(socket, 130);
    };
    expect((await coppice({ interrupts: pressed.resolve })).code).toBe(130);
    expect(signals()).toEqual(["INT"]);
  });

  test("the second one cancels the run", async () => {
    const pressed = Promise.withResolvers<(signal: "SIGINT" | "SIGTERM") => void>();
    appliance.onSocket = async (socket) => {
      const press = await pressed.promise;
      press("SIGTERM");
      await requested((path) => path.endsWith("signal=TERM"));
      press("SIGINT");
      await end.promise;
      socket.close(1000);
    };
    const { code, stderr } = await coppice({ interrupts: pressed.resolve });
    expect([code, stderr]).toEqual([130, expect.stringContaining("was cancelled")]);
    expect(signals()).toEqual(["TERM", `/operations/${ID}`]);
  });

  test("one that comes before the command runs cancels at once", async () => {
    const answer = appliance.answer;
    appliance.answer = (request) =>
      request.path.includes("signal=") ? errorReply(409, "conflict", "not running") : answer(request);
    const pressed = Promise.withResolvers<(signal: "SIGINT") => void>();
    appliance.onSocket = async (socket) => {
      (await pressed.promise)("SIGINT");
      await end.promise;
      socket.close(1000);
    };
    expect((await coppice({ interrupts: pressed.resolve })).code).toBe(130);
    expect(signals()).toEqual(["INT", `/operations/${ID}`]);
  });
});

describe("standard input", () => {
  test("is streamed to the command, with its end", async () => {
    const content = Buffer.alloc(3 * MIB, "x");
    appliance.onSocket = async (socket) => {
      await requested((path) => path.includes("/stdin/stream"));
      finish(socket, 0);
    };
    expect((await coppice({ stdin: content })).code).toBe(0);
    expect(appliance.bodies("POST", "/instances")).toEqual([expect.objectContaining({ stdin_open: true })]);
    const stream = appliance.seen.find(({ path }) => path.includes("/stdin/stream"));
    expect(stream?.path).toBe(`/instances/${ID}/processes/1/stdin/stream?close=true`);
    expect(stream?.body.equals(content)).toBe(true);
  });

  test("that never ends does not keep a run that has ended", async () => {
    const isRead = Promise.withResolvers<void>();
    appliance.onSocket = async (socket) => {
      await isRead.promise;
      finish(socket, 0);
    };
    let isLeft = false;
    const idle = async function* (signal?: AbortSignal) {
      isRead.resolve();
      const left = Promise.withResolvers<void>();
      signal?.addEventListener("abort", () => left.resolve());
      await left.promise;
      isLeft = true;
      yield new Uint8Array(0);
    };
    expect((await coppice({ stdin: idle })).code).toBe(0);
    expect(isLeft).toBe(true);
  });

  test("is not asked for where there is none", async () => {
    appliance.onSocket = (socket) => finish(socket, 0);
    await coppice();
    expect(appliance.bodies("POST", "/instances")).toEqual([expect.not.objectContaining({ stdin_open: true })]);
  });
});

describe("a session at a terminal", () => {
  const SESSION = ["run", "--image", "tag:x", "-it", "--", "sh"];
  let modes: string[];
  const keys = {
    size: () => ({ rows: 30, cols: 90 }),
    raw() {
      modes.push("raw");
      return { [Symbol.dispose]: () => void modes.push("restored") };
    },
  };
  beforeEach(() => {
    modes = [];
  });
  /** Types this, and nothing more. */
  const typing = (text: string) =>
    async function* (signal?: AbortSignal) {
      yield Buffer.from(text);
      await new Promise<void>((resolve) => signal?.addEventListener("abort", () => resolve()));
    };

  test("gives keys and the size, and takes the terminal back at the end", async () => {
    appliance.onSocket = async (socket) => {
      await until("the keys", () => appliance.messages.length === 2);
      finish(socket, 0);
    };
    expect((await coppice({ keys, stdin: typing("ls\r") }, SESSION)).code).toBe(0);
    const [size, typed] = appliance.messages;
    expect([size?.[0], JSON.parse(size?.subarray(1).toString() ?? "")]).toEqual([4, { Width: 90, Height: 30 }]);
    expect(typed?.toString("latin1")).toBe("\0ls\r");
    expect(modes).toEqual(["raw", "restored"]);
    expect(appliance.bodies("POST", "/instances")).toEqual([
      expect.objectContaining({ stdin_open: true, pty: { rows: 30, cols: 90 }, env: { TERM: "xterm" } }),
    ]);
  });

  test("is left by Ctrl-P Ctrl-Q, without a signal or a cancel", async () => {
    appliance.onSocket = () => undefined;
    const { code, stderr } = await coppice({ keys, stdin: typing("a\x10\x11") }, SESSION);
    expect([code, stderr]).toEqual([0, expect.stringContaining(`coppice attach ${ID} comes back`)]);
    expect(signals()).toEqual([]);
    expect(modes).toEqual(["raw", "restored"]);
  });

  test("whose connection is lost gives the terminal back, and says how to come back", async () => {
    appliance.onSocket = async (socket) => {
      await until("the keys", () => appliance.messages.length === 2);
      socket.terminate();
    };
    const { code, stderr } = await coppice({ keys, stdin: typing("x") }, SESSION);
    expect([code, stderr]).toEqual([125, expect.stringContaining(`lost; coppice attach ${ID} comes back`)]);
    expect(modes).toEqual(["raw", "restored"]);
  });

  test("that cannot be attached is cancelled", async () => {
    const answer = appliance.answer;
    appliance.answer = (request) =>
      request.path.includes("/attach") ? errorReply(429, "too_many_requests", "too many readers") : answer(request);
    const { code, stderr } = await coppice({ keys, stdin: typing("x") }, SESSION);
    expect([code, stderr]).toEqual([125, expect.stringContaining("too many readers")]);
    expect(signals()).toEqual([`/operations/${ID}`]);
    expect(modes).toEqual([]);
  });
});

test("output that cannot be written ends the wait", async () => {
  appliance.onSocket = (socket) => send(socket, Channel.stdout, "x");
  const full = Object.assign(new Error("ENOSPC: no space left on device, write"), { code: "ENOSPC", syscall: "write" });
  const { code, stderr } = await coppice({
    stdout: async () => {
      throw full;
    },
  });
  const back = `leaves it: ENOSPC: no space left on device, write; coppice attach ${ID} comes back to it`;
  expect([code, stderr]).toEqual([125, `coppice run: cannot write its output, and ${back}\n`]);
});

test("an attachment that breaks off with its instance says how that ended", async () => {
  const answer = appliance.answer;
  appliance.answer = (request) =>
    request.path === `/instances/${ID}/processes/1` ? Response.json({ spid: 1 }) : answer(request);
  appliance.onSocket = (socket) => {
    socket.terminate();
    end.resolve("CANCELLED");
  };
  const { code, stderr } = await coppice({}, ["attach", ID]);
  expect([code, stderr]).toEqual([125, expect.stringContaining(`instance ${ID} has ended (CANCELLED)\n`)]);
});

test.each([
  [true, "coppice exec: the time limit was hit\n"],
  [undefined, ""],
])("exec says whether a process was killed by its time limit: %p", async (timed_out, message) => {
  appliance.answer = ({ path, method }) => {
    if (method === "POST") return Response.json({ spid: 2 }, { status: 201 });
    return path === `/instances/${ID}/processes/2` ? Response.json({ spid: 2, timed_out }) : undefined;
  };
  appliance.onSocket = (socket) => finish(socket, 137);
  const { code, stderr } = await coppice({}, ["exec", "--timeout", "1", ID, "--", "sleep", "9"]);
  expect([code, stderr]).toEqual([137, message]);
});

test.each(["x", "0", "-1", "1.5"])("attach refuses %p as the number of a process", async (spid) => {
  const { code, stderr } = await coppice({}, ["attach", ID, "--", spid]);
  expect([code, stderr]).toEqual([2, expect.stringContaining(`${spid} is not a process number`)]);
});

test("--detach prints the id, and leaves the run", async () => {
  const { code, stdout } = await coppice({}, ["run", "--image", "tag:x", "-d", "--", "job"]);
  expect([code, stdout.toString()]).toEqual([0, `${ID}\n`]);
  expect(appliance.seen).toHaveLength(1);
});

test.each([
  [["-it"], "is not a terminal"],
  [["-t", "--json"], "exclude each other"],
  [["-i", "--stdin", "-"], "exclude each other"],
])("%j is a wrong usage", async (options, message) => {
  const { code, stderr } = await coppice({}, ["run", "--image", "tag:x", ...options, "--", "job"]);
  expect([code, stderr]).toEqual([2, expect.stringContaining(message)]);
  expect(appliance.seen).toEqual([]);
});
