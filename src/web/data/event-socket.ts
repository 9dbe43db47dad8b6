/** The subprotocol: binary messages are pieces of an event stream, and the page acknowledges their bytes. */
const EVENTS = "v1.events.coppice";
/** Close code of a complete stream. */
const CLOSE_NORMAL = 1000;

/**
 * Reads an event stream by a WebSocket. All windows of a browser share six connections to a host, so a few windows that
 * follow runs would leave none; WebSockets do not count toward this limit.
 * @param url of the stream, with the key of the session
 * @returns null if the WebSocket cannot be opened; a plain request then has the reason
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

/** The bytes of the socket's messages. Acknowledges the bytes that were read, so that the appliance sends more. */
function bodyOf(socket: WebSocket, signal?: AbortSignal | null): ReadableStream<Uint8Array> {
  const pieces: Uint8Array[] = [];
  let takenBytes = 0;
  /** reason of the end; null if the stream is complete */
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
  // The appliance may be unreachable, so nothing waits for its close message.
  const leave = () => {
    pieces.length = 0;
    end = signal?.reason;
    // Browsers log an error for a WebSocket that is closed before it is open.
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
