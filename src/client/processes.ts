import { answerOf, type Client } from "./client.ts";
import { ResponseError } from "./errors.ts";
import type { ProcessRequest } from "./types.ts";

/** A process of a running instance. The command of the instance has the number 1. */
export interface ProcessName extends ProcessPlace {
  readonly spid: number;
}

/** The instance of a process, or the sandbox that it belongs to. */
export interface ProcessPlace {
  /** uuid */
  readonly instance: string;
  /** uuid of the sandbox that the instance belongs to: requests by it count as use of the sandbox */
  readonly sandbox?: string;
}

/** Number of the command of an instance. */
export const COMMAND_SPID = 1;

/** The path of the processes of a place. */
export const pathOfProcesses = ({ instance, sandbox }: ProcessPlace): string =>
  `/${sandbox === undefined ? "instances" : "sandboxes"}/${encodeURIComponent(sandbox ?? instance)}/processes`;

export const pathOf = (process: ProcessName): string => `${pathOfProcesses(process)}/${process.spid}`;

/** Starts an additional process in a running instance. @throws ResponseError, UnreachableError */
export async function startProcess(client: Client, instance: string, request: ProcessRequest): Promise<ProcessName> {
  const { spid } = await answerOf(client.v1.instances({ uuid: encodeURIComponent(instance) }).processes.post(request));
  return { instance, spid };
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
