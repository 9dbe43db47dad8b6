import { Elysia } from "elysia";
import { ByteCredit } from "../../../domain/bytes/byte-credit.ts";
import type { GuestConnection } from "../../../service/instances.ts";
import { withinTime } from "../../../system/waiting.ts";
import { about } from "../../route.ts";
import { CloseCode, chosenProtocol, SENT_BYTES_MAX, SOCKET_WINDOW_BYTES, Socket } from "../../socket.ts";
import type { Surface } from "../surface.ts";
import type { Runner } from "./runner.ts";

/**
 * With these subprotocols, text messages are JSON. The server first sends `{"window": BYTES}`, the number of bytes that may
 * be in flight to the guest, and then `{"taken": BYTES}`, the number of bytes that the guest has received so far.
 * `{"end": true}`, in both directions, ends the bytes of one side. Without a subprotocol the window is the same, but the
 * client gets no messages about it, and the socket is closed when either side ends. A text message has at most 64 characters.
 *
 * In the second version the window also applies to the guest's bytes: the client sends `taken`, too. It never has to stop
 * reading, so a stalled direction does not delay messages about the other one.
 */
const CONTROLLED = "v1.port.coppice";
const MUTUAL = "v2.port.coppice";

/** `taken` is sent after this many further `bytes`, and when no message waits. */
const TAKEN_STEP_BYTES = 65_536;
/** After a client has closed the socket, the guest has this long to read its last bytes, in `milliseconds`. */
const LINGER_MS = 10_000;

const PORT = ({ noun, id }: Runner<string>) =>
  about({
    id: id("instancePort"),
    tag: "Instances",
    summary: `Connect to a TCP port of a running ${noun} by WebSocket; binary messages carry the bytes of both directions`,
    responses: { 101: { description: "a program in the guest has accepted the connection" } },
    errors: ["not_found", "conflict", "too_many_requests", "unavailable"],
  });

export function portRoutes<const Prefix extends string>(surface: Surface, runner: Runner<Prefix>) {
  return new Elysia({ prefix: runner.prefix }).use(surface.access).get(
    "/ports/:port",
    async ({ request, server, principal, params }) => {
      const { port } = params as { readonly port: string };
      const target = runner.target(principal, params);
      using stack = new DisposableStack();
      const dialled = await surface.service.instances.dial(principal, target, Number(port), request.signal);
      const { connection } = stack.use(dialled);
      const protocol = chosenProtocol(request, [MUTUAL, CONTROLLED]);
      const credit = protocol === MUTUAL ? new ByteCredit(SOCKET_WINDOW_BYTES) : null;
      const onText = (text: string) => credit?.take(numberOf(text, "taken")) === true;
      const socket = new Socket({ onText, joins: true });
      const answer = surface.upgrade({ request, server }, protocol, socket);
      const held = stack.move();
      void tunnel({ socket, connection, credit, isControlled: protocol !== null }).then(() => held.dispose());
      return answer;
    },
    { reads: "instances:exec", ...PORT(runner) },
  );
}

interface Tunnel {
  readonly socket: Socket;
  readonly connection: GuestConnection;
  /** credit of the client for the guest's bytes; null: unlimited */
  readonly credit: ByteCredit | null;
  readonly isControlled: boolean;
}

/** Copies bytes in both directions until both have ended, or one side has disconnected; never throws. */
async function tunnel({ socket, connection, credit, isControlled }: Tunnel): Promise<void> {
  void socket.closed.then(() => credit?.close());
  if (isControlled) socket.notify(JSON.stringify({ window: SOCKET_WINDOW_BYTES }));
  const inbound = fromClient(socket, connection, isControlled).then(
    () => "ended" as const,
    () => "reset" as const,
  );
  const outbound = toClient(socket, connection, credit).then(
    () => "ended" as const,
    () => "reset" as const,
  );
  const first = await Promise.race([outbound, socket.closed]);
  if (first === "ended") {
    if (isControlled) socket.notify(END);
    if (isControlled) await Promise.race([inbound, socket.closed]);
    socket.close(CloseCode.normal);
  } else if (first === "reset") {
    socket.close(CloseCode.reset, "the connection was reset");
  } else if (LEAVING_CODES.has(first.code)) {
    // The guest still gets the bytes that the client sent before it left.
    await withinTime(Promise.all([inbound, outbound]), LINGER_MS, () => null);
  }
}

/** Codes with which a client closes a socket on purpose. */
const LEAVING_CODES: ReadonlySet<number> = new Set([1000, 1001, 1005]);

/** Writes the client's messages to the guest, until the client's end. @throws Error when the connection is lost */
async function fromClient(socket: Socket, connection: GuestConnection, isControlled: boolean): Promise<void> {
  let takenBytes = 0;
  let toldBytes = 0;
  for await (const message of socket.messages()) {
    if (typeof message === "string") {
      if (isControlled && isEnd(message)) break;
      socket.close(CloseCode.unexpected, "unexpected text message");
      return;
    }
    if (!(await connection.write(message))) return;
    takenBytes += message.byteLength;
    if (!isControlled || (takenBytes - toldBytes < TAKEN_STEP_BYTES && !socket.isIdle)) continue;
    socket.notify(JSON.stringify({ taken: takenBytes }));
    toldBytes = takenBytes;
  }
  await connection.end();
}

/** Sends the guest's bytes to the client; bytes after the client has left are dropped. @throws Error after a reset */
async function toClient(socket: Socket, connection: GuestConnection, credit: ByteCredit | null): Promise<void> {
  for await (const chunk of connection.chunks()) {
    for (let rest = chunk; rest.byteLength > 0; ) {
      const piece = rest.subarray(0, Math.min(SENT_BYTES_MAX, await (credit?.some() ?? rest.byteLength)));
      if (piece.byteLength === 0) break;
      credit?.spend(piece.byteLength);
      await socket.send(piece);
      rest = rest.subarray(piece.byteLength);
    }
  }
}

const END = JSON.stringify({ end: true });

function isEnd(message: string): boolean {
  return parsed(message)["end"] === true;
}

/** A number of a text message; NaN when there is none. */
function numberOf(message: string, name: string): number {
  const value = parsed(message)[name];
  return typeof value === "number" ? value : Number.NaN;
}

function parsed(message: string): Readonly<Record<string, unknown>> {
  try {
    return (JSON.parse(message) ?? {}) as Record<string, unknown>;
  } catch (error) {
    if (error instanceof SyntaxError) return {};
    throw error;
  }
}
