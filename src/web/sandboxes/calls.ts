import { given } from "../../domain/given.ts";
import { request } from "../data/api.ts";
import type { Sandbox, SandboxChange, SandboxRequest, SandboxState, SavedState } from "./wire.ts";

/** A saved state that is a new image, with a name for it; an empty name is none. */
export interface Keeping {
  readonly keep: boolean;
  readonly tag: string;
}

/** A page of sandboxes. `next` is the cursor of the one after it; null on the last page. */
export interface SandboxPage {
  readonly sandboxes: readonly Sandbox[];
  readonly next: string | null;
}

const PATH = "/v1/sandboxes";

/** The path of a sandbox below the origin of the API. @param id a uuid, or `name:` and a name */
export const pathOfSandbox = (id: string): string => `${PATH}/${encodeURIComponent(id)}`;

interface SandboxQuery {
  /** absent: every state but `ended` */
  readonly state?: SandboxState;
  readonly cursor?: string;
  readonly limit: number;
}

/** @throws Problem; the reason of the signal, as all of these */
export async function listSandboxes(query: SandboxQuery, signal: AbortSignal): Promise<SandboxPage> {
  const fields = Object.entries(query).map(([name, value]) => [name, String(value)]);
  const response = await request(`${PATH}?${new URLSearchParams(fields)}`, { signal });
  return { sandboxes: (await response.json()) as Sandbox[], next: response.headers.get("x-next-cursor") };
}

export const readSandbox = (id: string, signal: AbortSignal): Promise<Sandbox> => read(pathOfSandbox(id), signal);

/** The saved states of a sandbox, newest first. */
export const readStates = (id: string, signal: AbortSignal): Promise<SavedState[]> =>
  read(`${pathOfSandbox(id)}/states`, signal);

/** Opens a sandbox, and returns it before its machine runs. */
export const openSandbox = (body: SandboxRequest): Promise<Sandbox> => send("POST", PATH, body);

export const changeSandbox = (id: string, change: SandboxChange): Promise<Sandbox> =>
  send("PATCH", pathOfSandbox(id), change);

export const pauseSandbox = (id: string): Promise<Sandbox> => send("POST", `${pathOfSandbox(id)}/pause`);

/** @param wait time until it runs, in `seconds`; absent: none */
export const resumeSandbox = (id: string, wait?: number): Promise<Sandbox> =>
  send("POST", `${pathOfSandbox(id)}/resume${wait === undefined ? "" : `?wait=${wait}`}`);

/** Returns the operation that makes the image. @param tag a name for the image; empty: none */
export const checkpointSandbox = (id: string, tag: string): Promise<{ readonly uuid: string }> =>
  send("POST", `${pathOfSandbox(id)}/checkpoint`, named(tag));

/** @param name prefix of the names; empty: the appliance makes them */
export const forkSandbox = (id: string, count: number, name: string): Promise<Sandbox[]> =>
  send("POST", `${pathOfSandbox(id)}/fork`, { count, ...given({ name: name.trim() || undefined }) });

/** @param image uuid, `tag:` and a tag, or `HEAD~n` */
export const rollBackSandbox = (id: string, image: string, { keep, tag }: Keeping): Promise<Sandbox> =>
  send("POST", `${pathOfSandbox(id)}/rollback`, { image, ...(keep ? { keep, ...named(tag) } : {}) });

export async function endSandbox(id: string, { keep, tag }: Keeping): Promise<void> {
  const query = new URLSearchParams(keep ? { keep: "true", ...named(tag) } : {});
  await request(`${pathOfSandbox(id)}?${query}`, { method: "DELETE" });
}

/** A link to a port that anyone may follow until it expires. @param ttl in `seconds` */
export const linkToPort = (
  id: string,
  port: number,
  ttl?: number,
): Promise<{ readonly url: string; readonly expires_at: string }> =>
  send("POST", `${pathOfSandbox(id)}/links`, { port, ...given({ ttl }) });

function named(tag: string): { tag?: string } {
  return tag.trim() === "" ? {} : { tag: tag.trim() };
}

async function read<T>(path: string, signal: AbortSignal): Promise<T> {
  return (await (await request(path, { signal })).json()) as T;
}

async function send<T>(method: string, path: string, body?: object): Promise<T> {
  const json = { headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  return (await (await request(path, { method, ...(body === undefined ? {} : json) })).json()) as T;
}
