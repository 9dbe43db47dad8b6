import type { Appliance } from "../appliance/appliance.ts";
import { clientEnvironment, programWords } from "./cli-process.ts";

/** After this many `milliseconds` the test has failed. */
const LIMIT_MS = 120_000;

/** A command line at a terminal of its own, as a person has one. Disposal closes the terminal. */
export class CliTerminal implements Disposable {
  readonly #process: Bun.Subprocess;
  readonly #terminal: Bun.Terminal;
  #shown = "";
  #seen = 0;
  #onData: (() => void) | null = null;

  /** @param wrap makes the command that is run of the program and its arguments */
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
          this.#shown += Buffer.from(data).toString("latin1");
          this.#onData?.();
        },
      },
    });
    const { terminal } = this.#process;
    if (terminal === undefined) throw new Error("the process has no terminal");
    this.#terminal = terminal;
    void this.#process.exited.then(() => this.#onData?.());
  }

  /** Everything that the terminal has shown. */
  get shown(): string {
    return this.#shown;
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
   * Resolves when the terminal shows this behind what was waited for before.
   * @throws Error when the program ends without it
   */
  async shows(text: string | RegExp): Promise<RegExpExecArray> {
    const pattern = typeof text === "string" ? new RegExp(RegExp.escape(text)) : text;
    for (;;) {
      const found = pattern.exec(this.#shown.slice(this.#seen));
      if (found !== null) {
        this.#seen += found.index + found[0].length;
        return found;
      }
      if (this.#process.exitCode !== null || this.#process.signalCode !== null) {
        throw new Error(`${pattern} is not in ${JSON.stringify(this.#shown.slice(this.#seen))}`);
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

  /** The window is closed: the program gets SIGHUP, and the terminal is gone. */
  close(): void {
    this.#terminal.close();
  }

  [Symbol.dispose](): void {
    this.#process.kill("SIGKILL");
    this.#terminal.close();
  }
}
