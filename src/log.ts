/**
 * Log levels. error: a request of a user failed because of the service or its host; warn: something abnormal happened that
 * does no harm; info: a rare change of state; debug: may repeat often.
 */
export const LOG_LEVELS = ["debug", "info", "warn", "error"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

export type LogFields = Record<string, unknown>;

export interface Log {
  debug(message: string, fields?: LogFields): void;
  info(message: string, fields?: LogFields): void;
  warn(message: string, fields?: LogFields): void;
  error(message: string, fields?: LogFields): void;
  /** A log that adds `fields` to every line. */
  child(fields: LogFields): Log;
}

export interface LogOptions {
  readonly level: LogLevel;
  /** JSON lines for machines, text for a terminal */
  readonly format: "json" | "text";
  readonly color?: boolean;
  /** writes a line, which includes its newline; the default is standard error */
  readonly write?: (line: string) => void;
  /** `milliseconds` since the epoch */
  readonly clock?: () => number;
}

export const REDACTED = "[redacted]";

/** Names of fields whose values are never logged. */
const SECRET_NAME = /pass(word|wd)?$|secret|token$|authorization|credential|^stdin$|^env$|private_?key/i;
/** A JSON Web Token anywhere in a text. */
const JSON_WEB_TOKEN = /\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]{5,}/g;
/** Values that are nested deeper are left out of a log line. */
const DEPTH_MAX = 6;

export function createLog(options: LogOptions): Log {
  const threshold = LOG_LEVELS.indexOf(options.level);
  const write = options.write ?? ((line) => void process.stderr.write(line));
  const clock = options.clock ?? Date.now;
  const render = options.format === "json" ? jsonLine : (line: Line) => textLine(line, options.color ?? false);

  const make = (bound: LogFields): Log => {
    const at = (level: LogLevel) => {
      if (LOG_LEVELS.indexOf(level) < threshold) return () => undefined;
      return (message: string, fields: LogFields = {}) => {
        const clean = redact({ ...bound, ...fields }, 0) as LogFields;
        write(
          `${render({ time: new Date(clock()).toISOString(), level, message: redactText(message), fields: clean })}\n`,
        );
      };
    };
    return {
      debug: at("debug"),
      info: at("info"),
      warn: at("warn"),
      error: at("error"),
      child: (fields) => make({ ...bound, ...fields }),
    };
  };
  return make({});
}

const ignore = (): void => undefined;

/** A log that writes nothing; for tests. */
export const silentLog: Log = { debug: ignore, info: ignore, warn: ignore, error: ignore, child: () => silentLog };

interface Line {
  readonly time: string;
  readonly level: LogLevel;
  readonly message: string;
  readonly fields: LogFields;
}

function jsonLine(line: Line): string {
  const { fields, ...head } = line;
  // The first copy of the head puts it first in the line, the second keeps fields from replacing it.
  return JSON.stringify({ ...head, ...fields, ...head });
}

const COLORS: Record<LogLevel, string> = { debug: "\x1b[2m", info: "\x1b[36m", warn: "\x1b[33m", error: "\x1b[31m" };

function textLine(line: Line, color: boolean): string {
  const fields = Object.entries(line.fields).map(([name, value]) => ` ${name}=${textValue(value)}`);
  const level = line.level.toUpperCase().padEnd(5);
  const shownLevel = color ? `${COLORS[line.level]}${level}\x1b[0m` : level;
  return `${line.time} ${shownLevel} ${escapeControl(line.message)}${fields.join("")}`;
}

function textValue(value: unknown): string {
  if (typeof value === "string" && /^[\w./:@+-]+$/.test(value)) return value;
  return escapeControl(JSON.stringify(value) ?? "undefined");
}

/** Escapes control characters, so that the text of a guest or registry cannot control the operator's terminal. */
function escapeControl(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: this replaces control characters.
  return text.replace(/[\x00-\x1f\x7f-\x9f]/g, (char) => `\\x${char.charCodeAt(0).toString(16).padStart(2, "0")}`);
}

function redactText(text: string): string {
  return text.replace(JSON_WEB_TOKEN, REDACTED);
}

/** Copies a value to a form that JSON can express, without its secrets. */
function redact(value: unknown, depth: number): unknown {
  if (typeof value === "string") return redactText(value);
  if (typeof value === "bigint") return value.toString();
  if (typeof value !== "object" || value === null) return value;
  if (value instanceof Date) return value.toISOString();
  if (value instanceof Uint8Array) return `[${value.byteLength} bytes]`;
  if (depth >= DEPTH_MAX) return "[nested]";
  if (value instanceof Error) return redact(errorFields(value), depth);
  if (Array.isArray(value)) return value.map((item) => redact(item, depth + 1));
  return Object.fromEntries(
    Object.entries(value).map(([name, item]) => [name, isSecret(name, item) ? REDACTED : redact(item, depth + 1)]),
  );
}

/** True when a field may be a secret. Numbers and flags, such as `had_credentials`, are not. */
function isSecret(name: string, value: unknown): boolean {
  return SECRET_NAME.test(name) && value !== null && (typeof value === "string" || typeof value === "object");
}

/** Fields of an error, including its own properties (code, argv, stderrTail, …), which say what failed. */
function errorFields(error: Error): LogFields {
  const { name, message, stack, cause } = error;
  const frames = stack?.split("\n").filter((line) => /^\s+at /.test(line));
  return {
    ...error,
    name,
    message,
    ...(cause === undefined ? {} : { cause }),
    ...(frames === undefined || frames.length === 0 ? {} : { stack: frames.map((line) => line.trim()) }),
  };
}
