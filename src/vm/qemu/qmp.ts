import { ByteBlocks } from "../../domain/bytes/byte-blocks.ts";
import { given } from "../../domain/given.ts";
import { sendWithDescriptor } from "../../system/unix-sockets.ts";
import { VmmError } from "../machine-end.ts";
import type { ByteChannel } from "../vmm.ts";

/** Longest message that the monitor may send, in `bytes`. */
const MESSAGE_BYTES_MAX = 4_194_304;
/** Longest message that is not an answer, in characters. An event of QEMU has less than a thousand. */
const EVENT_TEXT_MAX = 16_384;
/** Limit of such messages in an interval. QEMU sends a few for a command, and limits those that a guest can cause. */
const EVENTS_COUNT_MAX = 1000;
const EVENTS_INTERVAL_MS = 10_000;
/** Limit of unanswered commands; the monitor itself reads only a few ahead. */
const COMMANDS_COUNT_MAX = 1024;
/** Time limit of a command: the commands used here only start work or query it. */
const COMMAND_TIMEOUT_MS = 30_000;
const NEWLINE = 0x0a;

type Json = Readonly<Record<string, unknown>>;

export interface QmpEvent {
  readonly event: string;
  readonly data: Json;
}

/** The monitor refused a command. */
export class QmpError extends VmmError {
  override readonly name = "QmpError";
}

/** The monitor is gone, did not answer in time, or broke its protocol. */
export class QmpClosedError extends VmmError {
  override readonly name = "QmpClosedError";
}

interface Pending {
  readonly command: string;
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: Error) => void;
  readonly timer: Timer;
}

/** Client of the QEMU machine protocol. A guest may have taken over its VMM, so every message is checked. */
export class Qmp {
  readonly #channel: ByteChannel & { readonly fd?: number };
  readonly #onClose: () => void;
  readonly #pending = new Map<number, Pending>();
  readonly #early: QmpEvent[] = [];
  #onEvent: ((event: QmpEvent) => void) | null = null;
  /** the beginning of a line, which may arrive byte by byte */
  #line = new ByteBlocks();
  #eventsCount = 0;
  #eventsSinceMs = 0;
  #nextId = 1;
  #greeted = false;
  #closed: QmpClosedError | null = null;

  private constructor(channel: ByteChannel & { readonly fd?: number }, onClose: () => void) {
    this.#channel = channel;
    this.#onClose = onClose;
  }

  /**
   * Opens the monitor. Resolves when it accepts commands.
   * @param onClose called once, when no further command will be answered
   * @throws QmpClosedError
   */
  static async open(
    channel: ByteChannel & { readonly fd?: number },
    onClose: () => void = () => undefined,
  ): Promise<Qmp> {
    const qmp = new Qmp(channel, onClose);
    channel.onData((chunk) => (chunk === null ? qmp.#fail("the monitor closed") : qmp.#onBytes(chunk)));
    await qmp.execute("qmp_capabilities");
    return qmp;
  }

  /** Sets the handler of events, which also gets those from before this call. */
  onEvent(handler: (event: QmpEvent) => void): void {
    this.#onEvent = handler;
    for (const event of this.#early.splice(0)) handler(event);
  }

  /**
   * Sends a command without waiting for earlier ones; answers come in order.
   * @throws QmpError when QEMU refuses it; QmpClosedError when no answer will come
   */
  execute(command: string, args?: Json): Promise<unknown> {
    return this.#send(command, args, (bytes) => {
      // The write fails only when the monitor closes, which also fails the command.
      this.#channel.write(bytes).catch(() => undefined);
    });
  }

  /** Executes a command that takes a copy of a descriptor, which is sent with it. No other command may be under way. */
  sendDescriptor(command: "getfd" | "add-fd", args: Json, fd: number): Promise<unknown> {
    return this.#send(command, args, (bytes) => {
      if (this.#channel.fd === undefined) throw new QmpClosedError("the monitor accepts no descriptors");
      sendWithDescriptor(this.#channel.fd, bytes, fd);
    });
  }

  #send(command: string, args: Json | undefined, transmit: (bytes: Uint8Array) => void): Promise<unknown> {
    if (this.#closed !== null) return Promise.reject(this.#closed);
    if (this.#pending.size >= COMMANDS_COUNT_MAX) return Promise.reject(new QmpError("too many commands under way"));
    const id = this.#nextId++;
    const text = JSON.stringify({ execute: command, id, ...given({ arguments: args }) });
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.#fail(`no answer to ${command} in time`), COMMAND_TIMEOUT_MS);
      this.#pending.set(id, { command, resolve, reject, timer });
      transmit(Buffer.from(`${text}\n`));
    });
  }

