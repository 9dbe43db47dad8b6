import { describe, expect, test } from "bun:test";
import type { Io } from "../../../src/cli/io.ts";
import { DetachKeys } from "../../../src/cli/running/detach-keys.ts";
import { ReplayFilter } from "../../../src/cli/running/replay-filter.ts";
import { processFields } from "../../../src/cli/running/request.ts";
import { streamsOf, withTerm } from "../../../src/cli/running/streams.ts";

test.each([
  ["60", 60],
  ["90s", 90],
  ["30m", 1800],
  ["2h", 7200],
  ["7d", 604_800],
])("--timeout %s", (timeout, seconds) => expect(processFields({ timeout }, {})).toEqual({ timeout: seconds }));

test.each(["0", "0.2s", "soon", "-1"])("--timeout %s is refused", (timeout) => {
  expect(() => processFields({ timeout }, {})).toThrow("--timeout must be a duration such as 90s, 30m, 2h or 7d");
});

describe("Ctrl-P Ctrl-Q", () => {
  /** The keys that a process gets of input in these pieces, and whether the session detached. */
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

describe("output that is replayed", () => {
  const replayed = (replayBytes: number, ...pieces: string[]): string => {
    const filter = new ReplayFilter(replayBytes);
    return pieces.map((piece) => Buffer.from(filter.take(Buffer.from(piece, "latin1"))).toString("latin1")).join("");
  };

  test.each([
    "\x1b[6n",
    "\x1b[?6n",
    "\x1b[5n",
    "\x1b[c",
    "\x1b[0c",
    "\x1b[>c",
    "\x1b[=0c",
    "\x1b[?2026$p",
    "\x1b[18t",
    "\x1b[>0q",
    "\x1b[?u",
    "\x1bZ",
    "\x05",
    "\x1bP$qm\x1b\\",
    "\x1bP+q544e\x1b\\",
    "\x1b]11;?\x07",
    "\x1b]4;1;?\x1b\\",
    "\x1b]52;c;?\x07",
    "\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\",
  ])("has no %j, which a terminal answers, however it is cut", (query) => {
    const text = `a${query}b`;
    expect(replayed(text.length, text)).toBe("ab");
    for (let at = 1; at < text.length; at++)
      expect(replayed(text.length, text.slice(0, at), text.slice(at))).toBe("ab");
    expect(replayed(text.length, ...text)).toBe("ab");
    // Live output is complete, also in a piece with the end of the replay.
    expect(replayed(1, text, query)).toBe(text + query);
    expect(replayed(text.length, `${text}${text}`)).toBe(`ab${text}`);
  });

  test.each([
    "\x1b[31mred\x1b[0m",
    "\x1b[2J\x1b[1;1H",
    "\x1b[22;0t",
    "\x1b]0;title\x07",
    "\x1b]11;#000000\x07",
    "\x1b[?25l",
    "\x1b[?2004h",
    "\x1b7\x1b8",
    "\x1b[!p",
    "\x1b[2 q",
    "\x9b\xff\x00",
    "\x1b",
    "\x1b[1",
    `\x1b]0;${"x".repeat(1000)}`,
  ])("has %j, however it is cut", (text) => {
    expect(replayed(text.length, text)).toBe(text);
    for (let at = 1; at < text.length; at++)
      expect(replayed(text.length, text.slice(0, at), text.slice(at))).toBe(text);
  });
});

describe("the streams of a process", () => {
  const size = { rows: 30, cols: 90 };
  const terminal = { size: () => size, raw: () => ({ [Symbol.dispose]: () => undefined }) };
  const atTerminal = { terminal, stdinIsEmpty: false } as Partial<Io> as Io;
  const ofPipe = { terminal: null, stdinIsEmpty: false } as Partial<Io> as Io;
  const ofNothing = { terminal: null, stdinIsEmpty: true } as Partial<Io> as Io;

  test.each([
    ["a terminal is passed on only on request", {}, atTerminal, "none", {}],
    ["a terminal, line by line", { interactive: true }, atTerminal, "stream", { stdin_open: true }],
    ["a pipe", {}, ofPipe, "stream", { stdin_open: true }],
    ["nothing", {}, ofNothing, "none", {}],
    ["a pipe, for a detached process", { detach: true }, ofPipe, "none", {}],
    ["an input for other clients", { interactive: true, detach: true }, ofNothing, "stream", { stdin_open: true }],
    ["a session", { interactive: true, tty: true }, atTerminal, "keys", { stdin_open: true, pty: size }],
    ["a terminal for output only", { tty: true }, ofNothing, "none", { pty: { rows: 24, cols: 80 } }],
  ] as const)("%s", (_, options, io, input, fields) => {
    expect(streamsOf(options, io)).toEqual({ input, fields, hasTerminal: "tty" in options });
  });

  test("a session needs a terminal", () => {
    expect(() => streamsOf({ interactive: true, tty: true }, ofPipe)).toThrow("is not a terminal");
  });

  test("a terminal has a type, from the request or from the environment", () => {
    const session = streamsOf({ interactive: true, tty: true }, atTerminal);
    expect(withTerm(undefined, session, { TERM: "screen" })).toEqual({ env: { TERM: "screen" } });
    expect(withTerm({ TERM: "vt100" }, session, { TERM: "screen" })).toEqual({ env: { TERM: "vt100" } });
    expect(withTerm({ A: "1" }, session, {})).toEqual({ env: { TERM: "xterm", A: "1" } });
    expect(withTerm({ A: "1" }, streamsOf({}, ofPipe), { TERM: "x" })).toEqual({ env: { A: "1" } });
  });
});
