/** Agents and real machines: the protocol's official client, over HTTP and over standard input and output. */

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { BusyboxAppliance } from "../support/appliance/busybox-appliance.ts";
import { CliProcess, clientEnvironment, programWords } from "../support/cli/cli-process.ts";
import { throwing } from "../support/failures.ts";
import { freePort } from "../support/free-port.ts";
import { McpClient } from "../support/mcp-client.ts";
import { deadline, until } from "../support/waiting.ts";

setDefaultTimeout(180_000);

/** Longest text that a model gets of a long output, in `characters`: the requested part, and what the service adds. */
const ANSWER_CHARACTERS_MAX = 9000;
const PART_BYTES = 1_000_000;
const PARTS_COUNT = 100;
const CALL = { timeout: 120_000 };

let box: BusyboxAppliance;
beforeAll(async () => {
  const port = await freePort();
  box = await BusyboxAppliance.start({ tag: "base", flags: ["--listen-port", String(port)] });
});
afterAll(() => box[Symbol.asyncDispose]());

const statusOf = async (id: string): Promise<string> =>
  ((await (await box.appliance.fetch(`/operations/${id}`)).json()) as { status: string }).status;

/** The latest operation. */
async function latest(): Promise<string> {
  const [newest] = (await (await box.appliance.fetch("/operations?limit=1")).json()) as { id: string }[];
  return newest?.id ?? "";
}

/** Calls `run`, and resolves when its command has written `ready`. The call itself stays open. */
async function begin(mcp: McpClient, command: string, signal?: AbortSignal) {
  const begun = Promise.withResolvers<void>();
  const onprogress = ({ message = "" }) => void (message.includes("ready") && begun.resolve());
  const input = { image: "base", command, wait_seconds: 600 };
  const call = mcp.call("run", input, { ...CALL, onprogress, ...(signal === undefined ? {} : { signal }) });
  // Its result is up to the test.
  call.catch(() => undefined);
  await begun.promise;
  return { call, operation: await latest() };
}

function overStdio(): StdioClientTransport {
  const [command = "", ...args] = [...programWords(), "mcp"];
  return new StdioClientTransport({ command, args, env: clientEnvironment(box.appliance), stderr: "ignore" });
}

const TRANSPORTS = {
  HTTP: () => McpClient.open(box.appliance.url, box.appliance.token),
  "HTTP, 2026": () => McpClient.open(box.appliance.url, box.appliance.token, "auto"),
  "standard input and output": () => McpClient.over(overStdio()),
  "standard input and output, 2026": () => McpClient.over(overStdio(), "auto"),
};

