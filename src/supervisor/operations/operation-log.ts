import type { Log, LogFields, LogLevel } from "../../log.ts";
import type { OperationChanges } from "./changes.ts";

/**
 * Number of operations that do not run whose log lines are kept. Those of older operations are in the system's journal only.
 * Log lines of running operations are kept until the operations end.
 */
const OPERATIONS_COUNT_MAX = 2000;
const LINES_COUNT_MAX = 50;
const TEXT_CHARACTERS_MAX = 1000;

/** The fields that the owner of an operation may read; other fields may reveal details of the host. */
const PUBLIC_FIELDS = ["request", "kind", "status", "error", "reason"] as const;

/** A log line about an operation. */
export interface OperationLine {
  /** `milliseconds` since the epoch */
  readonly at: number;
  readonly level: LogLevel;
  readonly message: string;
  readonly fields: Readonly<Record<string, string>>;
  /** duration of each step in `milliseconds`; only the last line has it */
  readonly phases?: Readonly<Record<string, number>>;
}

/** Stores the log lines of each operation in memory, for clients of the API, which cannot read the system's journal. */
export class OperationLog {
  readonly #lines = new Map<string, OperationLine[]>();
  /** of running operations, which the scheduler bounds */
  readonly #running = new Map<string, OperationLine[]>();
  readonly #clock: () => number;

  constructor(clock: () => number) {
    this.#clock = clock;
  }

  /** The lines of an operation, the oldest first; empty when none are kept. */
  lines(operation: string): readonly OperationLine[] {
    return this.#linesOf(operation) ?? [];
  }

  /** Records which operations run, until disposal. */
  follow(changes: OperationChanges): Disposable {
    return changes.subscribe(({ type, operation: { id } }) => {
      if (type === "started") {
        this.#running.set(id, this.#linesOf(id) ?? []);
        this.#lines.delete(id);
        return;
      }
      const lines = this.#running.get(id);
      if (type === "accepted" || lines === undefined) return;
      this.#running.delete(id);
      this.#keep(id, lines);
    });
  }

  /** Wraps `log`: the result passes every line to it, and stores the lines that have an `operation` field. */
  listenTo(log: Log, bound: LogFields = {}): Log {
    const at =
      (level: LogLevel) =>
      (message: string, fields: LogFields = {}): void => {
        log[level](message, fields);
        // Every request writes debug lines, and few of them name an operation: return before the fields are copied.
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
    const lines = this.#linesOf(operation) ?? this.#keep(operation, []);
    if (lines.length >= LINES_COUNT_MAX) return;
    const publicFields = PUBLIC_FIELDS.flatMap((name): [string, string][] => {
      const value = fields[name];
      return typeof value === "string" ? [[name, value.slice(0, TEXT_CHARACTERS_MAX)]] : [];
    });
    const phases = fields["phases"] as OperationLine["phases"];
    const text = message.slice(0, TEXT_CHARACTERS_MAX);
    const line = { at: this.#clock(), level, message: text, fields: Object.fromEntries(publicFields) };
    lines.push(phases === undefined ? line : { ...line, phases });
  }

  #linesOf(operation: string): OperationLine[] | undefined {
    return this.#running.get(operation) ?? this.#lines.get(operation);
  }

  #keep(operation: string, lines: OperationLine[]): OperationLine[] {
    const [oldest] = this.#lines.keys();
    if (oldest !== undefined && this.#lines.size >= OPERATIONS_COUNT_MAX) this.#lines.delete(oldest);
    this.#lines.set(operation, lines);
    return lines;
  }
}
