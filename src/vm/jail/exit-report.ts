import { readFile } from "node:fs/promises";
import type { ExitStatus } from "../../system/exec.ts";

/** How a VMM ended, as its launcher reports it. */
export interface ExitReport {
  readonly status: ExitStatus;
  /** the end of the VMM's standard error */
  readonly stderr: string;
}

/**
 * Reads the report that the launcher writes when its VMM has ended.
 * @returns null without a complete report: the VMM runs, or its launcher failed or was killed
 */
export async function readExitReport(path: string): Promise<ExitReport | null> {
  try {
    const { status, signal, stderr } = JSON.parse(await readFile(path, "utf8"));
    const ended = { code: status, signal: signal === null ? null : String(signal) };
    return { status: ended, stderr: String(stderr).trimEnd() };
  } catch (error) {
    // SyntaxError: the launcher has not written the line, or the disk was full.
    if (error instanceof SyntaxError || (error as NodeJS.ErrnoException).code === "ENOENT") return null;
    throw error;
  }
}