describe.each(Object.entries(TRANSPORTS))("an agent (%s)", (_name, open) => {
  let mcp: McpClient;
  beforeAll(async () => {
    mcp = await open();
  });
  afterAll(() => mcp[Symbol.asyncDispose]());

  test("imports, fails, reads why, fixes it in a branch, and keeps the result", async () => {
    const steps: string[] = [];
    const onprogress = ({ message = "" }) => void steps.push(message);
    const imported = await mcp.call("import_image", { reference: box.reference, tag: "task" }, { ...CALL, onprogress });
    expect(imported.text).toContain("tag task");
    expect(steps.join("\n")).toContain("resolving");

    const script = "set -e\necho begin\ncat /root/data.txt\n";
    const failed = await mcp.call(
      "run",
      { image: "task", command: "sh /root/job.sh", files: [{ path: "/root/job.sh", content: script, mode: "0755" }] },
      CALL,
    );
    expect(failed.isError).toBe(false);
    expect(failed.text).toMatch(
      /^exit code 1 after .*\nimage [0-9a-f-]{36} has its files: .*\noperation [0-9a-f-]{36}$/m,
    );
    expect(failed.text).toContain("stdout (6 bytes):\nbegin");
    expect(failed.text).toMatch(/stderr \(\d+ bytes\):\ncat: .*No such file/);
    const { image } = failed.operation;

    const fixed = await mcp.call(
      "run",
      { image, command: "echo 42 > data.txt && sh job.sh", cwd: "/root", tag: "fixed" },
      CALL,
    );
    expect(fixed.operation.exit_code).toBe(0);
    expect(fixed.text).toContain("begin\n42");
    const fixedImage = fixed.operation.image as string;
    expect(fixed.text).toContain(`image ${fixedImage}, tag fixed, has its files`);
    expect((await mcp.call("diff", { image: fixedImage })).text).toBe(`against image ${image}:\nA /root/data.txt 3`);
    expect((await mcp.call("diff", { image: fixedImage, against: "task" })).text).toContain("A /root/job.sh* ");
    expect((await mcp.call("read_file", { image: fixedImage, path: "/root/data.txt" })).items[1]?.text).toBe("42\n");
    expect((await mcp.call("tag_image", { image: fixedImage, tag: "task:done" })).structured).toEqual({
      image: fixedImage,
      tag: "task:done",
    });
    const history = (await mcp.call("image_history", { image: "task:done" })).text.split("\n");
    expect(history).toHaveLength(4);
    expect(history[2]).toContain('ran "sh /root/job.sh" -> exit 1');
    expect((await mcp.call("image_history", { image: "task", children: true })).text).toContain(fixedImage);
    const looked = await mcp.call("run", { image: fixedImage, command: "cat /root/data.txt" }, CALL);
    expect(looked.text).toContain(`it changed no file: image ${fixedImage} is as it was`);
    expect((await mcp.call("read_output", { operation: fixed.operation.id, offset: -3 })).items[1]?.text).toBe("42\n");
  });

  test("reads any part of a long output", async () => {
    const run = await mcp.call("run", { image: "base", command: "seq 1 40000", disposable: true }, CALL);
    const written = Array.from({ length: 40_000 }, (_, index) => `${index + 1}\n`).join("");
    const [, first, last] = run.items;
    expect(first?.text).toStartWith("stdout (228,894 bytes), its beginning:\n1\n2\n");
    const tail = last?.text?.replace(/^.*\n/, "") ?? "";
    expect(tail.length).toBeGreaterThan(4096);
    expect(written.endsWith(tail)).toBe(true);
    const length = 60_000;
    for (const offset of [40_000, -60_000]) {
      const part = await mcp.call("read_output", { operation: run.operation.id, offset, length });
      expect(part.items[1]?.text).toBe(written.slice(offset).slice(0, length));
    }
  });

  test("sees lines as they arrive, and continues to wait after its first call", async () => {
    const command = "echo first; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo last";
    const run = await mcp.call("run", { image: "base", command, wait_seconds: 1, disposable: true }, CALL);
    expect(run.text).toMatch(/(?:still runs, .*|waits for a machine): follow waits for it/);
    const operation = run.operation.id as string;
    const soFar = async () => (await mcp.call("read_output", { operation })).text;
    await until("it has begun", async () => (await soFar()).includes("of 6 so far\nfirst"));
    const executed = await box.appliance.post(`/instances/${operation}/processes`, {
      command: "touch",
      args: ["/tmp/go"],
    });
    expect(executed.status).toBe(201);
    const end = await mcp.call("follow", { operation }, CALL);
    expect(end.text).toContain("exit code 0");
    expect(end.text).toContain("first\nlast");
    expect(end.text).toContain("not kept");
  });

  test("makes an image of a run that continues, and ends the run", async () => {
    const { call, operation } = await begin(mcp, "echo kept > /root/state; sync; echo ready; sleep 1000");
    const checkpoint = await mcp.call("checkpoint", { operation, tag: "kept" }, CALL);
    expect(checkpoint.operation.status).toBe("SUCCESS");
    expect((await mcp.call("read_file", { image: "kept", path: "/root/state" })).text).toContain("kept");
    expect((await mcp.call("end", { operation })).structured).toEqual({ operation });
    expect((await call).text).toContain("was cancelled");
  });

  test("that cancels its call ends the run", async () => {
    const cancelling = new AbortController();
    const { call, operation } = await begin(mcp, "echo ready; sleep 1000", cancelling.signal);
    cancelling.abort();
    expect(await throwing(call)).toThrow();
    await until("it has ended", async () => (await statusOf(operation)) === "CANCELLED");
  });
});

test("an agent gets a small part of a long and hostile output, and learns where the rest is", async () => {
  await using mcp = await TRANSPORTS.HTTP();
  const command =
    `printf '\\033]0;owned\\007\\033[2Jbegin\\n'; yes "$(printf '\\033[31mspam')" | head -c ${PART_BYTES} > /tmp/part; ` +
    `i=0; while [ $i -lt ${PARTS_COUNT} ]; do cat /tmp/part; i=$((i+1)); done; ` +
    "head -c 1000 /dev/urandom >&2; echo; echo the end";
  const messages: string[] = [];
  const onprogress = ({ message = "" }) => void messages.push(message);
  const run = await mcp.call(
    "run",
    { image: "base", command, disposable: true, wait_seconds: 600 },
    { ...CALL, onprogress },
  );
  expect(run.text.length).toBeLessThan(ANSWER_CHARACTERS_MAX);
  // biome-ignore lint/suspicious/noControlCharactersInRegex: there must be none.
  const control = /[\x00-\x08\x0b-\x1f\x7f]/;
  expect(run.text).not.toMatch(control);
  expect(messages.filter((message) => message.length > 1000 || control.test(message))).toEqual([]);
  expect(messages.length).toBeLessThan(200);
  expect(run.text).toContain("begin");
  expect(run.text).toMatch(/stderr: binary, 1,000 bytes/);
  const uri = `coppice://operations/${run.operation.id}/stdout`;
  expect(run.items.map((item) => item.uri)).toContain(uri);
  const [part] = (await mcp.client.readResource({ uri })).contents as { text?: string }[];
  expect(part?.text?.length).toBe(262_144);
  const [raw] = (await mcp.client.readResource({ uri: uri.replace("stdout", "stderr") })).contents as {
    blob?: string;
  }[];
  expect(Buffer.from(raw?.blob ?? "", "base64").byteLength).toBe(1000);
});

