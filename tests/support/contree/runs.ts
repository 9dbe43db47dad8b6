import type { Contree } from "./contree.ts";
import { bytesOfStream, contreeEvents } from "./events.ts";

/** A request for an instance without its image. */
export type Request = Readonly<Record<string, unknown>>;

/** Spawns a disposable instance of busybox, unless the request says otherwise, and returns the id of its operation. */
export async function spawned(contree: Contree, request: Request): Promise<string> {
  const answer = await contree.call("POST", "/instances", {
    json: { image: contree.image, disposable: true, ...request },
  });
  if (answer.status !== 201) throw new Error(`spawn answered ${answer.status}: ${answer.text}`);
  return answer.json.uuid;
}

/** Reads an operation. */
// biome-ignore lint/suspicious/noExplicitAny: tests look into any answer.
export async function operationOf(contree: Contree, id: string, query = ""): Promise<any> {
  const answer = await contree.call("GET", `/operations/${id}${query}`);
  if (answer.status !== 200) throw new Error(`the operation answered ${answer.status}: ${answer.text}`);
  return answer.json;
}

/** Waits for the end of an operation, and reads it. */
// biome-ignore lint/suspicious/noExplicitAny: tests look into any answer.
export async function endedOperation(contree: Contree, id: string): Promise<any> {
  const events = await contreeEvents(contree, id, "?follow=1");
  if (events.at(-1)?.type !== "completion") throw new Error("the stream ended before the operation");
  return await operationOf(contree, id);
}

/** The outcome of a run. */
export interface Ran {
  readonly out: string;
  readonly err: string;
  readonly code: number;
  readonly signal: number;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into any answer.
  readonly operation: any;
}

/** Runs a request to its end, which must be SUCCESS. */
export async function ran(contree: Contree, request: Request): Promise<Ran> {
  const operation = await endedOperation(contree, await spawned(contree, request));
  if (operation.status !== "SUCCESS") throw new Error(`the run ended ${operation.status}: ${operation.error}`);
  const { stdout, stderr, state } = operation.metadata.result;
  return {
    out: bytesOfStream(stdout).toString(),
    err: bytesOfStream(stderr).toString(),
    code: state.exit_code,
    signal: state.signal,
    operation,
  };
}
