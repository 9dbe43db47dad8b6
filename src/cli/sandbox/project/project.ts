import type { SandboxRequest } from "../../../client/types.ts";
import type { Environment } from "../../../config/config.ts";

const NAME_CHARACTERS_MAX = 40;

/** A command of a project: a line for /bin/sh, or a program with its arguments. */
export type ProjectCommand = string | readonly string[];

/** Commands that run together; the next step begins when all have succeeded. */
export interface ProjectStep {
  /** the setting that it comes from */
  readonly name: string;
  readonly commands: readonly ProjectCommand[];
}

/** The sandbox that a directory describes. */
export interface Project {
  /** the file that describes it */
  readonly file: string;
  /** the directory whose files the sandbox gets */
  readonly directory: string;
  /** uuid, `tag:NAME`, or a reference of a registry; null: the command line must name one */
  readonly image: string | null;
  readonly name: string;
  readonly request: Omit<SandboxRequest, "image" | "name">;
  /** directory of the sandbox for the files of the project; null: they stay here */
  readonly target: string | null;
  /** ports that people will want to see */
  readonly ports: readonly number[];
  /** steps after the sandbox was created */
  readonly created: readonly ProjectStep[];
  /** steps after each of its starts */
  readonly started: readonly ProjectStep[];
  /** the last steps, such as servers: their commands are left running */
  readonly served: readonly ProjectStep[];
  /** settings that have no effect here, with the reasons */
  readonly notes: readonly string[];
}

/** A file about a project. */
export interface ProjectSource {
  readonly file: string;
  readonly text: string;
  readonly directory: string;
  readonly environment: Environment;
}

/** A name for a sandbox, from a text for people. */
export function sandboxNameOf(text: string): string {
  const name = text
    .toLowerCase()
    .replaceAll(/[^a-z0-9]+/g, "-")
    .slice(0, NAME_CHARACTERS_MAX)
    .replaceAll(/^-+|-+$/g, "");
  return name === "" ? "box" : name;
}
