import type { Appliance } from "../appliance/appliance.ts";
import { clientEnvironment, programWords } from "./cli-process.ts";

/** The test fails after this many `milliseconds`. */
const LIMIT_MS = 120_000;

/** A command line at its own terminal, as a person has one. Disposal closes the terminal. */
export class CliTerminal implements Disposable {
  readonly #process: Bun.Subprocess;
  readonly #terminal: Bun.Terminal;
  #output = "";
  #seen = 0;
  #onData: (() => void) | null = null;

  /** @param wrap returns the command to run for the program and its arguments */
  constructor(
    appliance: Appliance,
    argv: readonly string[],
    wrap: (words: readonly string[]) => readonly string[] = (words) => words,
  ) {
    this.#process = Bun.spawn([...wrap([...programWords(), ...argv])], {
      env: clientEnvironment(appliance),
      timeout: LIMIT_MS,
      killSignal: "SIGKILL",
      terminal: {
        cols: 80,
        rows: 24,
        data: (_, data) => {
          this.#output += Buffer.from(data).toString("latin1");
          this.#onData?.();
        },
      },
    });
    const { terminal } = this.#process;
    if (terminal === undefined) throw new Error("the process has no terminal");
    this.#terminal = terminal;
    void this.#process.exited.then(() => this.#onData?.());
  }

  /** The whole output of the terminal. */
  get output(): string {
    return this.#output;
  }

  get pid(): number {
    return this.#process.pid;
  }

  type(keys: string): void {
    this.#terminal.write(keys);
  }

  resize(cols: number, rows: number): void {
    this.#terminal.resize(cols, rows);
  }

  /**
   * Resolves when the terminal shows a match behind the previous one.
   * @throws Error when the program ends without a match
   */
  async shows(text: string | RegExp): Promise<RegExpExecArray> {
    const pattern = typeof text === "string" ? new RegExp(RegExp.escape(text)) : text;
    for (;;) {
      const match = pattern.exec(this.#output.slice(this.#seen));
      if (match !== null) {
        this.#seen += match.index + match[0].length;
        return match;
      }
      if (this.#process.exitCode !== null || this.#process.signalCode !== null) {
        throw new Error(`${pattern} is not in ${JSON.stringify(this.#output.slice(this.#seen))}`);
      }
      await new Promise<void>((resolve) => {
        this.#onData = resolve;
      });
    }
  }

  /** The exit code. */
  async ended(): Promise<number> {
    return await this.#process.exited;
  }

  signal(name: NodeJS.Signals): void {
    this.#process.kill(name);
  }

  /** Closes the window: the program gets SIGHUP, and the terminal is gone. */
  close(): void {
    this.#terminal.close();
  }

  [Symbol.dispose](): void {
    this.#process.kill("SIGKILL");
    this.#terminal.close();
  }
}
