import { CommandError, run } from "../../system/exec.ts";
import { resolveAssets } from "../../vm/assets.ts";
import type { Finding } from "./finding.ts";
import type { Program } from "./programs.ts";

/** Time in which a program must print its version, also on a busy host; `milliseconds`. */
const VERSION_TIMEOUT_MS = 60_000;
export async function programFinding(program: Program): Promise<Finding> {
  const { name, meaning, package: debianPackage = name, argument = "--version" } = program;
  const base = { name, meaning, fix: null };
  try {
    const { stdout, stderr } = await run({ argv: [name, argument], timeoutMs: VERSION_TIMEOUT_MS });
    const text = `${Buffer.from(stdout).toString("utf8")}\n${stderr}`;
    const version = /\bv?(\d+\.\d+[\w.~+-]*)/.exec(text)?.[1];
    return { ...base, state: "ok", summary: version === undefined ? "installed" : `version ${version}` };
  } catch (error) {
    if (!(error instanceof CommandError)) throw error;
    const summary = error.message.replace(`${name} `, "");
    // A program that is late is installed: installing it again makes no host faster.
    if (error.timedOut) return { ...base, state: "note", summary };
    const fix = `apt-get install --no-install-recommends ${debianPackage}`;
    return { ...base, state: "problem", summary, fix };
  }
}

export async function assetsFinding(): Promise<Finding> {
  const base = { name: "guest", meaning: "kernel, initramfs and launcher that VMs are started with" };
  if (Bun.isStandaloneExecutable) return { ...base, state: "ok", summary: "inside the executable", fix: null };
  try {
    const { hash } = await resolveAssets("");
    return { ...base, state: "ok", summary: `built from source, ${hash.slice(0, 12)}`, fix: null };
  } catch (error) {
    return { ...base, state: "problem", summary: (error as Error).message, fix: "make assets" };
  }
}
