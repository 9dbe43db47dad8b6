import { run } from "./exec.ts";

const DYNAMIC_LOADER = "/lib64/ld-linux-x86-64.so.2";
const LOADER_TIMEOUT_MS = 10_000;

/**
 * The dynamic loader, and the shared objects that it resolves for a program or module, as absolute paths.
 * @throws CommandError when the loader refuses it
 */
export async function sharedObjects(path: string): Promise<string[]> {
  const { stdout } = await run({ argv: [DYNAMIC_LOADER, "--list", path], timeoutMs: LOADER_TIMEOUT_MS });
  return [...new Set([DYNAMIC_LOADER, ...parseLoaderList(Buffer.from(stdout).toString("utf8"))])];
}

/** Absolute paths in the output of `ld.so --list`. */
export function parseLoaderList(text: string): string[] {
  return text.split("\n").flatMap((line) => /(?:=> |^\s+)(\/\S+) \(0x[0-9a-f]+\)$/.exec(line)?.[1] ?? []);
}
