import type { Client } from "./client.ts";
import { ResponseError } from "./errors.ts";
import { type Place, pathOfPlace, placeOfInstance } from "./place.ts";
import type { ProcessDetails, ProcessRequest, StartedProcess } from "./types.ts";

/** A process of a running instance or sandbox. The command of an instance has the number 1. */
export type ProcessName = Place & { readonly spid: number };

/** Number of the command of an instance. */
export const COMMAND_SPID = 1;

/** The path of the processes of a place. */
export const pathOfProcesses = (place: Place): string => `${pathOfPlace(place)}/processes`;

export const pathOf = (process: ProcessName): string => `${pathOfProcesses(process)}/${process.spid}`;

/** Starts an additional process in a running instance, or in a sandbox. @throws ResponseError, UnreachableError */
export async function startProcess(
  client: Client,
  place: Place | string,
  request: ProcessRequest,
): Promise<ProcessName> {
  const at = placeOfInstance(place);
  const { spid } = await client.exchange<StartedProcess>("POST", pathOfProcesses(at), { json: request });
  return { ...at, spid };
}

/** A process with its output so far. @throws ResponseError, UnreachableError */
export async function readProcess(client: Client, process: ProcessName): Promise<ProcessDetails> {
  return await client.exchange<ProcessDetails>("GET", pathOf(process));
}

/**
 * Sends a signal to the process group of a process.
 * @param signal its name, such as TERM
 * @throws ResponseError `conflict` when it does not run
 */
export async function signalProcess(client: Client, process: ProcessName, signal: string): Promise<void> {
  await client.call("DELETE", pathOf(process), { query: { signal } });
}

/**
 * Writes a standard input to a process as fast as it reads, and closes it.
 * @throws ResponseError `conflict` when the process has ended or its input is closed; UnreachableError, the reason of `signal`
 */
export async function streamInput(
  client: Client,
  process: ProcessName,
  { body, signal }: { readonly body: Blob | ReadableStream<Uint8Array>; readonly signal: AbortSignal },
): Promise<void> {
  const path = `${pathOf(process)}/stdin/stream`;
  await client.call("POST", path, { query: { close: true }, body, signal, deadline: false });
}

/** The same for a process that may end or close its input early, which ends this, too. @throws as `streamInput` */
export async function passInput(...input: Parameters<typeof streamInput>): Promise<void> {
  await streamInput(...input).catch((error: unknown) => {
    if (!(error instanceof ResponseError && error.status === 409)) throw error;
  });
}
