import { given } from "../domain/given.ts";
import type { Client } from "./client.ts";
import { pause } from "./pause.ts";
import { pathOfPlace } from "./place.ts";
import type {
  ForkRequest,
  PauseRequest,
  ResumeRequest,
  RollbackRequest,
  Sandbox,
  SandboxChange,
  SandboxRequest,
  SavedState,
} from "./types.ts";

/** States that pass by themselves. */
const PASSING: ReadonlySet<string> = new Set(["starting", "pausing", "resuming"]);
/** One long poll, in `seconds`. */
const WAIT_SECONDS = 30;
const POLL_MS = 500;

/** A reference to a sandbox: its uuid or `name:NAME`. */
export type SandboxReference = string;

const pathOf = (sandbox: SandboxReference): string => pathOfPlace({ sandbox });

/**
 * Opens a sandbox, which is starting or runs.
 * @param wait longest time until it has settled, in `seconds`, as in all of these functions; 0: none
 * @throws ResponseError `conflict` for a name that is in use; UnreachableError
 */
export async function openSandbox(client: Client, request: SandboxRequest, wait = WAIT_SECONDS): Promise<Sandbox> {
  return await client.exchange<Sandbox>("POST", "/sandboxes", { json: request, query: { wait } });
}

/** @throws ResponseError `not_found`, UnreachableError */
export async function readSandbox(client: Client, sandbox: SandboxReference, signal?: AbortSignal): Promise<Sandbox> {
  return await client.exchange<Sandbox>("GET", pathOf(sandbox), given({ signal }));
}

export interface SandboxFilter {
  readonly state?: Sandbox["state"];
  readonly metadata?: Readonly<Record<string, string>>;
}

/** Sandboxes, the newest first. `next` is the cursor of the next page; null on the last one. */
export interface SandboxPage {
  readonly sandboxes: readonly Sandbox[];
  readonly next: string | null;
}

export interface SandboxPageOptions extends SandboxFilter {
  /** of the page; absent: the first one */
  readonly cursor?: string;
  /** number of sandboxes */
  readonly limit?: number;
  readonly signal?: AbortSignal;
}

/** The sandboxes that have not ended, or those in one state. @throws ResponseError, UnreachableError, the reason of `signal` */
export async function sandboxPage(
  client: Client,
  { metadata = {}, signal, ...filter }: SandboxPageOptions = {},
): Promise<SandboxPage> {
  const filters = Object.fromEntries(Object.entries(metadata).map(([key, value]) => [`metadata.${key}`, value]));
  const response = await client.call("GET", "/sandboxes", { query: { ...filters, ...filter }, ...given({ signal }) });
  return { sandboxes: (await response.json()) as Sandbox[], next: response.headers.get("x-next-cursor") };
}

/** All of them. @throws as `sandboxPage` */
export async function* listSandboxes(
  client: Client,
  filter: SandboxFilter = {},
): AsyncGenerator<Sandbox, void, undefined> {
  for (let cursor: string | null | undefined; cursor !== null; ) {
    const page: SandboxPage = await sandboxPage(client, { ...filter, ...given({ cursor }) });
    yield* page.sandboxes;
    cursor = page.next;
  }
}

/** Changes settings of a sandbox; its network changes at once. @throws ResponseError, UnreachableError */
export async function changeSandbox(
  client: Client,
  sandbox: SandboxReference,
  change: SandboxChange,
): Promise<Sandbox> {
  return await client.exchange<Sandbox>("PATCH", pathOf(sandbox), { json: change });
}

/**
 * Saves the files of a running sandbox, and its memory on request, and ends its machine. When the memory cannot be kept, the
 * sandbox continues.
 * @throws ResponseError, UnreachableError
 */
export async function pauseSandbox(
  client: Client,
  sandbox: SandboxReference,
  { wait = WAIT_SECONDS, ...request }: PauseRequest & Waiting = {},
): Promise<Sandbox> {
  return await client.exchange<Sandbox>("POST", `${pathOf(sandbox)}/pause`, { json: request, query: { wait } });
}

/**
 * Continues a paused sandbox with its memory if that is kept, or starts a paused or failed one from its head.
 * @throws ResponseError, `not_resumable` when the memory is kept but cannot be continued; UnreachableError
 */
export async function resumeSandbox(
  client: Client,
  sandbox: SandboxReference,
  { wait = WAIT_SECONDS, ...request }: ResumeRequest & Waiting = {},
): Promise<Sandbox> {
  return await client.exchange<Sandbox>("POST", `${pathOf(sandbox)}/resume`, { json: request, query: { wait } });
}

interface Waiting {
  /** time for the change of state, in `seconds` */
  readonly wait?: number;
}

/** Gives a sandbox the files of an image, in place. @throws ResponseError, UnreachableError */
export async function rollbackSandbox(
  client: Client,
  sandbox: SandboxReference,
  to: RollbackRequest,
  wait = WAIT_SECONDS,
): Promise<Sandbox> {
  const options = { json: to, query: { wait } };
  return await client.exchange<Sandbox>("POST", `${pathOf(sandbox)}/rollback`, options);
}

/** Opens sandboxes with the present files of a sandbox, all or none. @throws ResponseError, UnreachableError */
export async function forkSandbox(
  client: Client,
  sandbox: SandboxReference,
  request: Omit<ForkRequest, "memory" | "signal">,
  wait = WAIT_SECONDS,
): Promise<Sandbox[]> {
  const options = { json: request, query: { wait } };
  return await client.exchange<Sandbox[]>("POST", `${pathOf(sandbox)}/fork`, options);
}

/** The saved states that are kept, the newest first. @throws ResponseError, UnreachableError */
export async function savedStates(
  client: Client,
  sandbox: SandboxReference,
  signal?: AbortSignal,
): Promise<SavedState[]> {
  return await client.exchange<SavedState[]>("GET", `${pathOf(sandbox)}/states`, given({ signal }));
}

/** A link that opens a port of a sandbox in a browser. */
export interface PortLink {
  readonly url: string;
  readonly expires_at: string;
}

/** @param ttl in `seconds` @throws ResponseError, UnreachableError */
export async function linkToPort(
  client: Client,
  sandbox: SandboxReference,
  request: { readonly port: number; readonly ttl?: number },
): Promise<PortLink> {
  return await client.exchange<PortLink>("POST", `${pathOf(sandbox)}/links`, { json: request });
}

export interface EndOptions {
  /** true: the files of a running sandbox are saved first */
  readonly keep?: boolean;
  /** tag for the image of these files */
  readonly tag?: string;
}

/** Ends a sandbox for good. @throws ResponseError, UnreachableError */
export async function endSandbox(
  client: Client,
  sandbox: SandboxReference,
  options: EndOptions = {},
  wait = WAIT_SECONDS,
): Promise<Sandbox> {
  return await client.exchange<Sandbox>("DELETE", pathOf(sandbox), { query: { ...options, wait } });
}

/**
 * Waits until a sandbox is in a state that does not pass by itself.
 * @throws ResponseError, UnreachableError, the reason of `signal`
 */
export async function settledSandbox(client: Client, sandbox: Sandbox, signal?: AbortSignal): Promise<Sandbox> {
  let now = sandbox;
  while (PASSING.has(now.state)) {
    await pause(POLL_MS, signal);
    now = await readSandbox(client, now.uuid, signal);
  }
  return now;
}
