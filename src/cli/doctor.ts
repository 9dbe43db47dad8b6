import type { Environment } from "../config.ts";
import { command, EXIT_FAILED, expectPositionals } from "./command.ts";
import { configOf, DATA_OPTIONS } from "./config-options.ts";
import { type Finding, type FindingState, findings } from "./doctor-checks.ts";
import type { Io } from "./io.ts";

export const doctorCommand = command({
  name: "doctor",
  summary: "check that this machine can run the appliance",
  synopsis: "[OPTIONS]",
  description:
    "Each prerequisite with its state, and the command that fixes it. The exit code is 0 when nothing is\n" +
    "in the way.",
  options: { json: { type: "boolean", doc: "print JSON" }, ...DATA_OPTIONS },
  async run({ options, positionals, io, environment }) {
    expectPositionals(positionals);
    const { json = false, ...rest } = options;
    const found = await findings(configOf(rest, environment as Environment));
    const healthy = found.every(({ state }) => state !== "problem");
    await io.stdout(json ? `${JSON.stringify({ healthy, findings: found })}\n` : report(found, healthy, io));
    return healthy ? 0 : EXIT_FAILED;
  },
});

const MARKS: Record<FindingState, { readonly mark: string; readonly color: string }> = {
  ok: { mark: "✓", color: "\x1b[32m" },
  note: { mark: "•", color: "\x1b[33m" },
  problem: { mark: "✗", color: "\x1b[31m" },
};

function report(found: readonly Finding[], healthy: boolean, io: Io): string {
  const width = Math.max(...found.map(({ name }) => name.length));
  const lines = found.flatMap(({ name, state, summary, meaning, fix }) => {
    const { mark, color } = MARKS[state];
    const shownMark = io.stdoutIsTerminal ? `${color}${mark}\x1b[0m` : mark;
    const indent = " ".repeat(width + 4);
    return [
      `${shownMark} ${name.padEnd(width)}  ${summary}`,
      ...(state === "ok" ? [] : [`${indent}${meaning}`]),
      ...(fix === null ? [] : [`${indent}fix: ${fix}`]),
    ];
  });
  const problems = found.filter(({ state }) => state === "problem").length;
  const verdict = healthy
    ? "This machine can run Coppice."
    : `${problems} ${problems === 1 ? "thing stands" : "things stand"} in the way.`;
  return `${lines.join("\n")}\n\n${verdict}\n`;
}
