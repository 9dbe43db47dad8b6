/** The checks of a talker's output, on a real one. */
import { expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { compileTalker, TalkerOutput } from "../support/talker/talker.ts";
import { until } from "../support/waiting.ts";

const NAME = "parts";
const PIECE_BYTES = 1000;

async function outputs(): Promise<{ stdout: string; stderr: string }> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-talker-"));
  try {
    const argv = [await compileTalker(directory), NAME, "10000", "5", "1"];
    const child = Bun.spawn(argv, { stdout: "pipe", stderr: "pipe" });
    const texts = { stdout: "", stderr: "" };
    const read = async (stream: "stdout" | "stderr") => {
      for await (const chunk of child[stream]) texts[stream] += Buffer.from(chunk).toString();
    };
    const both = Promise.all([read("stdout"), read("stderr")]);
    await until("it wrote more lines than it has cells", () => texts.stdout.length > 1_000_000);
    child.kill("SIGTERM");
    await both;
    expect(await child.exited).toBe(0);
    return texts;
  } finally {
    await rm(directory, { recursive: true });
  }
}

/** Reads in pieces, and returns all that is wrong. */
function read(output: TalkerOutput, { stdout, stderr }: { stdout: string; stderr: string }): string[] {
  const problems: string[] = [];
  const texts = [
    ["stdout", stdout],
    ["stderr", stderr],
  ] as const;
  for (const [stream, text] of texts) {
    for (let at = 0; at < text.length; at += PIECE_BYTES) {
      problems.push(...output.read(stream, text.slice(at, at + PIECE_BYTES)));
    }
  }
  return [...problems, ...output.end()];
}

test("the whole output of a talker is right, and any other is not", async () => {
  const { stdout, stderr } = await outputs();
  const whole = new TalkerOutput(NAME);
  expect(read(whole, { stdout, stderr })).toEqual([]);
  expect([whole.isEnded, whole.lines]).toEqual([true, stdout.split("\n").length + stderr.split("\n").length - 3]);

  const middle = Math.floor(stdout.length / 2);
  const damages = {
    "a byte is lost": { stdout: stdout.slice(0, middle) + stdout.slice(middle + 1), stderr },
    "a line is lost": { stdout: stdout.slice(stdout.indexOf("\n") + 1), stderr },
    "a line comes twice": { stdout: stdout.slice(0, stdout.indexOf("\n") + 1) + stdout, stderr },
    "a piece comes twice": { stdout: stdout.slice(0, middle) + stdout.slice(middle - 200), stderr },
    "the end is lost": { stdout: stdout.slice(0, stdout.lastIndexOf("\n", stdout.length - 2) + 1), stderr },
    "the last line before the end is lost": {
      stdout,
      stderr: stderr.slice(0, stderr.lastIndexOf("\n", stderr.length - 2) + 1),
    },
    "the streams are exchanged": { stdout: stderr, stderr: stdout },
    "it is of another talker": { stdout: stdout.replaceAll(NAME, "other"), stderr },
  };
  for (const [what, texts] of Object.entries(damages)) {
    expect([what, read(new TalkerOutput(NAME), texts).length > 0]).toEqual([what, true]);
  }
});

test("a fork continues where its parent was, also in the middle of a line", async () => {
  const { stdout, stderr } = await outputs();
  const parent = new TalkerOutput(NAME);
  const at = Math.floor(stdout.length / 2) + 7;
  expect(parent.read("stdout", stdout.slice(0, at))).toEqual([]);
  const places = { stdout: parent.place("stdout"), stderr: parent.place("stderr") };
  expect(places.stdout.rest).not.toBe("");
  expect(read(new TalkerOutput(NAME, places), { stdout: stdout.slice(at), stderr })).toEqual([]);
  expect(read(new TalkerOutput(NAME, places), { stdout: stdout.slice(at + 1), stderr })).not.toEqual([]);
  expect(read(new TalkerOutput(NAME, places), { stdout: stdout.slice(at - 1), stderr })).not.toEqual([]);
});
