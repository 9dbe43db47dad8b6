import type { ClientOptions } from "../../../src/client/client.ts";

/** Address of the interface, and a token for it. */
export interface Service {
  readonly url: string;
  readonly token: string;
}

/** The answer of the interface to a refused WebSocket request. */
export interface Refused {
  readonly status: number;
  readonly error: string;
}

/** Options of a `Client` that also sends its token with WebSockets. */
export function socketClient({ url, token }: Service): ClientOptions {
  return {
    url,
    token,
    socket: (target, { protocols, headers }) => new WebSocket(target, { protocols: [...protocols], headers } as never),
  };
}

/** A client's WebSocket, which stores its messages until they are read. */
export class TestSocket implements Disposable {
  readonly raw: WebSocket;
  readonly texts: string[] = [];
  readonly closed: Promise<{ readonly code: number; readonly reason: string }>;
  #bytes: Buffer[] = [];
  #wake: () => void = () => undefined;
  #isClosed = false;

  private constructor(raw: WebSocket) {
    this.raw = raw;
    raw.binaryType = "arraybuffer";
    raw.onmessage = ({ data }) => {
      if (typeof data === "string") this.texts.push(data);
      else this.#bytes.push(Buffer.from(data as ArrayBuffer));
      this.#wake();
    };
    this.closed = new Promise((resolve) => {
      raw.onclose = ({ code, reason }) => {
        this.#isClosed = true;
        resolve({ code, reason });
        this.#wake();
      };
    });
  }

  /** @throws Error when the service refuses it; `refusalOf` returns the reason */
  static async open(
    service: Service,
    path: string,
    options: {
      readonly token?: string;
      readonly protocols?: string[];
      /** instead of the token */
      readonly headers?: Readonly<Record<string, string>>;
    } = {},
  ): Promise<TestSocket> {
    const { token = service.token, protocols = [], headers = { authorization: `Bearer ${token}` } } = options;
    const raw = new WebSocket(`${service.url.replace("http", "ws")}${path}`, { headers, protocols } as never);
    const socket = new TestSocket(raw);
    await new Promise<void>((resolve, reject) => {
      raw.onopen = () => resolve();
      void socket.closed.then(({ code, reason }) => reject(new Error(`${code} ${reason}`)));
    });
    return socket;
  }

  send(message: string | Uint8Array<ArrayBuffer>): void {
    this.raw.send(message);
  }

  /** Waits until `done` holds for the received messages. @throws Error when the socket is closed before */
  async until(done: () => boolean): Promise<void> {
    while (!done()) {
      if (this.#isClosed) throw new Error(`the socket was closed after ${this.received.toString().slice(-2000)}`);
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  /** All bytes of binary messages so far. */
  get received(): Buffer {
    const all = Buffer.concat(this.#bytes);
    this.#bytes = [all];
    return all;
  }

  get messages(): readonly Buffer[] {
    return this.#bytes;
  }

  close(code?: number): void {
    this.raw.close(code);
  }

  [Symbol.dispose](): void {
    this.raw.terminate();
  }
}

/** The answer to a handshake that the service refuses. */
export async function refusedHandshake(
  service: Service,
  path: string,
  token: string | null = service.token,
  more: Readonly<Record<string, string>> = {},
): Promise<Refused> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const { hostname, port } = new URL(service.url);
  let text = "";
  const socket = await Bun.connect({
    hostname,
    port: Number(port),
    socket: {
      data: (_, chunk) => {
        text += chunk.toString();
        const [, length] = /content-length: (\d+)/i.exec(text) ?? [];
        const body = text.split("\r\n\r\n")[1];
        if (length !== undefined && body !== undefined && Buffer.byteLength(body) >= Number(length)) resolve(text);
      },
      close: () => resolve(text),
      error: (_, error) => reject(error),
    },
  });
  using _socket = { [Symbol.dispose]: () => socket.terminate() };
  const lines = [
    `GET ${path} HTTP/1.1`,
    `Host: ${hostname}:${port}`,
    ...["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"],
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    ...(token === null ? [] : [`Authorization: Bearer ${token}`]),
    ...Object.entries(more).map(([name, value]) => `${name}: ${value}`),
  ];
  socket.write(`${lines.join("\r\n")}\r\n\r\n`);
  const answer = await promise;
  const body = answer.slice(answer.indexOf("\r\n\r\n") + 4);
  return {
    status: Number(/^HTTP\/1.1 (\d+)/.exec(answer)?.[1]),
    error: body === "" ? "" : (JSON.parse(body) as { error: string }).error,
  };
}
