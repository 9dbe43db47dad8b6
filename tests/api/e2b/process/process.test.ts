/** The service process.Process, as clients of E2B call it, with a native agent. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createLog } from "../../../../src/log.ts";
import { type E2bSandbox, E2bScene } from "../../../support/e2b/scene.ts";
import { until } from "../../../support/waiting.ts";

let scene: E2bScene;
let sandbox: E2bSandbox;

const warnings: string[] = [];
const log = createLog({ level: "warn", format: "text", write: (line) => void warnings.push(line) });

beforeAll(async () => {
  scene = await E2bScene.start({}, { log });
  sandbox = await scene.open();
  const { root } = sandbox.machine;
  mkdirSync(join(root, "etc"), { recursive: true });
  writeFileSync(join(root, "etc/passwd"), "root:x:0:0::/root:/bin/sh\nann:x:1234:567::/home/ann:/bin/sh\n");
}, 120_000);
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

// biome-ignore lint/suspicious/noExplicitAny: tests look into any message.
type Message = any;

function frameOf(message: object, flags = 0): Buffer<ArrayBuffer> {
  const text = Buffer.from(JSON.stringify(message));
  const head = Buffer.alloc(5);
  head[0] = flags;
  head.writeUInt32BE(text.byteLength, 1);
  return Buffer.concat([head, text]);
}

/** A stream of one call; its messages arrive as they are requested. */
class Stream implements AsyncDisposable {
  readonly #left = new AbortController();
  readonly #frames: AsyncGenerator<{ flags: number; json: Message }>;

  constructor(method: string, body: Uint8Array<ArrayBuffer>, headers: Record<string, string> = {}) {
    const all = { ...sandbox.headers(), "content-type": "application/connect+json", ...headers };
    const url = `${scene.url}/process.Process/${method}`;
    this.#frames = framesOf(fetch(url, { method: "POST", headers: all, body, signal: this.#left.signal }));
  }

  async next(): Promise<{ flags: number; json: Message }> {
    const { value, done } = await this.#frames.next();
    if (done === true) throw new Error("the stream has ended");
    return value;
  }

