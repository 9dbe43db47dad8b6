import { ApiError } from "../../domain/errors.ts";
import type { OperationId } from "../../domain/ids.ts";
import { type LogEvent, Spid } from "../../domain/log-event.ts";
import { isTerminal } from "../../domain/operation.ts";
import type { Operation, OperationEvents } from "../../service/operations.ts";
import type { Principal } from "../../service/parts.ts";
import type { Service } from "../../service/service.ts";
import { cutLine, outputText, Tail } from "./text.ts";
import type { ToolCall } from "./tool.ts";

/** Most requests of clients time out after 60 s. */
export const WAIT_SECONDS_DEFAULT = 45;
export const WAIT_SECONDS_MAX = 600;

/** Shortest pause between two messages, in `milliseconds`. It grows with the time, so that a call sends some 200 at most. */
const PAUSE_MS_MIN = 250;
const PAUSE_RATIO = 1 / 40;
/** Longest message, in characters. The service stores the messages for a client that does not read. */
const MESSAGE_CHARACTERS_MAX = 1000;
const LINE_CHARACTERS_MAX = 200;
/** The last bytes of an output that a message may show. */
const RECENT_BYTES_MAX = 4096;

/**
 * Waits until an operation has ended or `waitSeconds` have passed, and reports its progress to the client meanwhile.
 * @throws ApiError `not_found`; the reason of the call's signal when the client no longer waits
 */
export async function followed(call: ToolCall, id: OperationId, waitSeconds: number): Promise<Operation> {
  const { service, principal, signal, progress } = call;
  const waitMs = waitSeconds * 1000;
  const before = service.operations.get(principal, id);
  if (isTerminal(before.status) || waitMs === 0) return before;
  if (progress === null || !(await tell(call, id, waitMs, progress))) {
    await service.operations.wait(principal, id, waitMs, signal);
  }
  signal.throwIfAborted();
  return service.operations.get(principal, id);
}

/** Reports progress until the wait is over; false, at once, when too many clients follow the operation already. */
async function tell(
  { service, principal, signal }: ToolCall,
  id: OperationId,
  waitMs: number,
  progress: (message: string) => void,
): Promise<boolean> {
  const over = new AbortController();
  const stop = () => over.abort();
  const timer = setTimeout(stop, waitMs);
  signal.addEventListener("abort", stop, { once: true });
  using undo = new DisposableStack();
  undo.defer(() => clearTimeout(timer));
  undo.defer(() => signal.removeEventListener("abort", stop));
  const events = openEvents(service, principal, { id, since: -1, follow: true, signal: over.signal });
  if (events === null) return false;
  undo.use(events);
  using news = new News(progress);
  const next = async () => {
    try {
      return await events.next();
    } catch (error) {
      if (over.signal.aborted) return null;
      throw error;
    }
  };
  for (;;) {
    const batch = await next();
    if (batch === null || batch.some(({ type }) => type === "completion")) return true;
    news.take(batch);
  }
}

function openEvents(
  { operations }: Service,
  principal: Principal,
  request: OperationEvents,
): ReturnType<Service["operations"]["events"]> | null {
  try {
    return operations.events(principal, request);
  } catch (error) {
    if (error instanceof ApiError && error.code === "too_many_requests") return null;
    throw error;
  }
}

/** Reports the events since the last message: at once, or after the pause that follows a message. Disposal ends it. */
class News implements Disposable {
  readonly #progress: (message: string) => void;
  readonly #startedAtMs = performance.now();
  #sentAtMs = Number.NEGATIVE_INFINITY;
  #timer: Timer | null = null;
  #step = "";
  #output = new Tail(RECENT_BYTES_MAX);
  #hasOutput = false;

  constructor(progress: (message: string) => void) {
    this.#progress = progress;
  }

  take(events: readonly LogEvent[]): void {
    for (const event of events) this.#take(event);
    const isNew = this.#step !== "" || this.#hasOutput;
    if (!isNew || this.#timer !== null) return;
    const now = performance.now();
    const leftMs = this.#sentAtMs + Math.max(PAUSE_MS_MIN, (now - this.#startedAtMs) * PAUSE_RATIO) - now;
    if (leftMs <= 0) this.#tell();
    else this.#timer = setTimeout(() => this.#tell(), leftMs);
  }

  [Symbol.dispose](): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
  }

  #take({ type, spid, payload }: LogEvent): void {
    if (type === "progress") this.#step = stepText(payload);
    if (type === "init") this.#step = "the machine has started";
    if (spid !== Spid.command) return;
    if (type === "spawn") this.#step = "the command runs";
    if (type !== "stdout" && type !== "stderr") return;
    this.#output.push(payload);
    this.#hasOutput = true;
  }

  #tell(): void {
    this.#timer = null;
    this.#sentAtMs = performance.now();
    const message = this.#message();
    if (message !== "") this.#progress(message);
  }

  /** The last step and the last lines of output. */
  #message(): string {
    const lines = outputText(this.#output.take()).trimEnd().split("\n");
    const texts = [this.#step, ...lines]
      .filter((line) => line !== "")
      .map((line) => cutLine(line, LINE_CHARACTERS_MAX));
    this.#step = "";
    this.#output = new Tail(RECENT_BYTES_MAX);
    this.#hasOutput = false;
    let kept = texts.length;
    for (let room = MESSAGE_CHARACTERS_MAX; kept > 0; kept--) {
      room -= (texts[kept - 1]?.length ?? 0) + 1;
      if (room < 0) break;
    }
    return texts.slice(kept).join("\n");
  }
}

/** The step of an import or a checkpoint, with its figures. */
function stepText(payload: Uint8Array): string {
  const { step, ...figures } = JSON.parse(Buffer.from(payload).toString("utf8")) as Record<string, unknown>;
  const figureTexts = Object.entries(figures).map(([name, value]) => `${name.replaceAll("_", " ")} ${String(value)}`);
  return [String(step), ...figureTexts].join(", ");
}
