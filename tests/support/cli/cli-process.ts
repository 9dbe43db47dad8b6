import { resolve } from "node:path";
import type { Appliance } from "../appliance/appliance.ts";

const ROOT = resolve(import.meta.dir, "../../..");
/** The test fails after this many `milliseconds`. */
const LIMIT_MS = 120_000;

/** Command that starts the tested program. */
export function programWords(): string[] {
  const executable = process.env["COPPICE_TEST_EXECUTABLE"];
  return executable ? [resolve(executable)] : [process.execPath, resolve(ROOT, "src/main.ts")];
}

/** The environment of a client of an appliance. */
export function clientEnvironment(appliance: Appliance): Record<string, string> {
  return {
    PATH: process.env["PATH"] ?? "",
    HOME: "/root",
    TERM: "xterm",
    COPPICE_URL: appliance.url,
    COPPICE_TOKEN: appliance.token,
  };
}

/** A running command line, with pipes for its streams. Disposal kills it. */
export class CliProcess implements Disposable {
  readonly #process: Bun.Subprocess<"pipe", "pipe", "pipe">;
  readonly #reads: Promise<void>;
  readonly #chunks: Record<"stdout" | "stderr", Buffer[]> = { stdout: [], stderr: [] };
  #onOutput: (() => void) | null = null;
  #hasEnded = false;

  constructor(appliance: Appliance, argv: readonly string[]) {
    this.#process = Bun.spawn([...programWords(), ...argv], {
      env: clientEnvironment(appliance),
      stdin: "pipe",
      stdout: "pipe",
      stderr: "pipe",
      timeout: LIMIT_MS,
      killSignal: "SIGKILL",
    });
    const read = async (name: "stdout" | "stderr") => {
      for await (const chunk of this.#process[name]) {
        this.#chunks[name].push(Buffer.from(chunk));
        this.#onOutput?.();
      }
    };
    this.#reads = Promise.all([read("stdout"), read("stderr")]).then(() => {
      this.#hasEnded = true;
      this.#onOutput?.();
    });
  }

  get stdout(): string {
    return Buffer.concat(this.#chunks.stdout).toString("latin1");
  }

  get stderr(): string {
    return Buffer.concat(this.#chunks.stderr).toString("utf8");
  }

  get pid(): number {
    return this.#process.pid;
  }

  /** Resolves when an output matches. @throws Error when the program ends without a match */
  async says(text: string | RegExp): Promise<RegExpMatchArray> {
    const pattern = typeof text === "string" ? new RegExp(RegExp.escape(text)) : text;
    for (;;) {
      const match = pattern.exec(this.stdout) ?? pattern.exec(this.stderr);
      if (match !== null) return match;
      if (this.#hasEnded) throw new Error(`${pattern} is not in ${JSON.stringify([this.stdout, this.stderr])}`);
      await new Promise<void>((resolve) => {
        this.#onOutput = resolve;
      });
    }
  }

  write(text: string | Uint8Array): void {
    this.#process.stdin.write(text);
    void this.#process.stdin.flush();
  }

  closeInput(): void {
    void this.#process.stdin.end();
  }

  signal(name: NodeJS.Signals): void {
    this.#process.kill(name);
  }

  /** The exit code, after all output. */
  async ended(): Promise<number> {
    const code = await this.#process.exited;
    await this.#reads;
    return code;
  }

  [Symbol.dispose](): void {
    this.#process.kill("SIGKILL");
  }
}