  /** All messages to the end. */
  async rest(): Promise<Message[]> {
    const messages: Message[] = [];
    for await (const { json } of this.#frames) messages.push(json);
    return messages;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#left.abort();
    await this.#frames.return(undefined).catch(() => undefined);
  }
}

async function* framesOf(answer: Promise<Response>): AsyncGenerator<{ flags: number; json: Message }> {
  const { body, status } = await answer;
  if (status !== 200 || body === null) throw new Error(`status ${status}`);
  let bytes = Buffer.alloc(0);
  for await (const chunk of body) {
    bytes = Buffer.concat([bytes, chunk]);
    while (bytes.byteLength >= 5 && bytes.byteLength >= 5 + bytes.readUInt32BE(1)) {
      const end = 5 + bytes.readUInt32BE(1);
      yield { flags: bytes[0] ?? 0, json: JSON.parse(bytes.subarray(5, end).toString()) };
      bytes = bytes.subarray(end);
    }
  }
}

const shell = (script: string, fields: object = {}) => ({
  process: { cmd: "/bin/bash", args: ["-l", "-c", script], ...fields },
  stdin: false,
});
const start = (message: object, headers: Record<string, string> = {}) => new Stream("Start", frameOf(message), headers);
const call = async (method: string, message: object) => await sandbox.rpc(`process.Process/${method}`, message);

/** The outcome of a command: its outputs, and the messages of its end. */
async function run(message: object, headers: Record<string, string> = {}) {
  await using stream = start(message, headers);
  const messages = await stream.rest();
  const text = (name: string) =>
    Buffer.concat(messages.map(({ event }) => Buffer.from(event?.data?.[name] ?? "", "base64"))).toString();
  const last = messages.at(-1);
  return { first: messages[0], stdout: text("stdout"), stderr: text("stderr"), pty: text("pty"), messages, last };
}

const endOf = ({ messages }: { messages: Message[] }) => messages.find(({ event }) => event?.end)?.event.end;

describe("Start", () => {
  test("sends the start with the pid in the guest, both outputs, the end, and the end of the stream", async () => {
    const result = await run(shell("echo $$; echo error >&2; exit 3"));
    expect(result.first).toEqual({ event: { start: { pid: Number(result.stdout) } } });
    expect(result.stderr).toContain("error\n");
    const end = { exitCode: 3, exited: true, status: "exit status 3", error: "exit status 3" };
    expect(endOf(result)).toEqual(end);
    expect(result.last).toEqual({});
    expect(endOf(await run(shell("true")))).toEqual({ exitCode: 0, exited: true, status: "exit status 0" });
  });

  test("gives the user's variables, those of the sandbox, and those of the request, in this order", async () => {
    const script = "echo $HOME $USER $E2B_SANDBOX $E2B_SANDBOX_ID $OWN";
    const { stdout } = await run(shell(script, { envs: { OWN: "mine", USER: "other" } }));
    expect(stdout).toBe(`/root other true ${sandbox.id} mine\n`);
  });

  test("runs sh where there is no bash, of which the operator learns once", async () => {
    for (let count = 0; count < 3; count++) expect((await run(shell("echo $0"))).stdout).toBe("/bin/sh\n");
    expect(warnings.filter((line) => line.includes("/bin/bash"))).toHaveLength(1);
  });

  test("starts in a directory relative to the home, and refuses one that does not exist", async () => {
    mkdirSync(join(sandbox.machine.root, "tmp"), { recursive: true });
    expect((await run(shell("pwd", { cwd: "../tmp" }))).stdout).toBe("/tmp\n");
    expect((await run(shell("pwd", { cwd: "/nowhere" }))).messages).toEqual([
      { error: { code: "invalid_argument", message: "cwd '/nowhere' does not exist" } },
    ]);
  });

  test("refuses a program that does not exist before the start, and users that do not", async () => {
    const missing = await run({ process: { cmd: "/bin/nothing" } });
    expect(missing.messages).toMatchObject([{ error: { code: "invalid_argument" } }]);
    const headers = { authorization: `Basic ${Buffer.from("eve:").toString("base64")}` };
    expect((await run(shell("id"), headers)).messages).toEqual([
      { error: { code: "unauthenticated", message: "invalid username: 'eve'" } },
    ]);
  });

  test("ends a command at the time limit of the call, with its group", async () => {
    const { messages } = await run(shell("sleep 1000 & wait"), { "connect-timeout-ms": "700" });
    expect(messages.at(-1)).toMatchObject({ error: { code: "deadline_exceeded" } });
    await until("no process runs", async () => (await call("List", {})).json.processes.length === 0);
  });

  test("sends keepalives while nothing else is sent", async () => {
    await using stream = start(shell("sleep 1000"), { "keepalive-ping-interval": "1" });
    const { pid } = (await stream.next()).json.event.start;
    expect((await stream.next()).json).toEqual({ event: { keepalive: {} } });
    await call("SendSignal", { process: { pid }, signal: "SIGNAL_SIGKILL" });
    const status = "signal: killed";
    let next = await stream.next();
    while (next.json.event?.keepalive !== undefined) next = await stream.next();
    expect(next.json.event.end).toEqual({ exitCode: -1, exited: false, status, error: status });
  });

  test("outlives a client that leaves without a reader of its output, which is thrown away", async () => {
    // Its processes have the root of this host.
    const path = join(sandbox.machine.root, "finished");
    {
      await using stream = start(shell(`head -c 3000000 /dev/zero; echo done > ${path}; sleep 1000`));
      await stream.next();
    }
    await until(
      "the command has written everything",
      () => existsSync(path) && readFileSync(path, "utf8") === "done\n",
    );
    const [{ pid }] = (await call("List", {})).json.processes;
    await call("SendSignal", { process: { pid }, signal: 9 });
  });

  test("leaves processes in the background running, and waits only for those that hold the output", async () => {
    // Its processes have no namespaces of their own: they are processes of this host.
    const quiet = await run(shell("nohup sleep 1000 >/dev/null 2>&1 & echo $!"));
    expect(endOf(quiet)).toMatchObject({ exitCode: 0 });
    await using stream = start(shell("sleep 1000 & echo $!; exit 3"));
    const { pid } = (await stream.next()).json.event.start;
    const { data } = (await stream.next()).json.event;
    const loud = Buffer.from(data.stdout, "base64").toString();
    expect(endOf(await run(shell(`kill -0 ${quiet.stdout}`)))).toMatchObject({ exitCode: 0 });
    expect((await call("List", {})).json.processes).toMatchObject([{ pid }]);
    await call("SendSignal", { process: { pid }, signal: "SIGNAL_SIGKILL" });
    expect((await stream.next()).json.event.end).toMatchObject({ exitCode: 3, exited: true });
    const both = `${quiet.stdout.trim()} ${loud}`;
    expect(endOf(await run(shell(`kill ${both}`)))).toMatchObject({ exitCode: 0 });
  });

  test("has a terminal whose output is one stream", async () => {
    const message = { ...shell("stty size; tty"), pty: { size: { cols: 91, rows: 17 } } };
    const { pty, stdout } = await run(message);
    expect(pty).toContain("17 91\r\n");
    expect(stdout).toBe("");
  });
});

describe("a running process", () => {
  test("is listed and found by its tag and its pid, takes input, and is followed from then on", async () => {
    const message = { ...shell("cat; echo over"), stdin: true, tag: "the-cat" };
    await using stream = start(message);
    const { pid } = (await stream.next()).json.event.start;
    expect((await call("List", {})).json).toEqual({
      processes: [{ config: { ...message.process, envs: {} }, pid, tag: "the-cat" }],
    });
    const stdin = Buffer.from("one\n").toString("base64");
    expect(await call("SendInput", { process: { tag: "the-cat" }, input: { stdin } })).toMatchObject({
      status: 200,
      json: {},
    });
    expect((await stream.next()).json.event.data).toEqual({ stdout: stdin });
    await using second = new Stream("Connect", frameOf({ process: { pid } }));
    expect((await second.next()).json).toEqual({ event: { start: { pid } } });
    const input = Buffer.concat([
      frameOf({ start: { process: { pid } } }),
      frameOf({ data: { input: { stdin: Buffer.from("two\n").toString("base64") } } }),
      frameOf({ keepalive: {} }),
    ]);
    await using written = new Stream("StreamInput", input);
    expect(await written.rest()).toEqual([{}, {}]);
    expect((await call("SendInput", { process: { pid }, input: { pty: stdin } })).json.code).toBe("internal");
    expect((await call("CloseStdin", { process: { pid } })).json).toEqual({});
    const outputs = (await second.rest()).map(({ event }) =>
      Buffer.from(event?.data?.stdout ?? "", "base64").toString(),
    );
    expect(outputs.join("")).toBe("two\nover\n");
    expect((await call("SendInput", { process: { pid }, input: { stdin } })).json.code).toBe("not_found");
  });

  test("is not one of another sandbox", async () => {
    await using stream = start(shell("sleep 1000"));
    const { pid } = (await stream.next()).json.event.start;
    const other = await scene.open();
    const answer = await other.rpc("process.Process/SendSignal", { process: { pid }, signal: 9 });
    expect(answer).toMatchObject({ status: 404, json: { code: "not_found" } });
    expect((await call("SendSignal", { process: { pid }, signal: "SIGNAL_HUP" })).status).toBe(400);
    expect((await call("SendSignal", { process: { pid }, signal: 1 })).json.code).toBe("unimplemented");
    expect((await call("SendSignal", { process: { pid }, signal: "SIGNAL_SIGTERM" })).status).toBe(200);
    expect(endOf({ messages: await stream.rest() }).status).toBe("signal: terminated");
  });
});

test("a stream ends with unavailable and the reason when its sandbox is killed", async () => {
  const other = await scene.open();
  const headers = { ...other.headers(), "content-type": "application/connect+json" };
  const body = new Uint8Array(frameOf(shell("sleep 1000")));
  const frames = framesOf(fetch(`${scene.url}/process.Process/Start`, { method: "POST", headers, body }));
  await frames.next();
  expect((await scene.call("DELETE", `/sandboxes/${other.id}`)).status).toBe(204);
  expect((await frames.next()).value?.json.error).toEqual({
    code: "unavailable",
    message: expect.stringContaining("sandbox was killed or reached its end of life"),
  });
  await frames.return(undefined);
});

describe("hostile frames", () => {
  const refusalOf = async (body: Buffer) => {
    await using stream = new Stream("Start", new Uint8Array(body));
    return (await stream.rest())[0].error.code;
  };
  test("are refused without memory for what they announce", async () => {
    const huge = Buffer.from([0, 0xff, 0xff, 0xff, 0xff, 0x7b]);
    expect(await refusalOf(huge)).toBe("resource_exhausted");
    expect(await refusalOf(frameOf({}, 1))).toBe("unimplemented");
    expect(await refusalOf(frameOf({}, 2))).toBe("invalid_argument");
    expect(await refusalOf(Buffer.concat([frameOf({}), frameOf({})]))).toBe("invalid_argument");
    expect(await refusalOf(frameOf({}).subarray(0, 6))).toBe("invalid_argument");
    expect(await refusalOf(Buffer.alloc(0))).toBe("invalid_argument");
  });
});

test("fifty streams of one sandbox run at once", async () => {
  const streams = Array.from({ length: 50 }, () => start(shell("sleep 1000")));
  try {
    const pids = await Promise.all(streams.map(async (stream) => (await stream.next()).json.event.start.pid));
    expect(new Set(pids).size).toBe(50);
    await Promise.all(pids.map((pid) => call("SendSignal", { process: { pid }, signal: 9 })));
    for (const stream of streams) expect(endOf({ messages: await stream.rest() }).status).toBe("signal: killed");
  } finally {
    for (const stream of streams) await stream[Symbol.asyncDispose]();
  }
}, 60_000);
