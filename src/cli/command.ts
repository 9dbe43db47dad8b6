import { type ParseArgsOptionsConfig, parseArgs } from "node:util";
import type { Environment } from "../config/config.ts";
import { given } from "../domain/given.ts";
import { bytesOfSize, DURATION_FORM, SIZE_FORM, secondsOfDuration } from "../domain/text/quantities.ts";
import type { Io } from "./io.ts";

/** Exit codes of coppice itself; after a run, the exit code is that of the command in the sandbox. */
export const EXIT_FAILED = 1;
export const EXIT_USAGE = 2;
/** The appliance could not run the command; `docker run` has the same code. */
export const EXIT_NOT_RUN = 125;
export const EXIT_INTERRUPTED = 130;

/** The command line is wrong; the message is printed with a pointer to the help. */
export class UsageError extends Error {
  override readonly name = "UsageError";
}

/** An expected failure: its message is printed, without a stack. */
export class CliError extends Error {
  override readonly name = "CliError";
  readonly exitCode: number;

  constructor(message: string, exitCode: number = EXIT_FAILED, options?: ErrorOptions) {
    super(message, options);
    this.exitCode = exitCode;
  }
}

export interface OptionSpec {
  readonly type: "string" | "boolean";
  /** one letter */
  readonly short?: string;
  readonly multiple?: boolean;
  /** placeholder of the value in the help */
  readonly value?: string;
  /** true: the value may be left out, and is empty then; it follows a `=` */
  readonly isValueOptional?: boolean;
  /** all allowed values, for completion */
  readonly choices?: readonly string[];
  readonly doc: string;
}

/** Option of commands whose output is for people by default. */
export const JSON_OPTION = { json: { type: "boolean", doc: "print JSON" } } as const;

export type OptionSpecs = Readonly<Record<string, OptionSpec>>;

type OptionValue<S extends OptionSpec> = S["type"] extends "boolean"
  ? boolean
  : S["multiple"] extends true
    ? string[]
    : string;

export type OptionValues<S extends OptionSpecs> = { readonly [Name in keyof S]?: OptionValue<S[Name]> | undefined };

export interface Invocation<S extends OptionSpecs> {
  readonly options: OptionValues<S>;
  readonly positionals: readonly string[];
  readonly io: Io;
  readonly environment: Environment;
}

export interface CommandSpec<S extends OptionSpecs> {
  /** words after `coppice` */
  readonly name: string;
  /** one line, for lists */
  readonly summary: string;
  /** the usage line after the name */
  readonly synopsis: string;
  /** paragraphs below the usage line */
  readonly description?: string;
  readonly examples?: readonly string[];
  readonly options: S;
  /** allowed values of the only argument, for completion */
  readonly choices?: readonly string[];
  /** true: the first word that is not an option begins a command with its own options */
  readonly takesCommand?: boolean;
  /** Returns the exit code. */
  run(invocation: Invocation<S>): Promise<number>;
}

export interface Command {
  readonly name: string;
  readonly summary: string;
  readonly options: OptionSpecs;
  /** allowed values of the only argument, for completion */
  readonly choices: readonly string[];
  help(): string;
  /** @throws UsageError, CliError */
  run(argv: readonly string[], io: Io, environment: Environment): Promise<number>;
}

const HELP: OptionSpec = { type: "boolean", short: "h", doc: "show this help" };

/** Makes a command from its description, and adds the parsing of options and `--help`. */
export function command<const S extends OptionSpecs>(spec: CommandSpec<S>): Command {
  const options: OptionSpecs = { ...spec.options, help: HELP };
  const help = (): string => renderHelp(spec, options);
  return {
    name: spec.name,
    summary: spec.summary,
    options,
    choices: spec.choices ?? [],
    help,
    async run(argv, io, environment) {
      const { values, positionals } = parse(argv, options, spec.takesCommand ?? false);
      if (values["help"] === true) {
        await io.stdout(help());
        return 0;
      }
      return await spec.run({ options: values as OptionValues<S>, positionals, io, environment });
    },
  };
}

function parse(argv: readonly string[], options: OptionSpecs, takesCommand: boolean) {
  const config = Object.fromEntries(
    Object.entries(options).map(([name, { type, multiple, short }]) => [
      name,
      { type, multiple: multiple ?? false, ...given({ short }) },
    ]),
  );
  try {
    const spelled = withEmptyValues(argv, options);
    const args = takesCommand ? withTerminator(spelled, config) : spelled;
    return parseArgs({ args, options: config, allowPositionals: true, strict: true });
  } catch (error) {
    // For mistakes of the user parseArgs throws a TypeError with a code; its first sentence names the mistake.
    if (!String((error as { code?: unknown }).code).startsWith("ERR_PARSE_ARGS")) throw error;
    const message = (error as Error).message.split(". ")[0]?.replace(/\.$/, "") ?? "";
    throw new UsageError(message.charAt(0).toLowerCase() + message.slice(1));
  }
}

