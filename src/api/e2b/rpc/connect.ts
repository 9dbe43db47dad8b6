import { ApiError } from "../../../domain/errors.ts";
import { respond } from "../../reply.ts";
import { directStream } from "../../stream/direct.ts";
import { type Envd, envdOf } from "../envd-access.ts";
import { E2bError } from "../errors.ts";
import type { Calls } from "./calls.ts";
import { errorBody, errorResponse, RpcError, rpcErrorOf } from "./errors.ts";
import { endFrame, FrameReader, messageFrame } from "./frames.ts";
import { objectOf, type RpcMessage } from "./message.ts";

const STREAM_TYPE = "application/connect+json";
const streamExpression = /^application\/connect\+json\s*(?:;|$)/i;
/** Longest message of a request for a stream, in `bytes`: it has paths, arguments and variables. */
const REQUEST_BYTES_MAX = 4_194_304;
/** A longer answer is sent in chunks of so many `bytes`, as its client reads. */
const CHUNK_BYTES = 65_536;
/** Keepalives without the field of a client, in `seconds`. */
const KEEPALIVE_SECONDS = 90;
const KEEPALIVE_SECONDS_MAX = 86_400;
/** Largest deadline that a timer can have, in `milliseconds`; a later one is none. */
const DEADLINE_MS_MAX = 2_147_483_647;

/** A call of a method. */
export interface RpcCall {
  readonly envd: Envd;
  readonly message: RpcMessage;
  readonly request: Request;
  /** fires at the deadline of the call, and when its client has left */
  readonly signal: AbortSignal;
}

/** A call whose answer is one message. */
export interface UnaryCall extends RpcCall {
  /** takes what the answer holds; disposed when the client has received it */
  readonly held: DisposableStack;
}

/**
 * The time that a client gives a call, in `milliseconds`; null: no limit.
 * @throws ApiError `validation_error`: a call that should end would have no limit
 */
export function timeoutMsOf({ headers }: Request): number | null {
  const text = headers.get("connect-timeout-ms") ?? "0";
  if (!/^\d{1,10}$/.test(text)) {
    throw new ApiError("validation_error", "Connect-Timeout-Ms must be at most 10 digits", {
      field: "connect-timeout-ms",
    });
  }
  return Number(text) > 0 ? Number(text) : null;
}

export type UnaryMethod = (call: UnaryCall) => Promise<object>;
/** `send` resolves when the client has room for the next message. */
export type StreamMethod = (call: RpcCall, send: (message: object) => Promise<void>) => Promise<void>;

interface Context {
  readonly request: Request;
  readonly body: unknown;
}

/** A handler of unary calls, whose route reads the body as JSON. */
export function unary(method: UnaryMethod): (context: Context) => Promise<Response> {
  return async ({ request, body }) => {
    using deadline = deadlineOf(request);
    using held = new DisposableStack();
    const { signal } = deadline;
    try {
      const answer = await method({ envd: envdOf(request), message: objectOf(body), request, signal, held });
      const bytes = Buffer.from(JSON.stringify(answer));
      const isShort = bytes.byteLength <= CHUNK_BYTES;
      const sent = isShort ? bytes : directStream(chunksOf(bytes), held.move());
      return respond({ status: 200, headers: { "content-type": "application/json" }, body: sent }, request);
    } catch (error) {
      return errorResponse(rpcErrorOf(deadline.reasonOf(error)));
    }
  };
}

async function* chunksOf(bytes: Buffer<ArrayBuffer>): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined> {
  for (let at = 0; at < bytes.byteLength; at += CHUNK_BYTES) yield bytes.subarray(at, at + CHUNK_BYTES);
}

export interface ServerStreamOptions {
  readonly calls: Calls;
  /** the message that keeps a quiet stream open */
  readonly keepalive: object;
}

/** A handler of calls with one message and a stream of answers. */
export function serverStream(
  method: StreamMethod,
  options: ServerStreamOptions,
): (context: Pick<Context, "request">) => Response {
  return ({ request }) => {
    requireStream(request);
    const left = new AbortController();
    const frames = framesOf(request, { ...options, method, left });
    const end = async () => {
      left.abort(new RpcError("canceled", "the client has left"));
      await frames.return();
    };
    const body = directStream({ [Symbol.asyncIterator]: () => frames, return: end });
    return respond({ status: 200, headers: { "content-type": STREAM_TYPE }, body }, request);
  };
}

/** A handler of calls with a stream of messages and one answer. */
export function clientStream(
  method: (call: Omit<RpcCall, "message">, next: () => Promise<RpcMessage | null>) => Promise<object>,
  calls: Calls,
): (context: Pick<Context, "request">) => Promise<Response> {
  return async ({ request }) => {
    requireStream(request);
    using deadline = deadlineOf(request);
    const { signal } = deadline;
    const answer = async () => {
      const envd = envdOf(request);
      using _stream = calls.open(envd);
      await using reader = readerOf(request, { calls, envd, signal });
      const message = await method({ envd, request, signal }, () => reader.next());
      return Buffer.concat([messageFrame(message), endFrame()]);
    };
    const body = await answer().catch((error: unknown) => endFrame(errorBody(rpcErrorOf(deadline.reasonOf(error)))));
    return respond({ status: 200, headers: { "content-type": STREAM_TYPE }, body }, request);
  };
}

