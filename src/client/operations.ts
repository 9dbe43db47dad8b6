import { given } from "../domain/given.ts";
import { answerOf, type Client } from "./client.ts";
import { OperationError, ResponseError, UnreachableError } from "./errors.ts";
import { operationEvents, RETRY_MS, UNREACHABLE_MS_MAX } from "./operation-events.ts";
import { pause } from "./pause.ts";
import { type Place, pathOfPlace } from "./place.ts";
import type { Operation, OperationStatus } from "./types.ts";

/** One long poll, in `seconds`: short enough for proxies that cut silent connections after a minute. */
const WAIT_SECONDS = 25;
/** The first long poll of a wait with `onStatus`, and each one while the operation is PENDING, in `seconds`. */
const WATCHED_WAIT_SECONDS = 1;

/** True when the state of an operation is final. */
export function hasEnded({ status }: { readonly status: OperationStatus }): boolean {
  return status !== "PENDING" && status !== "EXECUTING";
}

/**
 * Whether the machine of a place is gone, and its processes with it; false when the appliance does not say. Never resumes a
 * sandbox.
 */
export async function isGone(client: Client, place: Place): Promise<boolean> {
  try {
    if (place.sandbox === undefined) {
      return hasEnded(await answerOf(client.v1.operations({ id: encodeURIComponent(place.instance) }).get()));
    }
    const { state } = await client.exchange<{ readonly state: string }>("GET", pathOfPlace(place));
    return state !== "running";
  } catch (error) {
    return error instanceof ResponseError && error.status === 404 && place.sandbox !== undefined;
  }
}

export interface WaitOptions {
  readonly signal?: AbortSignal;
  /** longest wait, in `milliseconds`; absent: there is no limit */
  readonly timeoutMs?: number;
  /** gets the status after each poll of an operation that has not ended; makes polls short while it is PENDING */
  readonly onStatus?: (status: OperationStatus) => void;
}

/**
 * Waits until an operation has ended, with any outcome, also across a restart of the appliance. Leaving the wait does not
 * affect the operation.
 * @throws the reason of `signal`; a `TimeoutError` of the runtime after `timeoutMs`; ResponseError; UnreachableError when
 * the appliance stays unreachable
 */
export async function waitForEnd(client: Client, id: string, options: WaitOptions = {}): Promise<Operation> {
  const { onStatus, timeoutMs } = options;
  const limits = timeoutMs === undefined ? [] : [AbortSignal.timeout(timeoutMs)];
  const signal = AbortSignal.any([...(options.signal === undefined ? [] : [options.signal]), ...limits]);
  const route = client.v1.operations({ id: encodeURIComponent(id) });
  const shortWait = onStatus === undefined ? WAIT_SECONDS : WATCHED_WAIT_SECONDS;
  let wait = shortWait;
  for (let unreachableSince: number | null = null; ; ) {
    try {
      const operation = await answerOf(route.get({ query: { wait }, fetch: { signal } }));
      unreachableSince = null;
      if (hasEnded(operation)) return operation;
      wait = operation.status === "PENDING" ? shortWait : WAIT_SECONDS;
      onStatus?.(operation.status);
    } catch (error) {
      signal.throwIfAborted();
      unreachableSince ??= performance.now();
      const again = error instanceof UnreachableError || (error instanceof ResponseError && error.status === 503);
      if (!again) throw error;
      if (performance.now() - unreachableSince > UNREACHABLE_MS_MAX) {
        throw new UnreachableError(`${(error as Error).message}; operation ${id} may continue`, { cause: error });
      }
      await pause(RETRY_MS, signal);
    }
  }
}

/** Cancels an operation, unless it has ended already. @throws ResponseError, UnreachableError */
export async function cancelOperation(client: Client, id: string): Promise<void> {
  try {
    await answerOf(client.v1.operations({ id: encodeURIComponent(id) }).delete());
  } catch (error) {
    // It has ended meanwhile.
    if (!(error instanceof ResponseError && error.status === 409)) throw error;
  }
}

/** A step of an operation. */
export interface Progress {
  /** the work of this step, for people */
  readonly step: string;
  /** bytes of the image so far; null if the step pulls nothing */
  readonly pulledBytes: number | null;
  /** bytes to pull in total; null if unknown */
  readonly sizeBytes: number | null;
}

/** Fields of a `progress` event. */
interface ProgressData {
  readonly step?: string;
  readonly pulled_bytes?: number;
  readonly size_bytes?: number;
}

/** The steps of an operation, on arrival, until its end. @throws as `operationEvents` */
export async function* operationProgress(
  client: Client,
  id: string,
  { signal }: Pick<WaitOptions, "signal"> = {},
): AsyncGenerator<Progress, void, undefined> {
  const options = { follow: true, ...given({ signal }) };
  for await (const { type, data } of operationEvents(client, id, options)) {
    if (type !== "progress") continue;
    const { step = "", pulled_bytes: pulledBytes = null, size_bytes: sizeBytes = null } = data as ProgressData;
    yield { step, pulledBytes, sizeBytes };
  }
}

export interface CompleteOptions extends WaitOptions {
  /** gets the steps of the operation; a token without `operations:read` gets none */
  readonly onProgress?: (progress: Progress) => void;
}

/**
 * Waits for the success of the caller's operation, which is cancelled when the wait ends by `signal` or `timeoutMs`.
 * @throws OperationError when it ends otherwise; as `waitForEnd`
 */
export async function complete(client: Client, id: string, options: CompleteOptions = {}): Promise<Operation> {
  const { onProgress, ...wait } = options;
  const over = new AbortController();
  if (onProgress !== undefined) void reportProgress(client, id, { signal: over.signal, onProgress });
  try {
    return succeeded(await waitForEnd(client, id, wait));
  } catch (error) {
    // An operation that cannot be cancelled ends by its own time limit.
    if (!(error instanceof OperationError)) await cancelOperation(client, id).catch(() => undefined);
    throw error;
  } finally {
    over.abort();
  }
}

/**
 * Reports the steps of an operation, until its end or until `signal` fires. Never rejects: a failure to report is not a
 * failure of the operation.
 */
export async function reportProgress(
  client: Client,
  id: string,
  { signal, onProgress }: { readonly signal: AbortSignal; readonly onProgress: (progress: Progress) => void },
): Promise<void> {
  try {
    for await (const progress of operationProgress(client, id, { signal })) onProgress(progress);
  } catch {
    // Expected: the wait has ended, the appliance is unreachable, or the token lacks the scope.
  }
}

/** The operation. @throws OperationError unless it is a success */
export function succeeded(operation: Operation): Operation {
  if (operation.status === "SUCCESS") return operation;
  throw new OperationError(operation);
}
