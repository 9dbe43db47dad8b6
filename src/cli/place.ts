import type { Client } from "../client/client.ts";
import { ResponseError } from "../client/errors.ts";
import { type Place, pathOfPlace } from "../client/place.ts";
import { COMMAND_SPID } from "../client/processes.ts";
import { parseUuidOrDigits } from "../domain/ids.ts";
import { isSandboxName } from "../domain/sandbox.ts";
import { UsageError } from "./command.ts";

const NAME_PREFIX = "name:";
/** Answers that say that there is no such sandbox, or that the token may not read sandboxes. */
const NO_SANDBOX: ReadonlySet<number> = new Set([403, 404]);

export type SandboxPlace = Place & { readonly sandbox: string };

/**
 * Does work in the place that a person names: a UUID, also without dashes, is that of an instance or a sandbox, and any other text is the name of a
 * sandbox, alone or as `name:NAME`. The first request of `work` must be one to the place: when an appliance has no instance
 * with that UUID, the work is done again with the sandbox.
 * @throws as `work` does
 */
export async function inPlace<T>(client: Client, text: string, work: (place: Place) => Promise<T>): Promise<T> {
  const uuid = parseUuidOrDigits(text);
  if (uuid === null) return await work(sandboxNamed(text));
  try {
    return await work({ instance: uuid });
  } catch (error) {
    const isMissing = error instanceof ResponseError && error.status === 404;
    if (!isMissing || !(await isSandbox(client, uuid))) throw error;
  }
  return await work({ sandbox: uuid });
}

/** The sandbox that a person names, by its UUID, its name or `name:NAME`. @throws UsageError for what no sandbox is named */
export function sandboxNamed(text: string): SandboxPlace {
  const uuid = parseUuidOrDigits(text);
  if (uuid !== null) return { sandbox: uuid };
  const name = text.startsWith(NAME_PREFIX) ? text.slice(NAME_PREFIX.length) : text;
  if (isSandboxName(name)) return { sandbox: NAME_PREFIX + name };
  throw new UsageError(
    `${JSON.stringify(text)} is not the name of a sandbox: up to 40 lower-case letters, digits and hyphens`,
  );
}

/** The text by which a person names a place. */
export function placeText({ instance, sandbox }: Place): string {
  if (sandbox === undefined) return instance;
  return sandbox.startsWith(NAME_PREFIX) ? sandbox.slice(NAME_PREFIX.length) : sandbox;
}

/** The command that comes back to a process. */
export function attachText(process: Place & { readonly spid: number }): string {
  const isCommand = process.sandbox === undefined && process.spid === COMMAND_SPID;
  return `coppice attach ${placeText(process)}${isCommand ? "" : ` ${process.spid}`}`;
}

/** Whether a UUID is that of a sandbox which the token may read. @throws UnreachableError, ResponseError */
export async function isSandbox(client: Client, uuid: string): Promise<boolean> {
  try {
    await client.exchange("GET", pathOfPlace({ sandbox: uuid }));
    return true;
  } catch (error) {
    if (error instanceof ResponseError && NO_SANDBOX.has(error.status)) return false;
    throw error;
  }
}
