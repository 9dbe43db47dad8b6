import { existsSync, readFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import type { Environment } from "../../../config/config.ts";
import { CliError } from "../../command.ts";
import { readDevcontainer } from "./devcontainer.ts";
import { readManifest } from "./manifest.ts";
import type { Project } from "./project.ts";

/** Where a project may describe itself, in the order of precedence. */
const FILES = ["coppice.toml", ".devcontainer/devcontainer.json", ".devcontainer.json"] as const;

/**
 * The project of a directory; null when it has none.
 * @param file the file to read; absent: the first of the usual ones
 * @throws CliError for a file that cannot be read, or that asks for what is not supported
 */
export function projectOf(directory: string, environment: Environment, file?: string): Project | null {
  const path = file ?? FILES.map((each) => join(directory, each)).find((each) => existsSync(each));
  if (path === undefined) return null;
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (error) {
    throw new CliError(`cannot read ${path}: ${(error as NodeJS.ErrnoException).code}`);
  }
  const source = { file: path, text, directory: file === undefined ? directory : rootOf(file), environment };
  return path.endsWith(".toml") ? readManifest(source) : readDevcontainer(source);
}

/** The directory that a file describes. */
function rootOf(file: string): string {
  const directory = dirname(file);
  return basename(directory) === ".devcontainer" ? dirname(directory) : directory;
}
