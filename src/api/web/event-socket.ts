import { ByteCredit } from "../../domain/bytes/byte-credit.ts";
import { LAST_EVENT_ID } from "../output/event-stream.ts";
import { CloseCode, chosenProtocol, type Handshake, SENT_BYTES_MAX, SOCKET_WINDOW_BYTES, Socket } from "../socket.ts";

/**
 * With this subprotocol, a WebSocket to the path of an event stream carries the stream: browsers allow six connections to a
 * host for all windows together, and WebSockets do not count. Binary messages are pieces of the stream. The page sends the
 * number of bytes that it has read so far as text, and at most {@link SOCKET_WINDOW_BYTES} are in flight to it.
 */
const EVENTS = "v1.events.coppice";
/** A further subprotocol in place of the header Last-Event-ID, because a WebSocket of a browser has no headers. */
const AFTER = /(?:^|,)\s*after\.(\d{1,15})\s*(?:,|$)/;

/** True for a request for the event stream of its path by a WebSocket. It then has the header Last-Event-ID. */
export function wantsEventSocket(request: Request): boolean {
  const { headers, method } = request;
  if (method !== "GET" || headers.get("upgrade")?.toLowerCase() !== "websocket") return false;
  if (chosenProtocol(request, [EVENTS]) === null) return false;
  const after = AFTER.exec(headers.get("sec-websocket-protocol") ?? "")?.[1];
  if (after !== undefined) headers.set(LAST_EVENT_ID, after);
  return true;
}

/**
 * Carries the stream of an answer by a WebSocket. An answer without an event stream is returned unchanged: it refuses the
 * WebSocket.
 * @param upgraded connects the request's connection to a socket
 */
export function eventSocket(
  answer: Response,
  handshake: Handshake,
  upgraded: (handshake: Handshake, protocol: string, socket: Socket) => Response,
): Response {
  const { body, headers } = answer;
  if (body === null || headers.get("content-type")?.startsWith("text/event-stream") !== true) return answer;
  const credit = new ByteCredit(SOCKET_WINDOW_BYTES);
  const socket = new Socket({ onText: (text) => credit.take(Number(text)) });
  try {
    const done = upgraded(handshake, EVENTS, socket);
    void carry(body, socket, credit);
    return done;
  } catch (error) {
    void body.cancel();
    throw error;
  }
}

/** Never rejects. */
async function carry(body: ReadableStream<Uint8Array>, socket: Socket, credit: ByteCredit): Promise<void> {
  const reader = body.getReader();
  void socket.closed.then(async () => {
    credit.close();
    await reader.cancel().catch(() => undefined);
  });
  try {
    for (let step = await reader.read(); !step.done && socket.isOpen; step = await reader.read()) {
      for (let rest = step.value; rest.byteLength > 0; ) {
        const piece = rest.subarray(0, Math.min(SENT_BYTES_MAX, await credit.some()));
        if (piece.byteLength === 0) return;
        credit.spend(piece.byteLength);
        await socket.send(piece);
        rest = rest.subarray(piece.byteLength);
      }
    }
    socket.close(CloseCode.normal);
  } catch {
    // Expected: the source of the events failed, or this account may no longer read them.
    socket.close(CloseCode.failed, "the stream broke off");
  }
}
