import type { Log, LogFields, LogLevel } from "../../log.ts";

/** Operations of which lines are kept, the youngest; older ones are in the journal of the system only. */
const OPERATIONS_COUNT_MAX = 2000;
const LINES_COUNT_MAX = 50;
const TEXT_CHARACTERS_MAX = 1000;

/** Fields that the owner of an operation may read; others may tell of the host. */
const SHOWN_FIELDS = ["request", "kind", "status", "error", "reason"] as const;

/** What the log said about an operation. */
export interface OperationLine {
  /** `milliseconds` since the epoch */
  readonly at: number;
  readonly level: LogLevel;
  readonly message: string;
  readonly fields: Readonly<Record<string, string>>;
  /** `milliseconds` of each step, in the last line */
  readonly phases?: Readonly<Record<string, number>>;
}

/** Keeps the latest lines about each operation in memory, for those who cannot read the journal of the system. */
export class OperationLog {
  readonly #lines = new Map<string, OperationLine[]>();
  readonly #clock: () => number;

  constructor(clock: () => number) {
    this.#clock = clock;
  }

  /** The oldest first; empty for an operation that is unknown here. */
  lines(operation: string): readonly OperationLine[] {
    return this.#lines.get(operation) ?? [];
  }

  /** A log that does what `log` does, and keeps what names an operation. */
  listenTo(log: Log, bound: LogFields = {}): Log {
    const at =
      (level: LogLevel) =>
      (message: string, fields: LogFields = {}): void => {
        log[level](message, fields);
        // Debug lines come with every request, and seldom name an operation.
        if (fields["operation"] === undefined && bound["operation"] === undefined) return;
        this.#take(level, message, { ...bound, ...fields });
      };
    return {
      debug: at("debug"),
      info: at("info"),
      warn: at("warn"),
      error: at("error"),
      child: (fields) => this.listenTo(log.child(fields), { ...bound, ...fields }),
    };
  }

  #take(level: LogLevel, message: string, fields: LogFields): void {
    const { operation } = fields;
    if (typeof operation !== "string") return;
    const lines = this.#lines.get(operation) ?? this.#open(operation);
    if (lines.length >= LINES_COUNT_MAX) return;
    const shown = SHOWN_FIELDS.flatMap((name): [string, string][] => {
      const value = fields[name];
      return typeof value === "string" ? [[name, value.slice(0, TEXT_CHARACTERS_MAX)]] : [];
    });
    const phases = fields["phases"] as OperationLine["phases"];
    const text = message.slice(0, TEXT_CHARACTERS_MAX);
    const line = { at: this.#clock(), level, message: text, fields: Object.fromEntries(shown) };
    lines.push(phases === undefined ? line : { ...line, phases });
  }

  #open(operation: string): OperationLine[] {
    const [oldest] = this.#lines.keys();
    if (oldest !== undefined && this.#lines.size >= OPERATIONS_COUNT_MAX) this.#lines.delete(oldest);
    const lines: OperationLine[] = [];
    this.#lines.set(operation, lines);
    return lines;
  }
}
