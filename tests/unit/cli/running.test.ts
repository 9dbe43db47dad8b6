import { describe, expect, test } from "bun:test";
import type { Io } from "../../../src/cli/io.ts";
import { DetachKeys } from "../../../src/cli/running/detach-keys.ts";
import { streamsOf, withTerm } from "../../../src/cli/running/streams.ts";

describe("Ctrl-P Ctrl-Q", () => {
  /** What a process gets of keys that come in these pieces, and whether it was left. */
  const typed = (...pieces: string[]): [string, boolean] => {
    const keys = new DetachKeys();
    let got = "";
    for (const piece of pieces) {
      const { passed, isDetached } = keys.take(Buffer.from(piece, "latin1"));
      got += Buffer.from(passed).toString("latin1");
      if (isDetached) return [got, true];
    }
    return [got, false];
  };

  test.each([
    [["ls\r"], "ls\r", false],
    [["a\x10\x11b"], "a", true],
    [["a\x10", "\x11"], "a", true],
    [["\x10\x10\x11"], "\x10", true],
    [["\x10x"], "\x10x", false],
    [["\x10", "x\x11"], "\x10x\x11", false],
    [["\x11\x10"], "\x11", false],
  ])("%j", (pieces, passed, isDetached) => {
    expect(typed(...pieces)).toEqual([passed, isDetached]);
  });
});

describe("the streams of a process", () => {
  const size = { rows: 30, cols: 90 };
  const terminal = { size: () => size, raw: () => ({ [Symbol.dispose]: () => undefined }) };
  const atTerminal = { terminal, stdinIsEmpty: false } as Partial<Io> as Io;
  const ofPipe = { terminal: null, stdinIsEmpty: false } as Partial<Io> as Io;
  const ofNothing = { terminal: null, stdinIsEmpty: true } as Partial<Io> as Io;

  test.each([
    ["a terminal is not passed on unasked", {}, atTerminal, "none", {}],
    ["a terminal, line by line", { interactive: true }, atTerminal, "stream", { stdin_open: true }],
    ["a pipe", {}, ofPipe, "stream", { stdin_open: true }],
    ["nothing", {}, ofNothing, "none", {}],
    ["a pipe, for a process that is left", { detach: true }, ofPipe, "none", {}],
    ["an input that others give", { interactive: true, detach: true }, ofNothing, "stream", { stdin_open: true }],
    ["a session", { interactive: true, tty: true }, atTerminal, "keys", { stdin_open: true, pty: size }],
    ["a terminal to look at", { tty: true }, ofNothing, "none", { pty: { rows: 24, cols: 80 } }],
  ] as const)("%s", (_, options, io, input, fields) => {
    expect(streamsOf(options, io)).toEqual({ input, fields, hasTerminal: "tty" in options });
  });

  test("a session needs a terminal", () => {
    expect(() => streamsOf({ interactive: true, tty: true }, ofPipe)).toThrow("is no terminal");
  });

  test("a terminal has a type, which may be given", () => {
    const session = streamsOf({ interactive: true, tty: true }, atTerminal);
    expect(withTerm(undefined, session, { TERM: "screen" })).toEqual({ env: { TERM: "screen" } });
    expect(withTerm({ TERM: "vt100" }, session, { TERM: "screen" })).toEqual({ env: { TERM: "vt100" } });
    expect(withTerm({ A: "1" }, session, {})).toEqual({ env: { TERM: "xterm", A: "1" } });
    expect(withTerm({ A: "1" }, streamsOf({}, ofPipe), { TERM: "x" })).toEqual({ env: { A: "1" } });
  });
});
