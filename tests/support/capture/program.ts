import { mkdir } from "node:fs/promises";
import { join, resolve } from "node:path";
import { run } from "../../../src/system/exec.ts";
import { type Appliance, text } from "../appliance/appliance.ts";
import type { Operation } from "./model.ts";
import type { Seen, View } from "./view.ts";

const ROOT = resolve(import.meta.dir, "../../..");
const COMPILE_MS = 60_000;
const OUTPUT_BYTES_MAX = 10_485_760;
export const PROGRAM_PATH = "/opt/fsops";

/** The output of a run of `fsops`. */
export interface ProgramRun {
  /** image of the result */
  readonly image: string;
  readonly before: View;
  readonly after: View;
  /** an error number per operation */
  readonly results: readonly number[];
}

/** Compiles `fsops.c`, and returns the input file that puts it into an instance. */
export async function uploadProgram(appliance: Appliance): Promise<Record<string, object>> {
  const directory = join(ROOT, "build/tests");
  await mkdir(directory, { recursive: true });
  const path = join(directory, `fsops-${process.pid}`);
  const headers = ["-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"];
  const source = join(ROOT, "tests/support/guests/fsops.c");
  const argv = ["musl-gcc", "-std=c11", "-O2", "-static", "-s", "-Wall", "-Wextra", "-Werror", ...headers];
  await run({ argv: [...argv, "-o", path, source], timeoutMs: COMPILE_MS });
  const response = await appliance.fetch("/files", { method: "POST", body: await Bun.file(path).bytes() });
  await Bun.file(path).delete();
  const { uuid } = (await response.json()) as { uuid: string };
  return { [PROGRAM_PATH]: { uuid, mode: "0755" } };
}

/** Walks `directory` in a machine, applies the operations, and walks it again. */
export async function runProgram(
  appliance: Appliance,
  image: string,
  options: {
    readonly directory: string;
    readonly operations?: readonly Operation[];
    /** further fields of the request */
    readonly request?: Record<string, unknown>;
    /** time limit of the operation, in `milliseconds` */
    readonly limitMs?: number;
  },
): Promise<ProgramRun> {
  const script = (options.operations ?? []).map(scriptLine).join("");
  const id = await appliance.spawn({
    image,
    command: PROGRAM_PATH,
    args: [options.directory],
    stdin: script,
    truncate_output_at: OUTPUT_BYTES_MAX,
    ...options.request,
  });
  const operation = await appliance.finished(id, options.limitMs);
  const result = operation.result as Record<string, unknown> | undefined;
  if (result?.["exit_code"] !== 0) throw new Error(`the run failed: ${JSON.stringify(operation).slice(0, 4000)}`);
  return { image: String(result["image"] ?? ""), ...parseOutput(text(result["stdout"])) };
}

export function scriptLine(operation: Operation): string {
  return `${operation.map((word) => escapeWord(String(word))).join(" ")}\n`;
}

function escapeWord(word: string): string {
  if (word === "") return "%";
  const escaped = (char: string) => `%${char.charCodeAt(0).toString(16).padStart(2, "0")}`;
  return word.replace(/[^!-~]|%/g, escaped);
}

function unescapeWord(word: string): string {
  if (word === "%") return "";
  return word.replace(/%(..)/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 16)));
}

function parseOutput(output: string): Omit<ProgramRun, "image"> {
  const sections = new Map<string, string[]>();
  let lines: string[] = [];
  for (const line of output.split("\n")) {
    if (line.startsWith("== ")) {
      lines = [];
      sections.set(line.slice(3), lines);
    } else if (line !== "") lines.push(line);
  }
  const view = (title: string) => new Map((sections.get(title) ?? []).map(parseEntry));
  return { before: view("before"), after: view("after"), results: (sections.get("results") ?? []).map(Number) };
}

function parseEntry(line: string): [string, Seen] {
  const words = line.split(" ");
  const [path = "", type = "", mode = "", uid, gid, size, seconds = "", nanoseconds = "", nlink, identity] = words;
  const [rdev = "", target = "", digest = "", xattrs = ""] = words.slice(10);
  const seen: Seen = {
    ...{ type, mode: Number.parseInt(mode, 8), uid: Number(uid), gid: Number(gid), size: Number(size) },
    mtime: BigInt(seconds) * 1_000_000_000n + BigInt(nanoseconds),
    ...{ nlink: Number(nlink), identity, rdev, target: unescapeWord(target), digest: digest === "-" ? "" : digest },
    xattrs: new Map(
      xattrs === "-" ? [] : xattrs.split(",").map((pair) => pair.split("=").map(unescapeWord) as [string, string]),
    ),
  };
  return [unescapeWord(path), seen];
}
