/** The subprotocol: binary messages are pieces of an event stream, and the page acknowledges their bytes. */
const EVENTS = "v1.events.coppice";
/** Code of a stream that has come to its end. */
const CLOSE_NORMAL = 1000;

/**
 * The answer of an event stream by a WebSocket. Browsers allow six connections to a host for all windows together, and a few
 * windows that follow runs would leave none for anything else; WebSockets do not count there.
 * @param url of the stream, with the key of the session
 * @returns null when there is no such WebSocket; a plain request then tells why
 * @throws the reason of `signal`
 */
export async function openEventSocket(
  url: URL,
  headers: Headers,
  signal?: AbortSignal | null,
): Promise<Response | null> {
  signal?.throwIfAborted();
  const address = new URL(url);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  const after = headers.get("last-event-id");
  const socket = new WebSocket(address, after === null ? [EVENTS] : [EVENTS, `after.${after}`]);
  socket.binaryType = "arraybuffer";
  const opened = Promise.withResolvers<boolean>();
  const body = bodyOf(socket, signal);
  socket.addEventListener("open", () => opened.resolve(true), { once: true });
  socket.addEventListener("close", () => opened.resolve(false), { once: true });
  const abort = () => opened.resolve(false);
  signal?.addEventListener("abort", abort, { once: true });
  const isOpen = await opened.promise;
  signal?.removeEventListener("abort", abort);
  signal?.throwIfAborted();
  return isOpen ? new Response(body, { headers: { "content-type": "text/event-stream" } }) : null;
}

/** The bytes of the socket's messages. Bytes that were read are acknowledged, which lets more come. */
function bodyOf(socket: WebSocket, signal?: AbortSignal | null): ReadableStream<Uint8Array> {
  const pieces: Uint8Array[] = [];
  let takenBytes = 0;
  /** why nothing more will come; null at the end of the stream */
  let end: unknown;
  let wake: () => void = () => undefined;
  socket.addEventListener("message", ({ data }) => {
    pieces.push(new Uint8Array(data as ArrayBuffer));
    wake();
  });
  socket.addEventListener("close", ({ code }) => {
    // The signal may outlast many sockets.
    signal?.removeEventListener("abort", leave);
    end ??= code === CLOSE_NORMAL ? null : new TypeError(`the WebSocket was closed with code ${code}`);
    wake();
  });
  // The other side may be out of reach: nothing waits for its goodbye.
  const leave = () => {
    pieces.length = 0;
    end = signal?.reason;
    // A browser complains about a WebSocket that is closed before it is open.
    if (socket.readyState === WebSocket.CONNECTING) socket.addEventListener("open", () => socket.close());
    else socket.close();
    wake();
  };
  signal?.addEventListener("abort", leave, { once: true });
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        while (pieces.length === 0 && end === undefined) {
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
        }
        const piece = pieces.shift();
        if (piece === undefined) {
          if (end === null) controller.close();
          else controller.error(end);
          return;
        }
        controller.enqueue(piece);
        takenBytes += piece.byteLength;
        if (socket.readyState === WebSocket.OPEN) socket.send(String(takenBytes));
      },
      cancel: () => socket.close(),
    },
    { highWaterMark: 0 },
  );
}
