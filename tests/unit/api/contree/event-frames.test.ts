import { describe, expect, test } from "bun:test";
import { isAscii } from "node:buffer";
import fc from "fast-check";
import { EventFrames, failureFrames } from "../../../../src/api/contree/event-frames.ts";
import type { LogEvent, LogEventData, LogEventType } from "../../../../src/domain/log-event.ts";

const TIME_NS = 1_800_000_000_123_456_789n;
const frames = new EventFrames();

const event = (type: LogEventType, data: object, id = 7, spid: number | null = 1): LogEvent => ({
  ...{ id, type, spid, timeNs: TIME_NS },
  payload: Buffer.from(JSON.stringify(data)),
});
const output = (payload: Uint8Array, id = 7): LogEvent => ({ ...event("stdout", {}, id), payload });

// biome-ignore lint/suspicious/noExplicitAny: tests look into any payload.
type Parsed = { readonly lines: string[]; readonly json: any };

function parse(bytes: Uint8Array): Parsed[] {
  const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  expect(isAscii(bytes)).toBe(true);
  expect(text === "" || text.endsWith("\n\n")).toBe(true);
  return text
    .split("\n\n")
    .slice(0, -1)
    .map((frame) => {
      const lines = frame.split("\n");
      expect(lines).toHaveLength(3);
      return { lines, json: JSON.parse(lines[2]?.slice("data: ".length) ?? "") };
    });
}

const one = (logged: LogEvent) => {
  const [frame] = parse(frames.of([logged]));
  if (frame === undefined) throw new Error("left out");
  return frame;
};
const decoded = ({ value, encoding }: { value: string; encoding: string }) =>
  Buffer.from(value, encoding === "base64" ? "base64" : "latin1");

const EXIT: LogEventData["exit"] = {
  ...{ pid: 2, exit_code: 3, signal: null, timed_out: false, oom_killed: false, core_dump: false },
  ...{ duration_ms: 321, cpu_time_ms: 12, memory_bytes: 4097 },
  resources: {
    ...{ user_time_us: 5, sys_time_us: 6, max_rss_kb: 7, minor_faults: 8, major_faults: 9 },
    ...{ voluntary_ctx_switches: 10, involuntary_ctx_switches: 11, block_input_ops: 12, block_output_ops: 13 },
  },
};
const RESOURCE_KEYS = [
  ...["user_time_us", "sys_time_us", "max_rss_kb", "shared_memory", "unshared_memory", "swaps", "minor_faults"],
  ...["major_faults", "voluntary_ctx_switches", "involuntary_ctx_switches", "block_input_ops", "block_output_ops"],
  ...["ipc_msgs_sent", "ipc_msgs_received", "signals_received"],
];

test("a frame has the id, the type and the event, which repeats them", () => {
  const { lines, json } = one(output(Buffer.from("hi\n"), 3));
  expect(lines.slice(0, 2)).toEqual(["id: 3", "event: stdout"]);
  expect(json).toEqual({
    ...{ id: 3, ts: "2027-01-15T08:00:00.123456789Z", spid: 1, type: "stdout" },
    data: { value: "hi\n", encoding: "ascii", truncated: false },
  });
});

describe("output", () => {
  test("is ascii exactly when every byte is printable, a tab, LF or CR", () => {
    for (let byte = 0; byte < 256; byte++) {
      const { data } = one(output(Uint8Array.of(0x61, byte))).json;
      const isPlain = (byte >= 32 && byte <= 126) || [9, 10, 13].includes(byte);
      expect([byte, data.encoding]).toEqual([byte, isPlain ? "ascii" : "base64"]);
      expect(decoded(data)).toEqual(Buffer.from([0x61, byte]));
    }
  });

  test("arrives byte for byte, split at any place", () => {
    const bytes = Buffer.from('tab\t"quotes" \\ café \u{1f600}\u0000\x1b[0m\r\n\xff\xfe', "latin1");
    for (let at = 0; at <= bytes.byteLength; at++) {
      const parts = [bytes.subarray(0, at), bytes.subarray(at)].map((part, id) => output(part, id));
      const contents = parse(frames.of(parts)).map(({ json }) => decoded(json.data));
      expect(Buffer.concat(contents)).toEqual(bytes);
    }
  });

  test("of any bytes, and of a megabyte, arrives", () => {
    void fc.assert(
      fc.property(fc.array(fc.uint8Array({ maxLength: 300 }), { maxLength: 20 }), (parts) => {
        const contents = parse(frames.of(parts.map((part, id) => output(part, id)))).map(({ json }) =>
          decoded(json.data),
        );
        expect(Buffer.concat(contents)).toEqual(Buffer.concat(parts));
      }),
    );
    for (const filler of ['"', "\n", "x", "\0"]) {
      const long = Buffer.alloc(1_048_576, filler);
      expect(decoded(one(output(long)).json.data).equals(long)).toBe(true);
    }
  });
});