test("an agent that disconnects leaves no run behind", async () => {
  const mcp = await McpClient.over(overStdio());
  const { call, operation } = await begin(mcp, "echo ready; sleep 1000");
  await mcp[Symbol.asyncDispose]();
  expect(await throwing(call)).toThrow();
  await until("it has ended", async () => (await statusOf(operation)) === "CANCELLED");
});

describe("the bridge", () => {
  /** Sends lines, and resolves with the answers once there are `count`. */
  async function answers(lines: readonly string[], count: number): Promise<Record<string, unknown>[]> {
    using bridge = new CliProcess(box.appliance, ["mcp"]);
    for (const line of lines) bridge.write(`${line}\n`);
    await bridge.says(new RegExp(`^(.*\\n){${count}}`));
    bridge.closeInput();
    expect(await bridge.ended()).toBe(0);
    return bridge.stdout
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line) as Record<string, unknown>);
  }
  const rpc = (id: number, method: string, params = {}) => JSON.stringify({ jsonrpc: "2.0", id, method, params });

  test("answers invalid messages, and continues", async () => {
    const long = rpc(1, "tools/call", { name: "x".repeat(3_000_000) });
    const messages = await answers(["{", "[]", "", long, rpc(7, "ping"), rpc(8, "no/such")], 5);
    expect(messages.filter(({ id }) => id === null).map(({ error }) => (error as { code: number }).code)).toEqual([
      -32_700, -32_700, -32_700,
    ]);
    expect(messages.find(({ id }) => id === 7)?.["result"]).toEqual({});
    expect(messages.find(({ id }) => id === 8)?.["error"]).toMatchObject({ code: -32_601 });
  });

  test("answers pending requests with an error when the daemon dies, and continues with the next daemon", async () => {
    await using mcp = await McpClient.over(overStdio());
    const { call, operation } = await begin(mcp, "echo ready; sleep 1000");
    const broken = call.then(
      ({ text }) => text,
      (error: unknown) => String(error),
    );
    await box.appliance.down("SIGKILL");
    expect(await broken).toContain("the connection to the appliance broke");
    const next = mcp.call("list_images", {}, CALL);
    await box.appliance.up();
    expect((await next).text).toContain("base");
    // The run outlives the daemon, and no client waits for it any more.
    expect(await statusOf(operation)).toBe("EXECUTING");
    await box.appliance.fetch(`/operations/${operation}`, { method: "DELETE" });
    await box.appliance.finished(operation);
  });

  test("reports what is wrong with the token, and writes nothing else to standard output", async () => {
    const { token } = box.appliance;
    box.appliance.token = "wrong";
    const messages = await answers([rpc(1, "ping")], 1).finally(() => {
      box.appliance.token = token;
    });
    expect(messages).toEqual([
      {
        jsonrpc: "2.0",
        id: 1,
        error: { code: -32_000, message: expect.stringContaining("does not accept the token") },
      },
    ]);
  });
});

test("a client that does not read costs the daemon little memory", async () => {
  const command = "i=0; while [ $i -lt 20000 ]; do echo line $i of many; i=$((i+1)); done; sleep 2";
  const params = { name: "run", arguments: { image: "base", command, wait_seconds: 600 }, _meta: { progressToken: 1 } };
  const before = await latest();
  const response = await fetch(`${box.appliance.url}/mcp`, {
    method: "POST",
    headers: { authorization: `Bearer ${box.appliance.token}`, "content-type": "application/json" },
    body: JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params }),
  });
  using _late = deadline(120_000, () => void response.body?.cancel());
  await until("it is there", async () => (await latest()) !== before);
  await box.appliance.finished(await latest());
  const text = await response.text();
  expect(text.length).toBeLessThan(100_000);
  expect(text).toContain("exit code 0");
});
