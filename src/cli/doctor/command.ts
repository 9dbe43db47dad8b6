import type { Config, Environment } from "../../config/config.ts";
import { given } from "../../domain/given.ts";
import { hostFindings, isHealthy, type Trial } from "../../supervisor/health/checks.ts";
import type { Finding, FindingState } from "../../supervisor/health/finding.ts";
import { command, EXIT_FAILED, expectPositionals, JSON_OPTION, LINE_WIDTH_MAX, wrap } from "../command.ts";
import { CONFIG_OPTIONS, configOf, DATA_OPTIONS } from "../config/config-options.ts";
import type { Io } from "../io.ts";
import { interruptible, showProgress } from "../wait.ts";
import { applianceFinding } from "./appliance.ts";
import { directOutside } from "./outside.ts";
import { installMissingPackages } from "./packages.ts";
import { restartFindingOf } from "./restart.ts";

const { "vm-emulation": emulation } = CONFIG_OPTIONS;

export const doctorCommand = command({
  name: "doctor",
  summary: "check that this machine can run the appliance",
  synopsis: "[OPTIONS]",
  description:
    "Prints each prerequisite with its state, and the command that fixes it. Boots, saves and clones a VM as\n" +
    "proof, which does not disturb a running appliance. The exit code is 0 when no prerequisite is missing.",
  examples: ["coppice doctor", "coppice doctor --install", "coppice doctor --json --no-boot"],
  options: {
    ...JSON_OPTION,
    install: { type: "boolean", doc: "first install the missing Debian packages, as root" },
    "no-boot": { type: "boolean", doc: "boot no VM; use the findings of the appliance's last start" },
    ...given({ "vm-emulation": emulation }),
    ...DATA_OPTIONS,
  },
  async run({ options, positionals, io, environment }) {
    expectPositionals(positionals);
    const { json = false, install = false, "no-boot": noBoot = false, ...rest } = options;
    if (install === true) await interruptible(io, (signal) => installMissingPackages(io, signal));
    const config = configOf(rest, environment as Environment);
    const { dataDir: dataDirectory, vm, network } = config;
    const settings = { dataDirectory, emulation: vm.emulation, outside: directOutside(network) };
    const onHost = await hostFindings(settings, noBoot === true ? null : await trial(config, io));
    const findings = [...onHost, await restartFindingOf(config), await applianceFinding(config)];
    const healthy = isHealthy(findings);
    await io.stdout(json === true ? `${JSON.stringify({ healthy, findings })}\n` : report(findings, healthy, io));
    return healthy ? 0 : EXIT_FAILED;
  },
});

/** Tries a VM. The machines are loaded only here: no other command of the client needs them. */
async function trial(config: Config, io: Io): Promise<Trial> {
  // Only root can make a jail; the finding "root" reports that.
  if (process.getuid?.() !== 0) return { obstacle: "only root can boot a VM in its jail" };
  const { tryMachines } = await import("./trial.ts");
  using _progress = showProgress(io, "booting a VM");
  return await interruptible(io, async (signal) => {
    try {
      return { verdicts: await tryMachines(config, signal) };
    } catch (error) {
      signal.throwIfAborted();
      return { obstacle: (error as Error).message };
    }
  });
}

const MARKS: Record<FindingState, { readonly mark: string; readonly color: string }> = {
  ok: { mark: "✓", color: "\x1b[32m" },
  note: { mark: "•", color: "\x1b[33m" },
  problem: { mark: "✗", color: "\x1b[31m" },
};

function report(findings: readonly Finding[], healthy: boolean, io: Io): string {
  const width = Math.max(...findings.map(({ name }) => name.length));
  const lines = findings.flatMap(({ name, state, summary, meaning, fix }) => {
    const { mark, color } = MARKS[state];
    const shownMark = io.stdoutLooks.colors ? `${color}${mark}\x1b[0m` : mark;
    const indent = " ".repeat(width + 4);
    const wrapped = (text: string): string[] => wrap(text, LINE_WIDTH_MAX - indent.length);
    const [first = "", ...more] = wrapped(summary);
    const rest = [...more, ...(state === "ok" ? [] : wrapped(meaning))];
    return [
      `${shownMark} ${name.padEnd(width)}  ${first}`,
      ...rest.map((line) => `${indent}${line}`),
      ...(fix === null ? [] : [`${indent}fix: ${fix}`]),
    ];
  });
  const problems = findings.filter(({ state }) => state === "problem").length;
  const verdict = healthy
    ? "This machine can run Coppice."
    : `This machine cannot run Coppice yet: ${problems} ${problems === 1 ? "problem" : "problems"}.`;
  return `${lines.join("\n")}\n\n${verdict}\n`;
}
