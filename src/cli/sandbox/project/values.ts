import { CliError } from "../../command.ts";
import type { ProjectCommand, ProjectStep } from "./project.ts";

const PORT_MAX = 65_535;

/** The settings of a file, by their names. Each reader throws CliError for a value of another type. */
export class Values {
  readonly #file: string;
  readonly #values: Readonly<Record<string, unknown>>;

  /** @throws CliError when it is not an object */
  constructor(file: string, values: unknown) {
    if (typeof values !== "object" || values === null || Array.isArray(values)) {
      throw new CliError(`${file} must have an object`);
    }
    this.#file = file;
    this.#values = values as Readonly<Record<string, unknown>>;
  }

  get names(): readonly string[] {
    return Object.keys(this.#values);
  }

  raw(name: string): unknown {
    return this.#values[name];
  }

  text(name: string): string | undefined {
    const value = this.#values[name];
    if (value === undefined || typeof value === "string") return value;
    throw this.wrong(name, "must be a text");
  }

  texts(name: string): readonly string[] | undefined {
    const value = this.#values[name];
    if (value === undefined) return undefined;
    if (Array.isArray(value) && value.every((item) => typeof item === "string")) return value as string[];
    throw this.wrong(name, "must be an array of texts");
  }

  /** Names and texts; an entry that is null is left out. */
  variables(name: string): Record<string, string> | undefined {
    const value = this.#values[name];
    if (value === undefined) return undefined;
    if (typeof value !== "object" || value === null || Array.isArray(value)) {
      throw this.wrong(name, "must be an object of texts");
    }
    const entries = Object.entries(value).filter(([, text]) => text !== null);
    for (const [key, text] of entries) {
      if (typeof text !== "string") throw this.wrong(`${name}.${key}`, "must be a text");
    }
    return Object.fromEntries(entries as [string, string][]);
  }

  integer(name: string): number | undefined {
    const value = this.#values[name];
    if (value === undefined || Number.isSafeInteger(value)) return value as number | undefined;
    throw this.wrong(name, "must be an integer");
  }

  /** Port numbers, and texts such as `3000` and `localhost:3000`; `others` gets those of other hosts. */
  ports(name: string, others: (text: string) => void): number[] {
    const value = this.#values[name] ?? [];
    const items = Array.isArray(value) ? value : [value];
    return items.flatMap((item: unknown) => {
      const [, host, port] = /^(?:([^:]+):)?(\d{1,5})$/.exec(String(item)) ?? [];
      const number = Number(port);
      if (!(number >= 1 && number <= PORT_MAX))
        throw this.wrong(name, `has ${JSON.stringify(item)}, and must have port numbers`);
      if (host === undefined || host === "localhost" || host === "127.0.0.1") return [number];
      others(String(item));
      return [];
    });
  }

  /** A command in one of three forms: a line, a program with its arguments, or an object of such, which run together. */
  step(name: string): ProjectStep[] {
    const value = this.#values[name];
    if (value === undefined || value === null) return [];
    const isGroup = typeof value === "object" && !Array.isArray(value);
    const commands = isGroup ? Object.entries(value) : [["", value] as const];
    const checked = commands.map(([key, each]) => this.#command(key === "" ? name : `${name}.${key}`, each));
    return [{ name, commands: checked.filter(({ length }) => length > 0) }];
  }

  wrong(name: string, rule: string): CliError {
    return new CliError(`${this.#file}: ${name} ${rule}`);
  }

  #command(name: string, value: unknown): ProjectCommand {
    if (typeof value === "string") return value;
    if (Array.isArray(value) && value.every((word) => typeof word === "string")) return value as string[];
    throw this.wrong(name, "must be a line, an array of words, or an object of such");
  }
}
