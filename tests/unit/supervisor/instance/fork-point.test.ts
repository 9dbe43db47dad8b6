import { afterAll, describe, expect, spyOn, test } from "bun:test";
import { mkdirSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import type { OperationId } from "../../../../src/domain/ids.ts";
import { takeForkPoint } from "../../../../src/supervisor/instance/forks/fork-point.ts";
import type { ProcessSink } from "../../../../src/supervisor/instance/instance-process.ts";
import { RunningInstance } from "../../../../src/supervisor/instance/running-instance.ts";
import type { ResumableInstance } from "../../../../src/supervisor/instance/running-instances.ts";
import type { ReadyMachine } from "../../../../src/supervisor/machines/machine-source.ts";
import { untilAborted } from "../../../../src/system/waiting.ts";
import { packIntegers } from "../../../../src/vm/agent/frames.ts";
import { AgentFrame, HostFrame } from "../../../../src/vm/agent/protocol.ts";
import { VmmError } from "../../../../src/vm/machine-end.ts";
import type { ForkOptions, ForkPoint, MachineExit } from "../../../../src/vm/vmm.ts";
import { throwing } from "../../../support/failures.ts";
import { done, openAgent, SPEC } from "../../../support/guests/agent-script.ts";
import { testDirectory } from "../../../support/images/layer-files.ts";
import { turns } from "../../../support/waiting.ts";

const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15" as OperationId;
const NEVER = new AbortController().signal;
const directory = testDirectory("fork-point");
const tmp = join(directory, "tmp");
mkdirSync(tmp, { recursive: true });
afterAll(() => rmSync(directory, { recursive: true }));

const sink = {
  ...{ started: () => undefined, output: () => undefined, onInput: () => undefined, exited: () => undefined },
  ...{ bytes: () => ({ kept: 0, dropped: 0 }), record: () => ({}) },
} as unknown as ProcessSink;

interface Scene {
  /** resolves when the copies are prepared; default: at once */
  readonly prepared?: (signal: AbortSignal) => Promise<void>;
  /** absent: the machine cannot be forked */
  readonly take?: () => Promise<ForkPoint>;
}

/** An instance with a scripted guest, whose machine is forked by `take`. */
async function scene({ take, prepared }: Scene) {
  const { guest, agent } = openAgent();
  const said: string[] = [];
  const prepareFork = async ({ scratchPath, signal }: ForkOptions) => {
    await prepared?.(signal);
    await Bun.write(scratchPath, "the scratch");
    return { take, [Symbol.asyncDispose]: async () => void said.push("prepared is gone") };
  };
  const machine = {
    directory,
    exited: new Promise<MachineExit>(() => undefined),
    attach: async () => undefined,
    ...(take === undefined ? {} : { prepareFork }),
  };
  const ready = { machine, agent, isolation: "vm" } as unknown as ReadyMachine;
  const machines = { take: async () => ready, takeUnpooled: async () => ready, launcher: async () => "/launch" };
  const instance = await RunningInstance.take(machines, { vcpus: 1, memoryBytes: 1 }, NEVER);
  const { mounted } = instance.attach({ layers: [], scratch: { path: join(directory, "S"), use: "root" } });
  guest.send(AgentFrame.done, (await guest.frame(HostFrame.mount)).session, done());
  await mounted;
  const command = instance.start(SPEC, sink);
  guest.send(AgentFrame.started, (await guest.frame(HostFrame.execOpen)).session, packIntegers([32, 1]));
  await command.started;
  const events = { cut: () => 7 };
  const instances = {
    find: () => instance,
    eventsOf: () => events as never,
    record: () => ({ scratchPath: "of the parent", instance: instance.record() }) as unknown as ResumableInstance,
  };
  const fork = (after: "continues" | "ends" = "continues") =>
    takeForkPoint(
      { instances, layout: { root: directory, tmp }, diskReserveBytes: 0 },
      { instanceId: ID, copiesCount: 1, after, signal: NEVER },
    );
  const answerHold = async () => {
    guest.send(AgentFrame.done, (await guest.frame(HostFrame.hold)).session, done());
  };
  const answerSync = async () => {
    const { session, payload } = await guest.frame(HostFrame.sync);
    guest.send(AgentFrame.synced, session, payload.subarray(8, 16));
  };
  const frames = () => guest.frames.map(({ type }) => type);
  return { guest, instance, fork, answerHold, answerSync, frames, said };
}

function fakePoint(said: string[] = []): ForkPoint {
  return { pausedMs: 3, [Symbol.asyncDispose]: async () => void said.push("point is gone") } as unknown as ForkPoint;
}

describe("a fork point", () => {
  test("has the record and the scratch of one instant, and its instance continues", async () => {
    const at: boolean[] = [];
    const said: string[] = [];
    const { instance, fork, answerHold, answerSync } = await scene({
      take: async () => {
        at.push(instance.agent.isHeld);
        return fakePoint(said);
      },
    });
    const taking = fork();
    await answerHold();
    await answerSync();
    {
      await using taken = await taking;
      expect(at).toEqual([true]);
      expect(taken.atEvent).toBe(6);
      expect(taken.record.scratchPath).toBe(taken.scratchPath);
      expect(taken.record.instance.processes.map(({ spid }) => spid)).toEqual([1]);
      expect(await Bun.file(taken.scratchPath).text()).toBe("the scratch");
      expect(instance.agent.isHeld).toBe(false);
    }
    expect(said).toEqual(["point is gone"]);
    expect(readdirSync(tmp)).toEqual([]);
  });

  test("of an instance that ends leaves the agent held", async () => {
    const { instance, fork, answerHold, frames } = await scene({ take: async () => fakePoint() });
    const taking = fork("ends");
    await answerHold();
    await using _taken = await taking;
    await turns();
    expect(instance.agent.isHeld).toBe(true);
    expect(frames()).not.toContain(HostFrame.sync);
  });

  test.each(["continues", "ends"] as const)("that cannot be taken leaves a running instance: %s", async (after) => {
    const { instance, fork, answerHold, answerSync, said } = await scene({
      take: () => Promise.reject(new VmmError("the memory was not copied")),
    });
    const taking = throwing(fork(after));
    await answerHold();
    await answerSync();
    expect(await taking).toThrow("the machine was not copied: the memory was not copied");
    expect(instance.agent.isHeld).toBe(false);
    expect(instance.failure.signal.aborted).toBe(false);
    expect(said).toEqual(["prepared is gone"]);
    expect(readdirSync(tmp)).toEqual([]);
  });

  test("is refused while a request to the guest lasts, and nothing was held", async () => {
    const { guest, instance, fork, frames } = await scene({ take: async () => fakePoint() });
    const flushed = instance.agent.flush();
    const { session } = await guest.frame(HostFrame.flush);
    expect(await throwing(fork())).toThrow("the instance is busy with requests that must end before it is copied");
    expect(frames()).not.toContain(HostFrame.hold);
    guest.send(AgentFrame.done, session, done());
    await flushed;
  });

  test("is refused when the agent does not answer, and the hold ends", async () => {
    const { guest, instance, fork, answerSync } = await scene({ take: async () => fakePoint() });
    const taking = throwing(fork());
    await guest.frame(HostFrame.hold);
    await answerSync();
    expect(await taking).toThrow("the instance is busy");
    expect(instance.agent.isHeld).toBe(false);
  });

  test("is refused by a monitor that cannot make it", async () => {
    const { fork, frames } = await scene({});
    expect(await throwing(fork())).toThrow("the virtual machine monitor of this host cannot copy running machines");
    expect(frames()).not.toContain(HostFrame.hold);
  });

  test("after which the agent breaks its stream fails the instance with the reason", async () => {
    const { guest, instance, fork, answerHold } = await scene({ take: async () => fakePoint() });
    const taking = fork();
    await answerHold();
    const { session } = await guest.frame(HostFrame.sync);
    guest.send(AgentFrame.synced, session, packIntegers([64, 1n]));
    await using _taken = await taking;
    expect(instance.failure.signal.reason).toMatchObject({
      code: "unavailable",
      message: "the instance did not continue after a copy: an answer to another SYNC",
    });
  });
});

test("copies that are never ready are given up, and nothing was held", async () => {
  const late = new AbortController();
  using _limit = spyOn(AbortSignal, "timeout").mockReturnValue(late.signal);
  const begun = Promise.withResolvers<void>();
  const { fork, frames } = await scene({
    take: () => Promise.reject(new Error("it is not prepared")),
    prepared: async (signal) => {
      begun.resolve();
      await untilAborted(new Promise(() => undefined), signal);
    },
  });
  const before = frames();
  const forking = throwing(fork());
  await begun.promise;
  late.abort(new DOMException("late", "TimeoutError"));
  expect(await forking).toThrow("the copies were not ready within 120 s");
  expect(frames()).toEqual(before);
  expect(readdirSync(tmp)).toEqual([]);
});
