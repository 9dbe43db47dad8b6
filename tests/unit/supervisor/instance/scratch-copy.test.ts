import { expect, spyOn, test } from "bun:test";
import { constants } from "node:os";
import { ApiError } from "../../../../src/domain/errors.ts";
import { copyScratch } from "../../../../src/supervisor/instance/scratch-copy.ts";
import { flushMs } from "../../../../src/supervisor/machines/guest-budgets.ts";
import { Agent } from "../../../../src/vm/agent/agent.ts";
import { packIntegers } from "../../../../src/vm/agent/frames.ts";
import { AgentFrame, HostFrame } from "../../../../src/vm/agent/protocol.ts";
import { DiskCopyLateError } from "../../../../src/vm/disk-copy.ts";
import type { Machine } from "../../../../src/vm/vmm.ts";
import { ScriptedAgent } from "../../../support/guests/scripted-peer.ts";

const { EBUSY, ETIMEDOUT, ECANCELED, EINVAL, EIO } = constants.errno;
const SHAPE = { vcpus: 1, memoryBytes: 268_435_456 };
const never = new AbortController().signal;

interface Script {
  /** errors of the guest's answers to QUIESCE, before it stops the writes */
  readonly refusals?: readonly number[];
  /** error that it answers to THAW */
  readonly thawErrno?: number;
  readonly finish?: () => Promise<void>;
  /** true: the guest writes faster than FLUSH can write out, which never ends */
  readonly flushesForEver?: boolean;
}

/** A guest that records the operations on its disk. */
function guestOf({ refusals = [], thawErrno, finish = async () => undefined, flushesForEver = false }: Script) {
  const peer = new ScriptedAgent();
  const happened: string[] = [];
  const left = [...refusals];
  const receive = peer.channel.onWrite;
  let answered = 0;
  const fail = (session: number, errno: number) =>
    peer.send(AgentFrame.error, session, packIntegers([32, errno], [32, 0]));
  peer.channel.onWrite = (bytes) => {
    receive(bytes);
    for (const { type, session } of peer.frames.slice(answered)) {
      answered += 1;
      const done = packIntegers([64, 1n]);
      if (type === HostFrame.flush) happened.push("flush");
      if (type === HostFrame.flush && !flushesForEver) peer.send(AgentFrame.done, session, done);
      if (type === HostFrame.quiesce) {
        const errno = left.shift();
        happened.push(errno === undefined ? "quiesce" : "refused");
        if (errno === undefined) peer.send(AgentFrame.quiesced, session);
        else fail(session, errno);
      }
      if (type === HostFrame.thaw) {
        happened.push("thaw");
        if (thawErrno === undefined) peer.send(AgentFrame.done, session, done);
        else fail(session, thawErrno);
      }
    }
  };
  const machine = {
    shape: SHAPE,
    copyDisk: async ({ serial }: { serial: string }) => {
      happened.push(`copy ${serial}`);
      return {
        finish: async () => {
          happened.push("finish");
          await finish();
        },
        seal: async () => void happened.push("seal"),
        [Symbol.asyncDispose]: async () => void happened.push("end"),
      };
    },
  } as unknown as Machine;
  return { guest: { machine, agent: Agent.open(peer.channel) }, happened };
}

const copy = (script: Script, signal = never) => {
  const { guest, happened } = guestOf(script);
  const result = copyScratch(guest, { path: "/nowhere", pauseMsMax: 1000, signal });
  return { result, happened };
};
const failure = async (result: Promise<unknown>): Promise<unknown> =>
  await result.then(() => null).catch((error) => error);

test("the guest's data is flushed before the writes stop, and the writes are stopped while the copy is finished", async () => {
  const { result, happened } = copy({});
  expect((await result).pauseMs).toBeGreaterThan(0);
  expect(happened).toEqual(["copy S", "flush", "quiesce", "finish", "thaw", "seal", "end"]);
});

test("a copy whose flush never ends fails within its budget, without a stop of the writes", async () => {
  const { now } = performance;
  const start = now.call(performance);
  let skippedMs = 0;
  using _clock = spyOn(performance, "now").mockImplementation(() => now.call(performance) + skippedMs);
  // The budget passes in no time.
  const { setTimeout: later } = globalThis;
  using _timers = spyOn(globalThis, "setTimeout").mockImplementation(((work: () => void, delayMs = 0) => {
    skippedMs += delayMs;
    return later(work, 0);
  }) as typeof setTimeout);
  const { result, happened } = copy({ flushesForEver: true });
  const message = expect.stringContaining("writing out the files of the instance did not finish");
  expect(await failure(result)).toMatchObject({ code: "unavailable", message });
  expect(happened).toEqual(["copy S", "flush", "end"]);
  const allowedMs = flushMs(SHAPE.memoryBytes);
  expect(performance.now() - start).toBeGreaterThanOrEqual(allowedMs);
  expect(performance.now() - start).toBeLessThan(2 * allowedMs);
});

test("a busy guest gets the request again", async () => {
  const { result, happened } = copy({ refusals: [EBUSY, EBUSY] });
  await result;
  expect(happened.filter((what) => what === "refused")).toHaveLength(2);
  expect(await failure(copy({ refusals: [EIO] }).result)).toMatchObject({ errno: EIO });
});

test("a copy that could not be finished allows the writes again, and is not used", async () => {
  const late = new DiskCopyLateError({ bytes: 9_000_000_000, neededMs: 9000, allowedMs: 1000 });
  const { result, happened } = copy({
    finish: async () => {
      throw late;
    },
  });
  const error = (await failure(result)) as ApiError;
  expect(error).toBeInstanceOf(ApiError);
  expect(error.code).toBe("conflict");
  expect(error.details).toEqual({ bytes: 9_000_000_000, needed_ms: 9000, allowed_ms: 1000 });
  expect(happened.slice(-3)).toEqual(["finish", "thaw", "end"]);
});

test("a copy that missed a write is not used", async () => {
  for (const errno of [ETIMEDOUT, ECANCELED, EINVAL]) {
    const { result, happened } = copy({ thawErrno: errno });
    expect(await failure(result)).toMatchObject({ code: "conflict" });
    expect(happened).not.toContain("seal");
  }
});

test("writes are not stopped for a caller that no longer waits", async () => {
  const gone = new AbortController();
  gone.abort(new Error("gone"));
  const { result, happened } = copy({}, gone.signal);
  expect(await failure(result)).toBe(gone.signal.reason);
  expect(happened).toEqual(["copy S", "flush", "end"]);
});
