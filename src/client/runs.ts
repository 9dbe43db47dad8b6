import { given } from "../domain/given.ts";
import { toBase64 } from "./base64.ts";
import { answerOf, type Client } from "./client.ts";
import type { AttachedOutput } from "./connections/attachment.ts";
import { AnswerError } from "./errors.ts";
import { bytesOf, commandStart, type OperationEventsOptions, operationEvents, outputOf } from "./operation-events.ts";
import { cancelOperation, succeeded, type WaitOptions, waitForEnd } from "./operations.ts";
import { COMMAND_SPID, type ProcessName, passInput } from "./processes.ts";
import type { InstanceResult, Operation, OperationEvent, OutputObject, SpawnRequest } from "./types.ts";

/** Prefix of bytes that are not ASCII, in the field `stdin` of a request. */
const STDIN_BASE64_PREFIX = "base64:";

/** Standard input that is part of the request, at most 10 MiB. */
type Sent = string | Uint8Array;
/** Standard input that is passed on while the command runs. */
const OPEN = { stdin_open: true } as const;

export interface RunOptions {
  /** text or bytes go with the request, at most 10 MiB; the others may have any length */
  readonly stdin?: Sent | Blob | ReadableStream<Uint8Array>;
  /** cancels the run when it fires */
  readonly signal?: AbortSignal;
}

/** A line of output, without its end. */
export interface OutputLine {
  readonly stream: AttachedOutput["stream"];
  readonly line: string;
}

/**
 * The run of a command: its output on arrival, and its result. Both survive lost connections and restarts of the appliance,
 * and can be read repeatedly.
 *
 *     const run = await Run.start(client, { image: "tag:busybox", command: "ls", args: ["-l"] });
 *     for await (const { stream, line } of run.lines()) console.log(stream, line);
 *     const { exit_code } = await run.result();
 */
export class Run {
  readonly #client: Client;
  readonly #until: Pick<RunOptions, "signal">;
  /** of the instance and of its operation */
  readonly id: string;
  /** fires at the end of the run: a signal of the caller may outlive thousands of runs */
  readonly #over = new AbortController();
  #cancelling: Promise<void> = Promise.resolve();
  /** failure of the standard input */
  #inputFailure: Error | null = null;

  /** An existing run, also an ended one. `signal` ends the requests of this object, and does not affect the run. */
  constructor(client: Client, id: string, { signal }: Pick<RunOptions, "signal"> = {}) {
    this.#client = client;
    this.#until = given({ signal });
    this.id = id;
  }

