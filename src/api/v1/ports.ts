import { Elysia } from "elysia";
import type { OperationId } from "../../domain/ids.ts";
import type { GuestConnection } from "../../service/instances.ts";
import { withinTime } from "../../system/waiting.ts";
import { about } from "../route.ts";
import { CloseCode, chosenProtocol, SOCKET_WINDOW_BYTES, Socket } from "../socket.ts";
import type { Surface } from "./surface.ts";

/**
 * With this subprotocol, text messages are JSON: `{"window": BYTES}` first, the bytes that the client may send before they
 * are taken; `{"taken": BYTES}`, what was taken so far; and in both directions `{"end": true}`, the end of one side's bytes.
 * Without it a client has the same window, without being told; the end of either side is the end of the socket.
 */
const CONTROLLED = "v1.port.coppice";

/** What is taken is told in pieces of this many `bytes`, and whenever nothing waits any more. */
const TAKEN_STEP_BYTES = 65_536;
/** How long the answer to a client's last bytes is waited for when it has closed the socket, in `milliseconds`. */
const LINGER_MS = 10_000;

const PORT = about({
  id: "instancePort",
  tag: "Instances",
  summary:
    "Connect to a TCP port of a running instance, by WebSocket; binary messages are the bytes in both directions",
  responses: { 101: { description: "the guest's program has taken the connection" } },
  errors: ["not_found", "conflict", "too_many_requests", "unavailable"],
});

export function portRoutes(surface: Surface) {
  return new Elysia({ prefix: "/instances" }).use(surface.access).get(
    "/:uuid/ports/:port",
    async ({ request, server, principal, params }) => {
      const id = params.uuid as OperationId;
      const connection = await surface.service.instances.dial(principal, id, Number(params.port));
      const protocol = chosenProtocol(request, [CONTROLLED]);
      const socket = new Socket();
      try {
        const answer = surface.upgrade({ request, server }, protocol, socket);
        void tunnel(socket, connection, protocol !== null);
        return answer;
      } catch (error) {
        connection.reset();
        throw error;
      }
    },
    { reads: "instances:exec", ...PORT },
  );
}

/** Moves bytes in both directions until both have ended, or one side is gone; never throws. */
async function tunnel(socket: Socket, connection: GuestConnection, isControlled: boolean): Promise<void> {
  using _connection = { [Symbol.dispose]: () => connection.reset() };
  if (isControlled) socket.notify(JSON.stringify({ window: SOCKET_WINDOW_BYTES }));
  const inbound = fromClient(socket, connection, isControlled).then(
    () => "ended" as const,
    () => "reset" as const,
  );
  const outbound = toClient(socket, connection).then(
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
    // What the client sent before it left is the guest's, which may take a moment to read it.
    await withinTime(Promise.all([inbound, outbound]), LINGER_MS, () => null);
  }
}

/** Codes with which a client closes a socket on purpose. */
const LEAVING_CODES: ReadonlySet<number> = new Set([1000, 1001, 1005]);

/** Gives the guest what the client sends, to the client's end. @throws when the connection is lost */
async function fromClient(socket: Socket, connection: GuestConnection, isControlled: boolean): Promise<void> {
  let takenBytes = 0;
  let toldBytes = 0;
  for await (const message of socket.messages()) {
    if (typeof message === "string") {
      if (isControlled && isEnd(message)) break;
      socket.close(CloseCode.unexpected, "a text message that means nothing here");
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

/** Sends the client what the guest gives; what comes after the client has left is dropped. @throws after a reset */
async function toClient(socket: Socket, connection: GuestConnection): Promise<void> {
  for await (const chunk of connection.chunks()) await socket.send(chunk);
}

const END = JSON.stringify({ end: true });

function isEnd(message: string): boolean {
  try {
    return (JSON.parse(message) as { readonly end?: unknown } | null)?.end === true;
  } catch (error) {
    if (error instanceof SyntaxError) return false;
    throw error;
  }
}
