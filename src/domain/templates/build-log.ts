export const LOG_LEVELS = ["debug", "info", "warn", "error"] as const;
export type BuildLogLevel = (typeof LOG_LEVELS)[number];

/** A line of the log of a build. */
export interface BuildLogEntry {
  /** `milliseconds` since the epoch */
  readonly at: number;
  readonly level: BuildLogLevel;
  readonly message: string;
  /** name of the step; null: of the whole build */
  readonly step: string | null;
}

/** Bounds of a log: its entries, their characters together, and the characters of one. */
export const LOG_ENTRIES_COUNT_MAX = 10_000;
export const LOG_CHARACTERS_MAX = 1_048_576;
const MESSAGE_CHARACTERS_MAX = 4096;
/** Bounds of the lines of the build itself, which a full log takes, too: the beginnings of steps, and what failed. */
const RESERVED_COUNT = 2100;
const LINE_CHARACTERS_MAX = 1024;

const FULL = "the log is full: further output is not kept";

/** The log of a build, bounded: when it is full, it takes no more output, only lines of the build itself. */
export class BuildLog {
  readonly #clock: () => number;
  readonly #entries: BuildLogEntry[] = [];
  #charactersLeft = LOG_CHARACTERS_MAX;
  #isFull = false;

  constructor(clock: () => number) {
    this.#clock = clock;
  }

  /** All entries; the array grows. */
  get entries(): readonly BuildLogEntry[] {
    return this.#entries;
  }

  /** Adds a line of the build itself. */
  say(step: string | null, message: string, level: BuildLogLevel = "info"): void {
    if (this.#entries.length < LOG_ENTRIES_COUNT_MAX + RESERVED_COUNT)
      this.#add(step, message.slice(0, LINE_CHARACTERS_MAX), level);
  }

  /** Adds a line of a program's output. */
  output(step: string, message: string): void {
    if (this.#isFull) return;
    this.#isFull = this.#entries.length >= LOG_ENTRIES_COUNT_MAX || this.#charactersLeft <= 0;
    if (this.#isFull) this.#add(step, FULL, "warn");
    else this.#add(step, message, "info");
  }

  /** The last lines of a step. */
  tail(step: string, count: number): BuildLogEntry[] {
    return this.#entries
      .slice(-4 * count)
      .filter((entry) => entry.step === step)
      .slice(-count);
  }

  #add(step: string | null, message: string, level: BuildLogLevel): void {
    const text = message.slice(0, MESSAGE_CHARACTERS_MAX);
    this.#charactersLeft -= text.length;
    this.#entries.push({ at: this.#clock(), level, message: text, step });
  }
}

/** Cuts chunks of one stream into lines, of which each has at most MESSAGE_CHARACTERS_MAX characters. */
export class OutputLines {
  readonly #decoder = new TextDecoder();
  readonly #onLine: (line: string) => void;
  #open = "";

  constructor(onLine: (line: string) => void) {
    this.#onLine = onLine;
  }

  take(bytes: Uint8Array): void {
    const lines = (this.#open + this.#decoder.decode(bytes, { stream: true })).split(/\r?\n/);
    this.#open = lines.pop() ?? "";
    for (const line of lines) this.#onLine(line);
    if (this.#open.length < MESSAGE_CHARACTERS_MAX) return;
    this.#onLine(this.#open);
    this.#open = "";
  }

  /** Passes the unterminated rest on. */
  end(): void {
    const rest = this.#open + this.#decoder.decode();
    if (rest !== "") this.#onLine(rest);
  }
}