/** The arguments with a `=` after each option whose value may be left out, and is. */
function withEmptyValues(argv: readonly string[], options: OptionSpecs): string[] {
  const end = argv.indexOf("--");
  const isBare = (word: string, index: number): boolean =>
    word.startsWith("--") && (end < 0 || index < end) && options[word.slice(2)]?.isValueOptional === true;
  return argv.map((word, index) => (isBare(word, index) ? `${word}=` : word));
}

/** The arguments with `--` before the first one that is not an option, as if the user had written it. */
function withTerminator(argv: readonly string[], options: ParseArgsOptionsConfig): string[] {
  const { tokens } = parseArgs({ args: [...argv], options, allowPositionals: true, strict: false, tokens: true });
  const first = tokens.find(({ kind }) => kind !== "option");
  if (first?.kind !== "positional") return [...argv];
  return [...argv.slice(0, first.index), "--", ...argv.slice(first.index)];
}

function renderHelp<S extends OptionSpecs>(spec: CommandSpec<S>, options: OptionSpecs): string {
  const rows = Object.entries(options).map(
    ([name, { value, isValueOptional, doc, multiple, short }]): [string, string] => [
      `${short === undefined ? "" : `-${short}, `}--${name}${shownValue(value, isValueOptional)}`,
      multiple === true ? `${doc}; may be repeated` : doc,
    ],
  );
  const sections = [
    `Usage: coppice ${spec.name}${spec.synopsis === "" ? "" : ` ${spec.synopsis}`}`,
    `${spec.summary[0]?.toUpperCase()}${spec.summary.slice(1)}.`,
    ...(spec.description === undefined ? [] : [spec.description]),
    `Options:\n${columns(rows)}`,
    ...(spec.examples === undefined ? [] : [`Examples:\n${spec.examples.map((line) => `  ${line}`).join("\n")}`]),
  ];
  return `${sections.join("\n\n")}\n`;
}

function shownValue(value: string | undefined, isOptional = false): string {
  if (value === undefined) return "";
  return isOptional ? `[=${value}]` : ` ${value}`;
}

/** Widest first column of a list; a longer entry gets a line of its own. */
const COLUMN_WIDTH_MAX = 34;

/** Widest line of help and reports. */
export const LINE_WIDTH_MAX = 100;

/** Two aligned columns, indented; the second is wrapped. */
export function columns(rows: readonly (readonly [string, string])[]): string {
  const width = Math.max(...rows.map(([first]) => first.length).filter((length) => length <= COLUMN_WIDTH_MAX));
  const indent = " ".repeat(width + 4);
  return rows
    .map(([first, second]) => {
      const text = wrap(second, LINE_WIDTH_MAX - indent.length).join(`\n${indent}`);
      return first.length > width ? `  ${first}\n${indent}${text}` : `  ${first.padEnd(width)}  ${text}`;
    })
    .join("\n");
}

/** Lines of whole words, no wider than `width` unless a single word is wider. */
export function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  for (const word of text.split(" ")) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + 1 + word.length <= width) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines;
}

/** Checks the number of positionals. @throws UsageError that names the missing or the first surplus one */
export function expectPositionals(positionals: readonly string[], ...names: string[]): string[] {
  const missing = names[positionals.length];
  if (missing !== undefined) throw new UsageError(`${missing} is missing`);
  if (positionals.length > names.length) throw new UsageError(`unexpected argument ${positionals[names.length]}`);
  return [...positionals];
}

/** Reads an option that is a size of at least `min`, in `bytes`. @throws UsageError */
export function sizeOption(name: string, value: string | undefined, min: number): number | undefined {
  if (value === undefined) return undefined;
  const bytes = bytesOfSize(value);
  if (bytes === null || bytes < min) throw new UsageError(`--${name} must be ${SIZE_FORM}`);
  return bytes;
}

/** Reads an option that is a duration of a second or more, in `seconds`. @throws UsageError */
export function secondsOption(name: string, value: string | undefined): number | undefined {
  return value === undefined ? undefined : secondsOf(`--${name}`, value);
}

/** Reads a duration of a second or more, in `seconds`. @throws UsageError which begins with `name` */
export function secondsOf(name: string, value: string): number {
  const seconds = secondsOfDuration(value);
  if (seconds === null || seconds < 1) throw new UsageError(`${name} must be ${DURATION_FORM}`);
  return seconds;
}

/** Reads an option that must be an integer of at least `min`. @throws UsageError */
export function integerOption(name: string, value: string | undefined, min: number): number | undefined {
  if (value === undefined) return undefined;
  const number = Number(value);
  if (!/^\d+$/.test(value) || !Number.isSafeInteger(number) || number < min) {
    throw new UsageError(`--${name} must be an integer of at least ${min}`);
  }
  return number;
}
