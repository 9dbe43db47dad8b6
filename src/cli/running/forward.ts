import { once } from "node:events";
import { createServer, type Server, type Socket } from "node:net";
import { answerOf, type Client } from "../../client/client.ts";
import { PortConnection } from "../../client/connections/port.ts";
import { ResponseError, UnreachableError } from "../../client/errors.ts";
import { eventsBelow } from "../../client/operation-events.ts";
import { type Place, pathOfPlace } from "../../client/place.ts";
import { readSandbox } from "../../client/sandboxes.ts";
import { CLIENT_OPTIONS, openClient } from "../client.ts";
import { CliError, command, EXIT_INTERRUPTED, UsageError } from "../command.ts";
import type { Io } from "../io.ts";
import { inPlace, placeText } from "../place.ts";
import { printable } from "../table.ts";
import { interruptible, waitForOperation } from "../wait.ts";

const LOOPBACK = "127.0.0.1";
const PORT_MAX = 65_535;
/** Number of the agent in events, which are few. */
const AGENT_SPID = 0;

export const forwardCommand = command({
  name: "forward",
  summary: "reach TCP ports of a running instance or sandbox at ports of this machine",
  synopsis: "ID|NAME [LOCAL:]REMOTE...",
  description:
    `Listens on ${LOOPBACK}, and passes every connection to a port of the instance, where a program must listen on\n` +
    "its loopback interface. LOCAL 0 is a free port, which is printed. It runs until Ctrl-C, or until the\n" +
    "instance or sandbox ends. A connection resumes a sandbox that is paused.",
  examples: ["coppice forward 0197a1d0-5a5e-7000-8000-3c6e0b8a9c15 8080:80", "coppice forward dev 3000"],
  options: CLIENT_OPTIONS,
  async run({ options, positionals, io, environment }) {
    const [id, ...rules] = positionals;
    if (id === undefined) throw new UsageError("ID is missing");
    if (rules.length === 0) throw new UsageError("LOCAL:REMOTE is missing");
    const pairs = rules.map(portsOf);
    const client = openClient(environment, options.url);
    const place = await inPlace(client, id, (named) => requireRunning(client, named));
    await using listeners = new AsyncDisposableStack();
    for (const { local, remote } of pairs) {
      const listener = await listen(local, (socket) => void passOn(socket, { client, place, remote, io }));
      listeners.use(listener);
      await io.stdout(`${LOOPBACK}:${listener.port} -> ${remote}\n`);
    }
    const status = await untilEnd(client, place, io);
    io.stderr(
      `coppice forward: ${status === null ? `sandbox ${id} has ended` : `the instance has ended (${status})`}\n`,
    );
    return 0;
  },
});

/** Waits for the end, and returns the status of an instance; null for a sandbox. @throws CliError after Ctrl-C */
async function untilEnd(client: Client, place: Place, io: Io): Promise<string | null> {
  if (place.sandbox !== undefined) {
    await interruptible(io, async (signal) => {
      // Only the state of the sandbox matters, so the events of the agent are enough.
      const events = eventsBelow(client, pathOfPlace(place), { follow: true, spid: AGENT_SPID, signal });
      while ((await events.next()).done !== true);
    });
    return null;
  }
  const wait = { client, io, id: place.instance, label: null, cancelOnInterrupt: false };
  const { operation } = await waitForOperation(wait);
  if (operation === null) throw new CliError("", EXIT_INTERRUPTED);
  return operation.status;
}

interface Ports {
  readonly local: number;
  readonly remote: number;
}

/** `8080:80`, or one number for both. @throws UsageError */
export function portsOf(rule: string): Ports {
  const [, local, remote = local] = /^(\d{1,5})(?::(\d{1,5}))?$/.exec(rule) ?? [];
  const ports = { local: Number(local), remote: Number(remote) };
  if (!(ports.local <= PORT_MAX && ports.remote >= 1 && ports.remote <= PORT_MAX)) {
    throw new UsageError(`${rule} must be LOCAL:REMOTE, two port numbers, or one for both`);
  }
  return ports;
}