describe("the end of a process", () => {
  const data = (exit: Partial<LogEventData["exit"]>) => one(event("exit", { ...EXIT, ...exit })).json.data;

  test("is an exit code without a signal", () => {
    expect(data({})).toEqual({
      ...{ pid: 2, code: 3, signal: -1, timed_out: false, core_dump: false, duration_ms: 321 },
      resources: {
        ...Object.fromEntries(RESOURCE_KEYS.map((key) => [key, 0])),
        ...EXIT.resources,
      },
    });
    expect(data({ exit_code: 137 })).toMatchObject({ code: 137, signal: -1 });
  });

  test("is a signal without an exit code", () => {
    for (const signal of [1, 6, 9, 15, 64]) {
      expect(data({ exit_code: 128 + signal, signal, core_dump: signal === 6 })).toMatchObject({
        ...{ code: -1, signal, timed_out: false, core_dump: signal === 6 },
      });
    }
    const late = data({ exit_code: 137, signal: 9, timed_out: true, resources: null });
    expect(late).toMatchObject({ code: -1, signal: 9, timed_out: true });
    expect(Object.keys(late.resources).sort()).toEqual([...RESOURCE_KEYS].sort());
    expect(late.resources).toMatchObject({ user_time_us: 12_000, max_rss_kb: 5 });
  });
});

test("a start says whether it has a shell, and its time limit is a number", () => {
  const spawn = {
    pid: 2,
    command: "/bin/sh",
    args: ["-c", "echo é\u2028\x85\x7f\u{1f600}\ud800"],
    cwd: "/é",
    uid: 1,
    gid: 2,
    timeout: 60,
  };
  const { json } = one(event("spawn", { ...spawn, truncate_output_at: 9 }));
  expect(json.data).toEqual({ ...spawn, shell: true, truncate_at: 9 });
  const shellLike = one(event("spawn", { ...spawn, args: ["x", "-c"], timeout: null, truncate_output_at: 9 }));
  expect(shellLike.json.data).toMatchObject({ shell: false, timeout: 0 });
});

test("a machine that failed has a reason from the clients' list", () => {
  const reasons = ["job_complete", "timeout", "spawn_failed", "signal", "failed"].map(
    (reason) => one(event("shutdown", { stopped_at: "2027-01-15T08:00:00.000Z", reason }, 9, 0)).json.data.reason,
  );
  expect(reasons).toEqual(["job_complete", "timeout", "spawn_failed", "signal", "signal"]);
});

test("shows the start of a machine, and dropped output", () => {
  const init = { started_at: "2027-01-15T08:00:00.000Z", isolation: "vm", hostname: "h", vcpus: 1, memory_bytes: 1 };
  const started = one(event("init", init, 0, 0)).json;
  expect(started.spid).toBe(0);
  expect(started.data).toMatchObject({ started_at: init.started_at, verbose: false, init_pid: 1, hostname: "h" });
  expect(started.data.runtime_path).toBeString();
  const dropped = { stream: "stderr", bytes_emitted: 1, bytes_dropped: 2 };
  expect(one(event("truncated", dropped)).json.data).toEqual(dropped);
  const cap = { limit_bytes: 3, file_size: 2 };
  expect(one(event("size_cap", cap, 4, 0)).json.data).toEqual(cap);
});

test("omits events that clients do not know", () => {
  for (const type of ["progress", "stdin", "network", "checkpoint"] as const) {
    expect(frames.of([event(type, { bytes: 3 })])).toHaveLength(0);
  }
  const kept = parse(frames.of([event("progress", {}, 0), output(Buffer.from("x"), 1), event("stdin", {}, 2)]));
  expect(kept.map(({ json }) => json.id)).toEqual([1]);
});

describe("the completion", () => {
  const end = (data: object, bytes = 0) =>
    parse(frames.completion(event("completion", data, 12, null), bytes))[0]?.json;

  test("has the image of the result and its size, but no process", () => {
    const image = "0195f3a2-0000-7000-8000-000000000000";
    expect(end({ status: "SUCCESS", duration_ms: 5, image }, 86_016)).toEqual({
      ...{ id: 12, ts: "2027-01-15T08:00:00.123456789Z", type: "completion" },
      data: { status: "SUCCESS", duration_ms: 5, result_image_uuid: image, image_size_bytes: 86_016, error: null },
    });
  });

  test("has the text of a failure", () => {
    const error = { error: "unavailable", message: "line\none", details: {} };
    expect(end({ status: "FAILED", duration_ms: 0, error }).data).toEqual({
      ...{ status: "FAILED", duration_ms: 0, result_image_uuid: null, image_size_bytes: 0, error: "line\none" },
    });
  });
});

test("a failure is a comment, and a frame of one line without an id", () => {
  expect(new TextDecoder().decode(failureFrames("broke\r\nin two"))).toBe(
    ": stream ended with error, retry since last event id\n\nevent: sse_error\ndata: broke in two\n\n",
  );
});

test("returned frames do not change with the next events", () => {
  const first = frames.of([output(Buffer.from("first"))]);
  const copy = Buffer.from(first);
  frames.of([output(Buffer.from("second, and longer"))]);
  expect(copy.equals(first)).toBe(true);
});