  #onBytes(chunk: Uint8Array): void {
    let rest = chunk;
    while (this.#closed === null) {
      const end = rest.indexOf(NEWLINE);
      const part = end < 0 ? rest : rest.subarray(0, end);
      this.#line.push(part);
      if (this.#line.byteLength > MESSAGE_BYTES_MAX) this.#fail("the monitor sent an over-long message");
      if (end < 0 || this.#closed !== null) return;
      const line = Buffer.concat(this.#line.blocks()).toString("utf8").trim();
      this.#line = new ByteBlocks();
      rest = rest.subarray(end + 1);
      if (line === "") this.#countEvent(line);
      else this.#onLine(line);
    }
  }

  #onLine(line: string): void {
    const message = parseObject(line);
    if (message === null) {
      this.#fail("the monitor sent a line that is not JSON");
    } else if (!this.#greeted) {
      this.#greeted = "QMP" in message;
      if (!this.#greeted) this.#fail("the monitor did not greet");
    } else if (typeof message["event"] === "string") {
      this.#countEvent(line);
      this.#onEventMessage({ event: message["event"], data: objectOr(message["data"]) });
    } else {
      this.#onAnswer(message);
    }
  }

  /** Counts a line that no command has asked for: the thread that reads them serves all guests. */
  #countEvent(line: string): void {
    const now = performance.now();
    if (now - this.#eventsSinceMs > EVENTS_INTERVAL_MS) {
      this.#eventsSinceMs = now;
      this.#eventsCount = 0;
    }
    this.#eventsCount += 1;
    if (this.#eventsCount > EVENTS_COUNT_MAX) this.#fail("the monitor sends too many events");
    if (line.length > EVENT_TEXT_MAX) this.#fail("the monitor sent an over-long event");
  }

  #onEventMessage(event: QmpEvent): void {
    if (this.#closed !== null) return;
    if (this.#onEvent !== null) this.#onEvent(event);
    else if (this.#early.length < COMMANDS_COUNT_MAX) this.#early.push(event);
  }

  #onAnswer(message: Json): void {
    const id = message["id"];
    const pending = typeof id === "number" ? this.#pending.get(id) : undefined;
    if (typeof id !== "number" || pending === undefined) {
      this.#fail("the monitor answered a command that was not sent");
      return;
    }
    this.#pending.delete(id);
    clearTimeout(pending.timer);
    if ("return" in message) {
      pending.resolve(message["return"]);
      return;
    }
    const description = objectOr(message["error"])["desc"];
    const reason = typeof description === "string" ? description.slice(0, 500) : "without a reason";
    pending.reject(new QmpError(`QEMU refused ${pending.command}: ${reason}`));
  }

  #fail(reason: string): void {
    if (this.#closed !== null) return;
    this.#closed = new QmpClosedError(reason);
    // Nothing is read that is not wanted.
    this.#channel.pause();
    for (const pending of this.#pending.values()) {
      clearTimeout(pending.timer);
      pending.reject(this.#closed);
    }
    this.#pending.clear();
    this.#onClose();
  }
}

function objectOr(value: unknown): Json {
  return typeof value === "object" && value !== null ? (value as Json) : {};
}

function parseObject(text: string): Json | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Json) : null;
  } catch {
    // SyntaxError: the caller reports it.
    return null;
  }
}
