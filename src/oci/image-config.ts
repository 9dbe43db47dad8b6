import { ApiError } from "../domain/errors.ts";
import { CWD_LABEL, fittingVariables, type ImageDefaults } from "../domain/image-defaults.ts";
import { displayName, parseGuestPathText } from "../domain/tree/guest-path.ts";

/**
 * The defaults for commands in the part of a config that container tools use. WorkingDir is ignored: only an image of this
 * service has a working directory, in a label. Values that are malformed or beyond the limits of an image are omitted, so
 * that they do not prevent its import.
 */
export function defaultsOf(config: unknown): ImageDefaults {
  const { Env, Labels } = recordOf(config);
  const cwd = recordOf(Labels)[CWD_LABEL];
  return { variables: variablesOf(Array.isArray(Env) ? Env : []), cwd: typeof cwd === "string" ? pathOf(cwd) : null };
}

function recordOf(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null ? (value as Readonly<Record<string, unknown>>) : {};
}

/** The last of several values of a name counts. */
function variablesOf(entries: readonly unknown[]): Readonly<Record<string, string>> {
  const variables = new Map<string, string>();
  for (const entry of entries) {
    if (typeof entry !== "string" || entry.includes("\0") || !entry.isWellFormed()) continue;
    const at = entry.indexOf("=");
    if (at > 0) variables.set(entry.slice(0, at), entry.slice(at + 1));
  }
  return Object.fromEntries(fittingVariables([...variables]));
}

function pathOf(text: string): string | null {
  try {
    return text.isWellFormed() ? displayName(parseGuestPathText(text)) : null;
  } catch (error) {
    if (error instanceof ApiError) return null;
    throw error;
  }
}
