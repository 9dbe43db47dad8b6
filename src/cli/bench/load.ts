import type { Socket } from "bun";

/** A GET or HEAD that is sent repeatedly over open connections, by a very cheap client. */
export interface LoadTarget {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  /** default: GET */
  readonly method?: "GET" | "HEAD";
}

const HEAD_END = Buffer.from("\r\n\r\n");
const LENGTH = /content-length: *(\d+)/i;
const CHUNKED = /transfer-encoding: *chunked/i;
const LAST_CHUNK = Buffer.from("\r\n0\r\n\r\n");

/** A connection that stays open, with one request at a time. */
export class Connection {
  readonly #request: Buffer;
  readonly #hasBody: boolean;
  #socket: Socket | null = null;
  #rest = Buffer.alloc(0);
  #answered: ((status: number) => void) | null = null;
  #failed: ((error: Error) => void) | null = null;

  private constructor(request: Buffer, hasBody: boolean) {
    this.#request = request;
    this.#hasBody = hasBody;
  }

  static async open({ url, headers, method = "GET" }: LoadTarget): Promise<Connection> {
    const { hostname, port, pathname, search, host } = new URL(url);
    const lines = Object.entries({ host, ...headers }).map(([name, value]) => `${name}: ${value}\r\n`);
    const head = `${method} ${pathname}${search} HTTP/1.1\r\n${lines.join("")}\r\n`;
    const connection = new Connection(Buffer.from(head), method !== "HEAD");
    connection.#socket = await Bun.connect({
      hostname,
      port: Number(port),
      socket: {
        data: (_, bytes) => connection.#onBytes(bytes),
        close: () => connection.#failed?.(new Error("the server closed a connection")),
      },
    });
    return connection;
  }

  /** Sends the request, and resolves with the status when the whole answer has arrived. @throws Error when the server closes */
  get(): Promise<number> {
    return new Promise((resolve, reject) => {
      this.#answered = resolve;
      this.#failed = reject;
      this.#socket?.write(this.#request);
    });
  }

  close(): void {
    this.#failed = null;
    this.#socket?.end();
  }

  #onBytes(bytes: Buffer): void {
    this.#rest = this.#rest.length === 0 ? Buffer.from(bytes) : Buffer.concat([this.#rest, bytes]);
    const end = this.#rest.indexOf(HEAD_END);
    if (end < 0) return;
    const head = this.#rest.toString("latin1", 0, end);
    const bodyEnd = this.#bodyEnd(head, end + HEAD_END.length);
    if (bodyEnd === null || this.#rest.length < bodyEnd) return;
    this.#rest = this.#rest.subarray(bodyEnd);
    this.#answered?.(Number(head.slice(9, 12)));
  }

  /** End of the body that begins at `start`; null while it is unknown. */
  #bodyEnd(head: string, start: number): number | null {
    if (!this.#hasBody) return start;
    if (!CHUNKED.test(head)) return start + Number(LENGTH.exec(head)?.[1] ?? 0);
    // The chunks before have text or files of a benchmark, which do not contain this.
    const last = this.#rest.indexOf(LAST_CHUNK, start);
    return last < 0 ? null : last + LAST_CHUNK.length;
  }
}

async function connections(target: LoadTarget, count: number): Promise<Connection[]> {
  return await Promise.all(Array.from({ length: count }, () => Connection.open(target)));
}

/** @throws Error for anything but 200 */
export function check(status: number): void {
  if (status !== 200) throw new Error(`the answer was ${status}`);
}

/** Answers per second, with `count` connections that send a request as soon as they have an answer. */
export async function rateOf(target: LoadTarget, count: number, durationMs: number): Promise<number> {
  const open = await connections(target, count);
  const startedAt = performance.now();
  let answers = 0;
  await Promise.all(
    open.map(async (connection) => {
      while (performance.now() - startedAt < durationMs) {
        check(await connection.get());
        answers += 1;
      }
    }),
  );
  const seconds = (performance.now() - startedAt) / 1000;
  for (const connection of open) connection.close();
  return answers / seconds;
}

/** Latencies in consecutive spans of time. */
export async function spansAt(
  target: LoadTarget,
  perSecond: number,
  spans: { readonly count: number; readonly durationMs: number },
): Promise<number[][]> {
  const latencies: number[][] = [];
  for (let n = 0; n < spans.count; n++) latencies.push(await latenciesAt(target, perSecond, spans.durationMs));
  return latencies;
}

/** Latencies of requests at a steady rate, in `milliseconds` from the time when each was due. */
async function latenciesAt(target: LoadTarget, perSecond: number, durationMs: number): Promise<number[]> {
  const idle = await connections(target, 32);
  const values: number[] = [];
  const startedAt = performance.now();
  const total = Math.floor((durationMs / 1000) * perSecond);
  const asked: Promise<void>[] = [];
  for (let index = 0; index < total; index++) {
    const dueAt = startedAt + (index * 1000) / perSecond;
    await Bun.sleep(Math.max(0, dueAt - performance.now()));
    // A sleep ends late; the answer's own time counts from the sending, or from the due time when that is later.
    const sentAt = performance.now();
    const connection = idle.pop() ?? (await Connection.open(target));
    const ask = async (): Promise<void> => {
      check(await connection.get());
      values.push(performance.now() - sentAt);
      idle.push(connection);
    };
    asked.push(ask());
  }
  await Promise.all(asked);
  for (const connection of idle) connection.close();
  return values;
}
