/** Terminals, additional processes and standard input of running instances, in real machines. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { createHash } from "node:crypto";
import { readdirSync, readlinkSync } from "node:fs";
import { PROCESSES_COUNT_MAX } from "../../../src/vm/agent/protocol.ts";
import { AttachedClient } from "../../support/api/attached.ts";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { residentMib } from "../../support/appliance/resident.ts";
import { type Body, names, resultOf, running, upload } from "../../support/runs.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(240_000);

const MIB = 1_048_576;
/** All additional processes that an instance can have. */
const FLOODS_COUNT = PROCESSES_COUNT_MAX - 1;

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let image: string;

beforeAll(async () => {
  ({ appliance, image } = owned.use(await BusyboxAppliance.start({ poolSize: 1, tag: "busybox" })));
});

afterAll(async () => {
  await owned.disposeAsync();
});

/** An instance whose command runs. */
class Instance {
  readonly id: string;

  private constructor(id: string) {
    this.id = id;
  }

  static async spawn(request: Body): Promise<Instance> {
    const id = await appliance.spawn({ image, shell: true, disposable: true, timeout: 300, ...request });
    const instance = new Instance(id);
    await running(appliance, id);
    await until("the command runs", async () => (await instance.processes()).length > 0);
    return instance;
  }

  async call(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<Response> {
    const json = body !== undefined && !(body instanceof ReadableStream);
    return await appliance.fetch(`/instances/${this.id}${path}`, {
      method,
      headers: json ? { "content-type": "application/json", ...headers } : headers,
      ...(body === undefined ? {} : { body: json ? JSON.stringify(body) : (body as ReadableStream) }),
    });
  }

  async processes(): Promise<Body[]> {
    return (await (await this.call("GET", "/processes?limit=1000")).json()) as Body[];
  }

  /** Starts an additional process. */
  async start(command: string, more: Body = {}): Promise<number> {
    const answer = await this.call("POST", "/processes", { command, shell: true, ...more });
    if (answer.status !== 201) throw new Error(await answer.text());
    return ((await answer.json()) as { spid: number }).spid;
  }

  async process(spid: number): Promise<Body & { readonly stdout: { readonly content: string } }> {
    return (await (await this.call("GET", `/processes/${spid}`)).json()) as never;
  }

  /** Runs an additional process to its end, and returns its output. */
  async exec(command: string, more: Body = {}): Promise<string> {
    const spid = await this.start(command, more);
    await until(`the end of ${command}`, async () => (await this.process(spid))["state"] !== "running");
    return (await this.process(spid)).stdout.content;
  }

  attach(spid = 1, query = ""): Promise<AttachedClient> {
    return AttachedClient.open(appliance, `/v1/instances/${this.id}`, { spid, query });
  }

  async end(): Promise<void> {
    await this.call("DELETE", "/processes/1");
    await appliance.finished(this.id);
  }
}

/** The daemon's descriptors without sockets, which clients keep open for their next request. */
function openDescriptors(): number {
  const directory = `/proc/${appliance.pid}/fd`;
  const targets = readdirSync(directory).map((name) => {
    try {
      return readlinkSync(`${directory}/${name}`);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "ENOENT") return "socket:";
      throw error;
    }
  });
  return targets.filter((target) => !target.startsWith("socket:")).length;
}

