import { MessageSocket } from "../../client/socket.ts";
import type { ImageId } from "../../domain/ids.ts";
import { follow } from "./follow.ts";
import { figureOf, interleaved } from "./measure.ts";
import { remarkOf } from "./report.ts";
import { type Finding, missing, rowOf } from "./row.ts";
import type { BenchTarget } from "./target.ts";

const STDIN = 0;
const STDOUT = 1;
const PROTOCOL = "v5.channel.k8s.io";
/** Between two lines: each is to find everybody asleep. */
const PAUSE_MS = 5;
const INSTANCE_SECONDS = 1800;

/**
 * How long a line takes from the guest to a follower, against bare QEMU's virtio-serial. The clocks of host and guest differ
 * by more than that, so a line is sent there and comes back by the same way, which takes twice as long as the one way: by
 * an attachment that the process waits for, and by the bare port. The follower gets the line as well, a little before the
 * attachment or after.
 */
export async function* linesPart(target: BenchTarget): AsyncGenerator<Finding> {
  const { client, image, options } = target;
  const name = "line of a process to a follower of its events";
  if (!client.target("").url.startsWith("http://")) {
    return void (yield missing(name, "a follower is measured over plain HTTP only"));
  }
  const { isolation } = await target.run(image, "true", { disposable: true });
  const acceleration = isolation === "vm" ? "kvm" : "tcg";
  await using bare = await target.comparison((local) =>
    local.openBareEcho(options.config, image as ImageId, acceleration),
  );
  const id = await target.start(image, "exec cat", {
    stdin_open: true,
    disposable: true,
    timeout: INSTANCE_SECONDS,
  });
  const attachment: number[] = [];
  {
    using echo = await Echo.open(target, id);
    await echo.send(lineOf(0));
    await target.poolFull();
    let count = 0;
    const ours = async (): Promise<number> => {
      const { followerMs, attachmentMs } = await echo.send(lineOf(++count));
      await Bun.sleep(PAUSE_MS);
      attachment.push(attachmentMs / 2);
      return attachmentMs / 2 + (followerMs - attachmentMs);
    };
    const rounds = target.rounds(400, 100);
    const ends = { from: "written in the guest", to: "read by a client on the host" };
    if ("problem" in bare) {
      const values = await interleaved(rounds, { ours });
      yield remarkOf(name, figureOf(values.ours, "ms"), `from ${ends.from} to ${ends.to}`);
      yield missing(`${name}, against bare QEMU's virtio-serial`, bare.problem);
    } else {
      const theirs = async (): Promise<number> => {
        const durationMs = (await bare.roundTrip(lineOf(count))) / 2;
        await Bun.sleep(PAUSE_MS);
        return durationMs;
      };
      const values = await interleaved(rounds, { ours, theirs });
      const against = { name: "the same line by virtio-serial of bare QEMU", values: values.theirs };
      yield rowOf({ ...ends, name, values: values.ours, unit: "ms", against, atMost: 3 });
    }
    yield remarkOf("the same line to an attachment", figureOf(attachment, "ms"), "half of the way there and back");
  }
  await target.stop(id);
}

function lineOf(count: number): string {
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