  /** Runs a command in a new sandbox. @throws ResponseError, UnreachableError, the reason of `signal` */
  static async start(client: Client, request: SpawnRequest, options: RunOptions = {}): Promise<Run> {
    const { stdin, signal } = options;
    signal?.throwIfAborted();
    const streamed = stdin instanceof ReadableStream || stdin instanceof Blob ? stdin : null;
    const input = stdin === undefined ? {} : streamed === null ? { stdin: inputText(stdin as Sent) } : OPEN;
    // Not aborted: an instance whose uuid did not arrive could not be cancelled.
    const { uuid } = await answerOf(client.v1.instances.post({ ...request, ...input }));
    const run = new Run(client, uuid, options);
    const cancel = (): void => {
      run.#cancelling = run.cancel().catch(() => undefined);
    };
    if (signal?.aborted) {
      cancel();
      await run.#cancelling;
      throw signal.reason;
    }
    signal?.addEventListener("abort", cancel, { once: true, signal: run.#over.signal });
    if (streamed !== null) void run.#input(streamed);
    return run;
  }

  /** The command, as the functions for processes name it. */
  get process(): ProcessName {
    return { instance: this.id, spid: COMMAND_SPID };
  }

  /** All events, from the beginning to the end. @throws as `operationEvents` */
  events(): AsyncGenerator<OperationEvent, void, undefined> {
    return this.#events({});
  }

  /** The stored output of the command from its beginning (`truncate_output_at`). @throws as `operationEvents` */
  async *output(): AsyncGenerator<AttachedOutput, void, undefined> {
    for await (const event of this.#events({ spid: COMMAND_SPID })) {
      if (event.type === "stdout" || event.type === "stderr") yield { stream: event.type, bytes: outputOf(event) };
    }
  }

  /** The same output in lines of UTF-8; unterminated text at the end is the last line. @throws as `operationEvents` */
  async *lines(): AsyncGenerator<OutputLine, void, undefined> {
    const open = { stdout: new LineSplitter(), stderr: new LineSplitter() };
    for await (const { stream, bytes } of this.output()) {
      for (const line of open[stream].take(bytes)) yield { stream, line };
    }
    for (const stream of ["stdout", "stderr"] as const) {
      const line = open[stream].rest();
      if (line !== "") yield { stream, line };
    }
  }

  /** Waits for the end, with any outcome. @throws as `waitForEnd` */
  async ended(options: Omit<WaitOptions, "signal"> = {}): Promise<Operation> {
    try {
      const operation = await waitForEnd(this.#client, this.id, { ...options, ...this.#until });
      this.#over.abort();
      return operation;
    } finally {
      await this.#cancelling;
    }
  }

  /**
   * Waits for the result; `exit_code` is that of the command, which need not be 0.
   * @throws OperationError when the command was not run to its end; the failure of standard input; as `waitForEnd`
   */
  async result(options: Omit<WaitOptions, "signal"> = {}): Promise<InstanceResult> {
    const operation = await this.ended(options);
    if (this.#inputFailure !== null) throw this.#inputFailure;
    return instanceResult(succeeded(operation));
  }

  /** Ends the run. Its operation is CANCELLED then, unless it has ended already. @throws ResponseError, UnreachableError */
  async cancel(): Promise<void> {
    await cancelOperation(this.#client, this.id);
  }

  async *#events(options: Pick<OperationEventsOptions, "spid">): AsyncGenerator<OperationEvent, void, undefined> {
    try {
      yield* operationEvents(this.#client, this.id, { follow: true, ...options, ...this.#until });
      this.#over.abort();
    } finally {
      await this.#cancelling;
    }
  }

  /** Never rejects. A command whose input fails would wait for the rest of it. */
  async #input(body: Blob | ReadableStream<Uint8Array>): Promise<void> {
    const { signal = this.#over.signal } = this.#until;
    try {
      if ((await commandStart(this.#client, this.id, signal)) === null) return;
      await passInput(this.#client, this.process, { body, signal: AbortSignal.any([signal, this.#over.signal]) });
    } catch (error) {
      if (signal.aborted || this.#over.signal.aborted) return;
      this.#inputFailure = error as Error;
      await this.cancel().catch(() => undefined);
    } finally {
      if (body instanceof ReadableStream && !body.locked) await body.cancel().catch(() => undefined);
    }
  }
}

/**
 * The result of the operation of an instance.
 * @throws AnswerError for any other operation
 */
export function instanceResult({ id, result }: Operation): InstanceResult {
  if (result !== undefined && "exit_code" in result) return result;
  throw new AnswerError(`operation ${id} has no result of a command`);
}

/** Runs a command, and waits for its result. @throws as `Run.start` and `Run.result` */
export async function runCommand(
  client: Client,
  request: SpawnRequest,
  options: RunOptions & Pick<WaitOptions, "timeoutMs"> = {},
): Promise<InstanceResult> {
  const { timeoutMs, ...start } = options;
  const run = await Run.start(client, request, start);
  return await run.result(given({ timeoutMs }));
}

/** The text of a captured output; bytes that are not UTF-8 are replaced. */
export function textOf(output: OutputObject): string {
  return new TextDecoder().decode(bytesOf(output));
}

/** Encodes bytes or a text for the field `stdin` of a request. */
export function inputText(input: Sent): string {
  const bytes = typeof input === "string" ? new TextEncoder().encode(input) : input;
  if (bytes.some((byte) => byte > 0x7f)) return STDIN_BASE64_PREFIX + toBase64(bytes);
  const text = typeof input === "string" ? input : new TextDecoder().decode(bytes);
  return text.startsWith(STDIN_BASE64_PREFIX) ? STDIN_BASE64_PREFIX + toBase64(bytes) : text;
}

/** Cuts bytes of UTF-8 into lines. */
class LineSplitter {
  readonly #decoder = new TextDecoder();
  #open = "";

  /** The lines that these bytes end. */
  take(bytes: Uint8Array): string[] {
    const lines = (this.#open + this.#decoder.decode(bytes, { stream: true })).split("\n");
    this.#open = lines.pop() ?? "";
    return lines;
  }

  /** The unterminated line. */
  rest(): string {
    return this.#open + this.#decoder.decode();
  }
}
