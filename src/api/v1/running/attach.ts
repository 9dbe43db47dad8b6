import { Elysia } from "elysia";
import { ApiError } from "../../../domain/errors.ts";
import type { AccountId } from "../../../domain/ids.ts";
import type { TerminalSize } from "../../../domain/spawn.ts";
import type { Attached, Attachment } from "../../../service/running/attach.ts";
import { ownTurn } from "../../../system/turns.ts";
import { untilAborted } from "../../../system/waiting.ts";
import { errorReply } from "../../errors.ts";
import { about, checked } from "../../route.ts";
import { CloseCode, chosenProtocol, Socket, type SocketMessage } from "../../socket.ts";
import { AttachQuery } from "../schema/query.ts";
import type { Surface } from "../surface.ts";
import { processOf, type Runner } from "./runner.ts";

/** The subprotocol of Kubernetes: the first byte of every message is its channel. */
const KUBERNETES = "v5.channel.k8s.io";
const Channel = { stdin: 0, stdout: 1, stderr: 2, status: 3, resize: 4, close: 255 } as const;
const TERMINAL_SIZE_MAX = 65_535;
/** Longest reason in a close frame, which has room for 123 bytes of UTF-8. */
const REASON_CHARACTERS_MAX = 40;
/** Number of items that are sent to one client in a turn of the event loop. */
const TURN_ITEMS_COUNT = 64;

const ATTACH = ({ id }: Runner<string>) => ({
  query: checked(AttachQuery),
  ...about({
    id: id("attachProcess"),
    tag: "Processes",
    summary:
      "Attach to a process, by WebSocket: its output from the beginning, standard input and size of its terminal",
    responses: { 101: { description: "the client is attached" } },
    errors: ["not_found", "too_many_requests"],
  }),
});

export function attachRoutes<const Prefix extends string>(surface: Surface, runner: Runner<Prefix>) {
  return new Elysia({ prefix: runner.prefix }).use(surface.access).get(
    "/processes/:spid/attach",
    async ({ request, server, principal, params, query: { since = -1, lossless = false, positions = false } }) => {
      const name = processOf(runner, principal, params);
      using stack = new DisposableStack();
      const attachment = stack.use(await surface.service.processes.attach(principal, { ...name, since, lossless }));
      const socket = new Socket();
      const answer = surface.upgrade({ request, server }, chosenProtocol(request, [KUBERNETES]), socket);
      const held = stack.move();
      void converse(socket, attachment, { positions, account: principal.accountId }).then(() => held.dispose());
      return answer;
    },
    { reads: "instances:exec", ...ATTACH(runner) },
  );
}

interface ConverseOptions {
  /** true: the client has requested positions */
  readonly positions: boolean;
  readonly account: AccountId;
}

/** Passes data in both directions until the socket is closed. Never throws. */
async function converse(socket: Socket, attachment: Attachment, options: ConverseOptions): Promise<void> {
  const failed = (error: unknown) => {
    const message = tellFailure(socket, error);
    socket.close(CloseCode.failed, message);
  };
  const outbound = toClient(socket, attachment, options).catch(failed);
  const inbound = fromClient(socket, attachment).catch(failed);
  await socket.closed;
  attachment[Symbol.dispose]();
  await Promise.all([outbound, inbound]);
}

/** Sends the output of the process and its end, and then closes the socket. @throws ApiError */
async function toClient(
  socket: Socket,
  attachment: Attachment,
  { positions, account }: ConverseOptions,
): Promise<void> {
  let count = 0;
  for await (const item of attachment.items()) {
    count += 1;
    // A guest can write a million outputs of one byte, and neither reading nor sending them need wait for anything.
    if (count % TURN_ITEMS_COUNT === 0) await ownTurn(account);
    const message = messageOf(item, positions);
    if (message !== null && !(await socket.send(message))) return;
    if (item.kind === "end") socket.close(item.exit === null ? CloseCode.failed : CloseCode.normal);
  }
}

/** The message for an item; null for positions, unless the client has requested them. */
function messageOf(item: Attached, positions: boolean): Uint8Array | null {
  switch (item.kind) {
    case "output":
      return framed(item.stream === "stdout" ? Channel.stdout : Channel.stderr, item.bytes);
    case "position":
      return positions ? status({ position: item.id }) : null;
    case "dropped":
      return status({ dropped: { stream: item.stream, bytes: item.bytes } });
    case "gap":
      return status({ gap: { first: item.first, dropped: item.dropped } });
    case "end":
      return status(item.exit ?? { error: LOST.body() });
  }
}

const LOST = new ApiError("unavailable", "the instance ended before it reported the end of the process");

/** Handles the messages of the client. @throws ApiError `validation_error` for a message that the protocol does not allow */
async function fromClient(socket: Socket, attachment: Attachment): Promise<void> {
  for await (const message of socket.messages()) {
    // A process that reads no more input is reported to the client, which stays attached.
    await untilAborted(obey(message, socket, attachment), socket.signal).catch((error: unknown) => {
      if (!socket.isOpen) return;
      if (!(error instanceof ApiError) || error.code !== "conflict") throw error;
      tellFailure(socket, error);
    });
  }
}

async function obey(message: SocketMessage, { signal }: Socket, attachment: Attachment): Promise<void> {
  const channel = typeof message === "string" ? undefined : message[0];
  const payload = typeof message === "string" ? NOTHING : message.subarray(1);
  if (channel === Channel.stdin) await attachment.write(payload, signal);
  else if (channel === Channel.resize) await attachment.resize(sizeOf(payload));
  else if (channel === Channel.close && payload[0] === Channel.stdin) await attachment.closeInput(signal);
  else throw new ApiError("validation_error", "a client cannot write to the channel of this message");
}

const NOTHING = new Uint8Array();

/** Longest message with a terminal size, in `bytes`: it is parsed at once. */
const SIZE_BYTES_MAX = 256;

/** Parses a terminal size in the format of Kubernetes. @throws ApiError `validation_error` */
function sizeOf(payload: Uint8Array): TerminalSize {
  const { Width, Height } = payload.byteLength <= SIZE_BYTES_MAX ? parsed(payload) : {};
  const isSide = (side: unknown): side is number =>
    typeof side === "number" && Number.isInteger(side) && side >= 1 && side <= TERMINAL_SIZE_MAX;
  if (isSide(Width) && isSide(Height)) return { rows: Height, columns: Width };
  throw new ApiError("validation_error", `Width and Height must be integers from 1 to ${TERMINAL_SIZE_MAX}`);
}

function parsed(payload: Uint8Array): { readonly Width?: unknown; readonly Height?: unknown } {
  try {
    return (JSON.parse(Buffer.from(payload).toString("utf8")) ?? {}) as object;
  } catch (error) {
    if (error instanceof SyntaxError) return {};
    throw error;
  }
}

/** Reports an error to the client. Returns its text, shortened for a close frame. */
function tellFailure(socket: Socket, error: unknown): string {
  const { body } = errorReply(error);
  const { message } = JSON.parse(String(body)) as { readonly message: string };
  socket.notify(status({ error: JSON.parse(String(body)) }));
  return message.slice(0, REASON_CHARACTERS_MAX);
}

function status(content: object): Uint8Array {
  return framed(Channel.status, Buffer.from(JSON.stringify(content), "utf8"));
}

function framed(channel: number, payload: Uint8Array): Uint8Array {
  const message = new Uint8Array(1 + payload.byteLength);
  message[0] = channel;
  message.set(payload, 1);
  return message;
}
