import { describe, expect, spyOn, test } from "bun:test";
import { captureMs, listBaseMs, mergeMs, prepareMs } from "../../../../src/supervisor/machines/guest-budgets.ts";
import { GuestTime } from "../../../../src/supervisor/machines/guest-time.ts";
import { Agent } from "../../../../src/vm/agent/agent.ts";
import { packIntegers } from "../../../../src/vm/agent/frames.ts";
import { AgentFrame, HostFrame, Stream } from "../../../../src/vm/agent/protocol.ts";
import { failureOf, throwing } from "../../../support/failures.ts";
import { ScriptedAgent } from "../../../support/guests/scripted-peer.ts";
import { pause, turns } from "../../../support/waiting.ts";

const MIB = 1_048_576;
const NEVER = new Promise<never>(() => undefined);

/** Settles after a time that is short compared with all budgets here except the smallest. */
const soon = <T>(value: T) => pause("a step takes a moment", 20).then(() => value);

describe("the time budget of a guest", () => {
  test("passes a step's result or failure on", async () => {
    const time = new GuestTime({ allowedMs: () => 60_000 });
    expect(await time.wait("a step", soon(7))).toBe(7);
    expect(
      await time.wait(
        "another",
        Promise.reject(new Error("of the guest")).catch((error) => error),
      ),
    ).toEqual(new Error("of the guest"));
    expect(await throwing(time.wait("a third", Promise.reject(new Error("of the guest"))))).toThrow("of the guest");
  });

  test("ends a wait that is too long, and every later one, however short", async () => {
    const time = new GuestTime({ allowedMs: () => 50 });
    const late = { code: "unavailable", message: expect.stringContaining("the first step did not finish") };
    expect(await failureOf(time.wait("the first step", NEVER))).toMatchObject(late);
    expect(await throwing(time.wait("a later step", soon(1)))).toThrow("a later step");
  });

  test("is shared by all steps: many short ones use it up", async () => {
    let [nowMs, steps] = [0, 0];
    using _clock = spyOn(performance, "now").mockImplementation(() => nowMs);
    const time = new GuestTime({ allowedMs: () => 200 });
    const step = async () => {
      await turns(1);
      nowMs += 60;
    };
    const all = async () => {
      for (;;) {
        await time.wait("a step", step());
        steps += 1;
      }
    };
    expect(await throwing(all())).toThrow("a step");
    expect(steps).toBe(4);
  });

  test("does not run while the host processes data", async () => {
    const time = new GuestTime({ allowedMs: () => 1000 });
    async function* chunks() {
      for (let left = 3; left > 0; left--) yield new Uint8Array(1);
    }
    for await (const _chunk of time.stream("the listing", chunks())) {
      await pause("the host is busy with what came", 400);
    }
  });

  test("grows with progress, and with nothing else", async () => {
    let doneAt = 0;
    const time = new GuestTime({ allowedMs: () => (doneAt === 0 ? 100 : 60_000) });
    const work = pause("nothing shows yet", 200).then(() => {
      doneAt = 1;
      return pause("more work", 200);
    });
    await time.wait("work that shows", work);
  });

  test("is used up by a listing that arrives byte by byte", async () => {
    const guest = new ScriptedAgent();
    const agent = Agent.open(guest.channel);
    const time = new GuestTime({ allowedMs: (listedBytes) => 300 + listedBytes / 100 });
    const listing = Array.fromAsync(time.stream("listing the new layer", agent.index("scratch")));
    listing.catch(() => undefined);
    const { session } = await guest.frame(HostFrame.index);
    const drip = setInterval(
      () => guest.send(AgentFrame.output, session, packIntegers([32, Stream.stdout]), new Uint8Array(1)),
      10,
    );
    using _drip = { [Symbol.dispose]: () => clearInterval(drip) };
    const error = (await listing.catch((caught: unknown) => caught)) as Error;
    expect(error.message).toContain("listing the new layer did not finish");
    guest.channel.deliver(null);
  });

  test("counts the sent bytes that the guest accepts", async () => {
    const seen: number[] = [];
    const time = new GuestTime({
      allowedMs: (sentBytes) => {
        seen.push(sentBytes);
        return 100 + sentBytes;
      },
    });
    const accepted = Promise.withResolvers<void>();
    async function* content() {
      yield new Uint8Array(60_000);
      await accepted.promise;
    }
    const sent = Array.fromAsync(time.counting(content()));
    void pause("the guest takes its time", 400).then(() => accepted.resolve());
    await time.wait("placing a file", sent);
    expect(seen.at(-1)).toBe(60_000);
  });
});

describe("the budget of the steps after a command", () => {
  const nothing = { writtenBytes: 0, nowBytes: 0, memoryBytes: 512 * MIB, listedBytes: 0, ranMs: 1000 };

  test("is 30 s plus the time for writing out the data that the guest's memory can hold", () => {
    expect(captureMs(nothing)).toBe(30_000);
    expect(captureMs({ ...nothing, writtenBytes: 256 * MIB, nowBytes: 256 * MIB })).toBe(46_000);
    expect(captureMs({ ...nothing, writtenBytes: 100_000 * MIB, nowBytes: 100_000 * MIB })).toBe(62_000);
  });

  test("grows with the data that the guest writes out, by no more than its memory", () => {
    expect(captureMs({ ...nothing, nowBytes: 16 * MIB })).toBe(31_000);
    expect(captureMs({ ...nothing, nowBytes: 100_000 * MIB })).toBe(62_000);
    expect(captureMs({ ...nothing, writtenBytes: 400 * MIB, nowBytes: 100_000 * MIB })).toBe(62_000);
    expect(captureMs({ ...nothing, writtenBytes: 16 * MIB, nowBytes: 0 })).toBe(31_000);
  });

  test("allows a listing time for each entry, for no more entries than the command could have made", () => {
    const long = { ...nothing, ranMs: 3_600_000 };
    expect(captureMs({ ...long, listedBytes: 80 * 1_000_000 })).toBe(330_000);
    expect(captureMs({ ...nothing, listedBytes: 80 * 1_000_000 })).toBe(34_000);
  });

  test("of other steps depends on figures that are known in advance", () => {
    expect(prepareMs(80 * MIB) - prepareMs(0)).toBe(10_000);
    expect(listBaseMs(1_000_000) - listBaseMs(0)).toBe(300_000);
    expect(mergeMs({ sizeBytes: 0, entryCount: 0 })).toBeLessThan(mergeMs({ sizeBytes: MIB, entryCount: 1 }));
  });
});
