import { describe, expect, test } from "bun:test";
import {
  forkNames,
  generatedName,
  HEAD_DISTANCE_MAX,
  isSandboxName,
  nextSandboxState,
  parseHeadReference,
  SANDBOX_NAME_LENGTH_MAX,
  SANDBOX_STATES,
  SANDBOX_TRANSITIONS,
  type SandboxState,
  type SandboxTransition,
  sandboxConflict,
  sandboxStatesAllowing,
} from "../../../src/domain/sandbox.ts";

/** Every allowed way, as the design states them. */
const ARROWS: readonly (readonly [SandboxTransition, SandboxState, SandboxState])[] = [
  ["start", "starting", "running"],
  ["start", "resuming", "running"],
  ["pause", "running", "pausing"],
  ["paused", "pausing", "paused"],
  ["resume", "paused", "resuming"],
  ["resume", "failed", "resuming"],
  ["restart", "running", "resuming"],
  ["rollback", "paused", "paused"],
  ["rollback", "failed", "paused"],
  ["fail", "starting", "failed"],
  ["fail", "running", "failed"],
  ["fail", "pausing", "failed"],
  ["fail", "resuming", "failed"],
  ["stay", "resuming", "paused"],
  ["end", "starting", "ended"],
  ["end", "running", "ended"],
  ["end", "pausing", "ended"],
  ["end", "paused", "ended"],
  ["end", "resuming", "ended"],
  ["end", "failed", "ended"],
];

describe("the life cycle of a sandbox", () => {
  for (const [transition, from, to] of ARROWS) {
    test(`${transition} leads from ${from} to ${to}`, () => {
      expect(nextSandboxState(from, transition)).toBe(to);
      expect(sandboxStatesAllowing(transition)).toContain(from);
    });
  }

  test("has no other ways", () => {
    const allowed = new Set(ARROWS.map(([transition, from]) => `${transition} ${from}`));
    for (const state of SANDBOX_STATES) {
      for (const transition of SANDBOX_TRANSITIONS) {
        const isAllowed = nextSandboxState(state, transition) !== null;
        expect([transition, state, isAllowed]).toEqual([transition, state, allowed.has(`${transition} ${state}`)]);
      }
    }
  });

  test("refuses by the state", () => {
    expect(sandboxConflict("pausing").body()).toEqual({
      error: "conflict",
      message: "the sandbox is pausing",
      details: { state: "pausing" },
    });
  });
});

describe("names of sandboxes", () => {
  test("are labels of DNS", () => {
    for (const name of ["a", "7", "dev", "my-box-2", "a".repeat(SANDBOX_NAME_LENGTH_MAX), generatedName()]) {
      expect([name, isSandboxName(name)]).toEqual([name, true]);
    }
    const refused = ["", "-a", "a-", "A", "a_b", "a.b", "a b", "é", "a\n", "a".repeat(SANDBOX_NAME_LENGTH_MAX + 1)];
    for (const name of refused) expect([name, isSandboxName(name)]).toEqual([name, false]);
  });

  test("of a fork are numbered, and names again", () => {
    expect(forkNames("dev", 3)).toEqual(["dev-1", "dev-2", "dev-3"]);
    expect(forkNames("dev", 2, (name) => name === "dev-1" || name === "dev-3")).toEqual(["dev-2", "dev-4"]);
    const long = forkNames(`${"a".repeat(37)}-bc`, 10);
    expect(new Set(long).size).toBe(10);
    expect(long.every(isSandboxName)).toBe(true);
  });
});

describe("references to saved states", () => {
  test("count from the head", () => {
    expect(["HEAD", "HEAD~0", "HEAD~3", `HEAD~${HEAD_DISTANCE_MAX}`].map(parseHeadReference)).toEqual([0, 0, 3, 9999]);
  });

  test("have one form", () => {
    for (const text of ["", "head", "HEAD~", "HEAD~-1", "HEAD~10000", "HEAD^", " HEAD", "HEAD~1\n", "HEAD~1~1"]) {
      expect([text, parseHeadReference(text)]).toEqual([text, null]);
    }
  });
});