/** Checks the fields of a stream. @throws E2bError 415 for another codec: its client could not read the answer; ApiError */
function requireStream(request: Request): void {
  timeoutMsOf(request);
  if (streamExpression.test(request.headers.get("content-type") ?? "")) return;
  throw new E2bError(415, `Content-Type must be ${STREAM_TYPE}`);
}

function readerOf(
  request: Request,
  { calls, envd, signal }: Pick<RpcCall, "envd" | "signal"> & { readonly calls: Calls },
): FrameReader {
  const makeRoom = (bytes: number) => calls.makeRoom(envd, bytes, signal);
  return new FrameReader(request, { bytesMax: REQUEST_BYTES_MAX, makeRoom, signal });
}

interface StreamParts extends ServerStreamOptions {
  readonly method: StreamMethod;
  /** aborted when the client has left */
  readonly left: AbortController;
}

/** The frames of a stream, the last of which has the error, if there is one. */
async function* framesOf(
  request: Request,
  { calls, method, keepalive, left }: StreamParts,
): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined> {
  using deadline = deadlineOf(request, left.signal);
  using _left = { [Symbol.dispose]: () => left.abort(new RpcError("canceled", "the call is over")) };
  const { signal } = deadline;
  const outbox = new Outbox();
  const work = (async () => {
    const envd = envdOf(request);
    using _stream = calls.open(envd);
    await using reader = readerOf(request, { calls, envd, signal });
    const message = await reader.single();
    await method({ envd, message, request, signal }, (answer) => outbox.put(messageFrame(answer)));
  })();
  work.then(
    () => outbox.end(endFrame()),
    (error: unknown) => outbox.end(endFrame(errorBody(rpcErrorOf(deadline.reasonOf(error))))),
  );
  const idleMs = keepaliveSecondsOf(request) * 1000;
  for (;;) {
    const frame = await outbox.take(idleMs);
    yield frame ?? messageFrame(keepalive);
    if (outbox.isOver) return;
  }
}

/** Frames on their way to the client, one at a time, and the last one. */
class Outbox {
  isOver = false;
  readonly #frames: { readonly frame: Uint8Array<ArrayBuffer>; readonly onSend: () => void }[] = [];
  #last: Uint8Array<ArrayBuffer> | null = null;
  #filled = Promise.withResolvers<void>();

  /** Resolves when the frame is on its way. */
  async put(frame: Uint8Array<ArrayBuffer>): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#frames.push({ frame, onSend: resolve });
    this.#filled.resolve();
    await promise;
  }

  end(frame: Uint8Array<ArrayBuffer>): void {
    this.#last = frame;
    this.#filled.resolve();
  }

  /** The next frame; null: there was none for `idleMs`. */
  async take(idleMs: number): Promise<Uint8Array<ArrayBuffer> | null> {
    if (this.#frames.length === 0 && this.#last === null) {
      this.#filled = Promise.withResolvers();
      const timer = setTimeout(() => this.#filled.resolve(), idleMs);
      using _timer = { [Symbol.dispose]: () => clearTimeout(timer) };
      await this.#filled.promise;
    }
    const next = this.#frames.shift();
    next?.onSend();
    if (next !== undefined) return next.frame;
    this.isOver = this.#last !== null;
    return this.#last;
  }
}

interface Deadline extends Disposable {
  readonly signal: AbortSignal;
  /** The reason for a failure of the call: its deadline, if that has passed. */
  reasonOf(error: unknown): unknown;
}

/** The deadline that the client of a call announces, and its leaving. */
function deadlineOf(request: Request, ...signals: readonly AbortSignal[]): Deadline {
  const late = new AbortController();
  const ms = timeoutMsOf(request) ?? Number.POSITIVE_INFINITY;
  const fire = () => late.abort(new RpcError("deadline_exceeded", "the deadline of the call has passed"));
  const timer = ms <= DEADLINE_MS_MAX ? setTimeout(fire, ms) : undefined;
  return {
    signal: AbortSignal.any([request.signal, late.signal, ...signals]),
    reasonOf: (error) => (late.signal.aborted ? late.signal.reason : error),
    [Symbol.dispose]: () => clearTimeout(timer),
  };
}

function keepaliveSecondsOf({ headers }: Request): number {
  const seconds = Number(headers.get("keepalive-ping-interval") ?? KEEPALIVE_SECONDS);
  return Number.isInteger(seconds) && seconds > 0 && seconds <= KEEPALIVE_SECONDS_MAX ? seconds : KEEPALIVE_SECONDS;
}