/**
 * Reports now the error that every connection would get later. Returns the place by its UUID: the name of a sandbox can be that
 * of another one later.
 * @throws ResponseError, CliError
 */
async function requireRunning(client: Client, place: Place): Promise<Place> {
  if (place.sandbox !== undefined) {
    const { state, uuid } = await readSandbox(client, place.sandbox);
    if (state === "ended") throw new CliError(`sandbox ${placeText(place)} has ended`);
    return { sandbox: uuid };
  }
  const { instance: id } = place;
  const { kind, status } = await answerOf(client.v1.operations({ id: encodeURIComponent(id) }).get());
  if (kind !== "instance") throw new CliError(`operation ${id} is not an instance`);
  if (status !== "EXECUTING") throw new CliError(`instance ${id} is not running: it is ${status}`);
  return place;
}

interface Listener extends AsyncDisposable {
  readonly port: number;
}

/** Listens on loopback; disposal ends the connections, too. @throws CliError for an unavailable port */
async function listen(port: number, onConnection: (socket: Socket) => void): Promise<Listener> {
  const sockets = new Set<Socket>();
  const server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (socket) => {
    sockets.add(socket);
    socket.once("close", () => sockets.delete(socket));
    // The reader or writer of the connection reports the error.
    socket.on("error", () => undefined);
    onConnection(socket);
  });
  server.listen(port, LOOPBACK);
  await once(server, "listening").catch((error: NodeJS.ErrnoException) => {
    throw new CliError(`cannot listen on ${LOOPBACK}:${port}: ${error.code}`, undefined, { cause: error });
  });
  return {
    port: portOf(server),
    async [Symbol.asyncDispose]() {
      const closed = once(server, "close");
      server.close();
      for (const socket of sockets) socket.destroy();
      await closed;
    },
  };
}

function portOf(server: Server): number {
  const address = server.address();
  return typeof address === "object" && address !== null ? address.port : 0;
}

interface Tunnel {
  readonly client: Client;
  readonly place: Place;
  readonly remote: number;
  readonly io: Io;
}

/** Serves one connection to its end. Never rejects. */
async function passOn(socket: Socket, { client, place, remote, io }: Tunnel): Promise<void> {
  using _socket = { [Symbol.dispose]: () => void socket.destroy() };
  try {
    using connection = await PortConnection.open(client, place, remote);
    const inbound = toGuest(socket, connection);
    // The peer was reset; without this, the guest's program would keep the connection open.
    inbound.catch(() => connection[Symbol.dispose]());
    await fromGuest(connection, socket);
    await Promise.race([inbound.catch(() => undefined), connection.ended()]);
  } catch (error) {
    // A reset, as in the guest: the peer must not mistake the loss for the end.
    socket.resetAndDestroy();
    if (!(error instanceof ResponseError || error instanceof UnreachableError)) throw error;
    if (error instanceof ResponseError) io.stderr(`coppice forward: ${printable(error.message)}\n`);
  }
}

async function toGuest(socket: Socket, connection: PortConnection): Promise<void> {
  for await (const chunk of socket.iterator({ destroyOnReturn: false })) {
    if (!(await connection.write(chunk as Uint8Array))) return;
  }
  connection.end();
}

/** @throws UnreachableError when the guest's side was reset */
async function fromGuest(connection: PortConnection, socket: Socket): Promise<void> {
  const gone = event(socket, "close");
  for await (const chunk of connection.chunks()) {
    if (socket.destroyed) return;
    if (!socket.write(chunk)) await Promise.race([event(socket, "drain"), gone]);
  }
  const flushed = new Promise<void>((resolve) => socket.end(resolve));
  await Promise.race([flushed, gone]);
}

/** Resolves with the next event of that name; `once` of the runtime rejects when there is an error meanwhile. */
function event(socket: Socket, name: "close" | "drain"): Promise<void> {
  return new Promise((resolve) => socket.once(name, () => resolve()));
}