describe("a terminal", () => {
  test("has a size, a name, job control, and keys that send signals", async () => {
    const instance = await Instance.spawn({
      ...{ command: "sh", shell: false, stdin_open: true },
      pty: { rows: 24, cols: 80 },
    });
    using client = await instance.attach();
    client.type("stty size; tty\r");
    await client.until("24 80");
    await client.until("/dev/pts/0");
    client.send(4, Buffer.from(JSON.stringify({ Width: 132, Height: 50 })));
    client.type("stty size\r");
    await client.until("50 132");
    client.type("sh -c 'trap \"echo again-\\$((2+2))\" CONT; echo ready-$((1+1)); while :; do sleep 0.1; done'\r");
    await client.until("ready-2");
    client.type("\x1a");
    await client.until("Stopped");
    client.type("fg\r");
    await client.until("again-4");
    client.type("\x03");
    await client.until("^C");
    client.type("echo job-$((3*3)); exit 6\r");
    expect(await client.socket.closed).toMatchObject({ code: 1000 });
    expect(client.of(1).toString()).toContain("job-9");
    expect(client.statuses).toEqual([{ exit_code: 6, signal: null, timed_out: false }]);
    expect(resultOf(await appliance.finished(instance.id)).exit_code).toBe(6);
  });
});

describe("an additional process", () => {
  test("sees the command's processes and files, changes the image, and ends with the command", async () => {
    const command = "echo here > /tmp/file; read line; echo $line";
    const instance = await Instance.spawn({ command, stdin_open: true, disposable: false, hostname: "shoot" });
    expect(await instance.exec("ps -o pid,args")).toContain("read line");
    expect(await instance.exec("cat /tmp/file; hostname; echo $HOSTNAME")).toBe("here\nshoot\nshoot\n");
    await instance.exec("echo kept > /root/added");
    const long = await instance.start("echo up; sleep 1000");
    await until("it runs", async () => (await instance.process(long)).stdout.content === "up\n");
    await instance.call("POST", "/processes/1/stdin", { content: "end\n", close: true });
    const result = resultOf(await appliance.finished(instance.id));
    expect([result.exit_code, result.out]).toEqual([0, "end\n"]);
    expect(await names(appliance, String(result.image), "/root")).toEqual(["added"]);
    expect(await instance.process(long)).toMatchObject({ state: "ended", exit_code: 137, signal: 9 });
    const [first] = await instance.processes();
    expect(first).toMatchObject({ spid: 1, state: "ended", exit_code: 0 });
    expect(first?.["cpu_time_ms"]).toBeNumber();
    expect(Number(first?.["memory_bytes"])).toBeGreaterThan(0);
  });

  test("runs as a user, and can use files of that user", async () => {
    const file = await upload(appliance, "content");
    const instance = await Instance.spawn({
      ...{ command: "id -u; id -g; stat -c %u:%g:%a /srv/own; cat /srv/own; sleep 1000", uid: 1000, gid: 2000 },
      files: { "/srv/own": { uuid: file, mode: "0600", uid: 1000, gid: 2000 } },
    });
    await until("it read the file", async () => (await instance.process(1)).stdout.content.includes("content"));
    expect((await instance.process(1)).stdout.content).toBe("1000\n2000\n1000:2000:600\ncontent");
    expect(await instance.exec("id -u; cat /srv/own", { uid: 3000 })).toBe("3000\n");
    await instance.end();
  });

  test("can be one of many that flood; the log stays within its limit, and nothing is left", async () => {
    const instance = await Instance.spawn({ command: "echo up; sleep 1000" });
    const before = openDescriptors();
    const flood = "head -c 1200000 /dev/zero; echo end >&2";
    const all = await Promise.all(
      Array.from({ length: FLOODS_COUNT }, () => instance.start(flood, { truncate_output_at: 1_200_000 })),
    );
    expect(new Set(all).size).toBe(FLOODS_COUNT);
    const followers = await Promise.all(all.map((spid) => instance.attach(spid)));
    await Promise.all(followers.map(({ socket }) => socket.closed));
    expect((await instance.processes()).filter(({ exit_code }) => exit_code === 0)).toHaveLength(FLOODS_COUNT);
    // They wrote 72 MiB, and their readers received 64 MiB.
    const peakMib = residentMib(appliance.pid, "VmHWM");
    process.stdout.write(`${FLOODS_COUNT} processes that flood: ${peakMib.toFixed(0)} MiB RSS at most\n`);
    expect(peakMib).toBeLessThan(300);
    const events = await (
      await appliance.fetch(`/operations/${instance.id}/events?spid=0`, { headers: { accept: "application/json" } })
    ).json();
    expect((events as Body[]).map(({ type }) => type)).toContain("size_cap");
    await until("no descriptor is left", () => openDescriptors() <= before + 8);
    await instance.end();
  });

  test("can be one of hundreds, of which nothing is left", async () => {
    const instance = await Instance.spawn({ command: "echo up; sleep 1000", timeout: 3600 });
    await instance.exec("true");
    // The shell counts by itself: ps may list the other end of a pipe, or run before it.
    const guest = () => instance.exec("set -- /proc/[0-9]*; echo $#; cut -f1 /proc/sys/fs/file-nr");
    const [before, descriptors] = [await guest(), openDescriptors()];
    const run = async (lossless: boolean) => {
      const spid = await instance.start("true", { shell: false });
      const { socket } = await instance.attach(spid, `?lossless=${lossless}`);
      expect(await socket.closed).toMatchObject({ code: 1000 });
    };
    for (let started = 0; started < 320; started += 8) {
      await Promise.all(Array.from({ length: 8 }, (_, index) => run(index % 2 === 0)));
    }
    const [processesBefore, filesBefore] = before.split("\n").map(Number);
    const [processesAfter, filesAfter] = (await guest()).split("\n").map(Number);
    // The shell that counts is not alone.
    expect(processesBefore).toBeGreaterThan(1);
    expect(processesAfter).toBe(Number(processesBefore));
    expect(Number(filesAfter)).toBeLessThan(Number(filesBefore) + 200);
    await until("no descriptor is left", () => openDescriptors() <= descriptors + 8);
    await instance.end();
  });
});

