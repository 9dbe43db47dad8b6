import { MessageSocket } from "../../client/connections/socket.ts";
import { follow } from "./follow.ts";
import { figureOf, interleaved } from "./measure.ts";
import { remarkOf } from "./report.ts";
import { type Finding, missing } from "./row.ts";
import type { BenchTarget } from "./target.ts";

const STDIN = 0;
const STDOUT = 1;
const PROTOCOL = "v5.channel.k8s.io";
/** Pause between two lines, so that each one arrives at idle processes. */
export const PAUSE_MS = 5;
const INSTANCE_SECONDS = 1800;

export const LINE_NAME = "line of a process to a follower of its events";
export const LINE_ENDS = { from: "written in the guest", to: "read by a client on the host" } as const;

/** Latency of a line from the guest to a follower. */
export async function* linesPart(target: BenchTarget): AsyncGenerator<Finding> {
  if (!target.client.target("").url.startsWith("http://")) {
    return void (yield missing(LINE_NAME, "a follower is measured over plain HTTP only"));
  }
  await using lines = await Lines.start(target);
  const values = await interleaved(target.rounds(400, 100), { ours: () => lines.measure() });
  yield remarkOf(LINE_NAME, figureOf(values.ours, "ms"), `from ${LINE_ENDS.from} to ${LINE_ENDS.to}`);
  yield lines.attachment;
}

/**
 * Lines that a process of a guest sends back. The clocks of host and guest differ by more than the latency of a line. So the
 * round trip through an attachment is measured, which takes twice as long as one way. The follower gets the line, too, a
 * little before or after the attachment.
 */
export class Lines implements AsyncDisposable {
  readonly #target: BenchTarget;
  readonly #id: string;
  readonly #echo: Echo;
  readonly #attachmentMs: number[] = [];
  #count = 0;

  private constructor(target: BenchTarget, id: string, echo: Echo) {
    this.#target = target;
    this.#id = id;
    this.#echo = echo;
  }

  static async start(target: BenchTarget): Promise<Lines> {
    const more = { stdin_open: true, disposable: true, timeout: INSTANCE_SECONDS };
    const id = await target.start(target.image, "exec cat", more);
    const echo = await Echo.open(target, id);
    await echo.send(lineOf(0));
    await target.poolFull();
    return new Lines(target, id, echo);
  }

  /** Time of the next line from the guest to the follower, in `milliseconds`. */
  async measure(): Promise<number> {
    const { followerMs, attachmentMs } = await this.#echo.send(lineOf(++this.#count));
    await Bun.sleep(PAUSE_MS);
    this.#attachmentMs.push(attachmentMs / 2);
    return attachmentMs / 2 + (followerMs - attachmentMs);
  }

  /** The same lines to the attachment. */
  get attachment(): Finding {
    const name = "the same line to an attachment";
    return remarkOf(name, figureOf(this.#attachmentMs, "ms"), "half of the way there and back");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#echo[Symbol.dispose]();
    await this.#target.stop(this.#id);
  }
}

/** The unique line of a number. */
export function lineOf(count: number): string {
  return `line ${String(count).padStart(8, "0")}\n`;
}

interface EchoTimes {
  /** until the line is back at the follower, in `milliseconds` */
  readonly followerMs: number;
  /** the same, at the attachment */
  readonly attachmentMs: number;
}

/** A process that sends lines back, with an attachment and a follower. */
class Echo implements Disposable {
  readonly #socket: MessageSocket;
  readonly #owned = new DisposableStack();
  readonly #lost = Promise.withResolvers<never>();
  #line = "";
  #followed = Promise.withResolvers<number>();
  #attached = Promise.withResolvers<number>();

  static async open({ client, options: { signal } }: BenchTarget, id: string): Promise<Echo> {
    const path = `/instances/${id}/processes/1/attach`;
    const socket = await MessageSocket.open(client, path, { query: { lossless: true }, protocols: [PROTOCOL], signal });
    const echo = new Echo(socket, signal);
    const events = client.target(`/operations/${id}/events?follow=true&spid=1`);
    using stack = new DisposableStack();
    stack.use(echo);
    echo.#owned.use(await follow(events, (bytes) => echo.#onFollowed(bytes)));
    stack.move();
    return echo;
  }

  private constructor(socket: MessageSocket, signal: AbortSignal) {
    this.#socket = this.#owned.use(socket);
    this.#lost.promise.catch(() => undefined);
    signal.addEventListener("abort", () => this.#lost.reject(signal.reason), { once: true });
    this.#readAttachment().catch(this.#lost.reject);
  }

  /** One at a time. @throws Error when the attachment ends */
  async send(line: string): Promise<EchoTimes> {
    this.#line = line.trimEnd();
    this.#followed = Promise.withResolvers();
    this.#attached = Promise.withResolvers();
    const back = Promise.all([this.#followed.promise, this.#attached.promise]);
    const sentAt = performance.now();
    this.#socket.send(Buffer.concat([Buffer.of(STDIN), Buffer.from(line)]));
    const [followedAt, attachedAt] = await Promise.race([back, this.#lost.promise]);
    return { followerMs: followedAt - sentAt, attachmentMs: attachedAt - sentAt };
  }

  #onFollowed(bytes: Buffer): void {
    if (this.#line !== "" && bytes.includes(this.#line)) this.#followed.resolve(performance.now());
  }

  async #readAttachment(): Promise<void> {
    for await (const message of this.#socket.messages()) {
      if (message[0] !== STDOUT || !Buffer.from(message).includes(this.#line)) continue;
      this.#attached.resolve(performance.now());
    }
    throw new Error("the process with the lines has ended");
  }

  [Symbol.dispose](): void {
    this.#owned.dispose();
  }
}
