/** The answer to a request whose path was not normalised on the way. */
export interface RawAnswer {
  readonly path: string;
  readonly status: number;
  /** header fields and the beginning of the body, as received */
  readonly text: string;
}

/** Sends a request byte by byte without changes, and reads the beginning of the answer. */
export async function rawAnswer(
  url: string,
  method: string,
  path: string,
  headers: Readonly<Record<string, string>>,
): Promise<RawAnswer> {
  const { hostname, port, host } = new URL(url);
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  let text = "";
  const socket = await Bun.connect({
    hostname,
    port: Number(port),
    socket: {
      data(_, chunk) {
        text += chunk.toString();
        if (text.includes("\r\n\r\n")) resolve(text);
      },
      close: () => resolve(text),
      error: (_, error) => reject(error),
    },
  });
  using _socket = { [Symbol.dispose]: () => socket.terminate() };
  const fields = Object.entries({ host, ...headers }).map(([name, value]) => `${name}: ${value}`);
  socket.write([`${method} ${path} HTTP/1.1`, ...fields, "", ""].join("\r\n"));
  const answer = await promise;
  return { path, status: Number(/^HTTP\/1\.1 (\d+)/.exec(answer)?.[1]), text: answer };
}