describe("standard input", () => {
  test("of any length reaches a running command whole, at its speed", async () => {
    const megabytes = Number(process.env["COPPICE_TEST_STDIN_MIB"] ?? 48);
    const instance = await Instance.spawn({ command: "sleep 1; sha256sum", stdin_open: true, timeout: 1200 });
    const piece = crypto.getRandomValues(new Uint8Array(65_536));
    const hash = createHash("sha256");
    let left = (megabytes * MIB) / piece.byteLength;
    const body = new ReadableStream<Uint8Array>({
      pull(controller) {
        if (left-- <= 0) return controller.close();
        piece[0] = left & 255;
        hash.update(piece);
        controller.enqueue(piece.slice());
      },
    });
    const answer = await instance.call("POST", "/processes/1/stdin/stream?close=true", body);
    expect([answer.status, await answer.text()]).toEqual([204, ""]);
    expect(resultOf(await appliance.finished(instance.id)).out).toBe(`${hash.digest("hex")}  -\n`);
  });
});

test("an extended time limit holds in the guest and on the host", async () => {
  const instance = await Instance.spawn({ command: "echo up; sleep 8; echo late", timeout: 4 });
  const answer = await instance.call("PATCH", "", { timeout: 120 });
  expect([answer.status, await answer.json()]).toEqual([200, { uuid: instance.id, timeout: 120 }]);
  const result = resultOf(await appliance.finished(instance.id));
  expect([result.out, result.timed_out, result.exit_code]).toEqual(["up\nlate\n", false, 0]);
});

test("a lossless attachment gets what the log drops", async () => {
  const command = "read line; head -c 6000000 /dev/zero | tr '\\0' a; echo end";
  const instance = await Instance.spawn({ command, stdin_open: true, truncate_output_at: 1000 });
  using client = await instance.attach(1, "?lossless=true");
  client.type("go\n");
  expect(await client.socket.closed).toMatchObject({ code: 1000 });
  expect(client.of(1).byteLength).toBe(6_000_004);
  expect(client.of(1).subarray(-4).toString()).toBe("end\n");
  const result = resultOf(await appliance.finished(instance.id));
  expect([result.out, result.stdout.truncated]).toEqual(["a".repeat(1000), true]);
});
