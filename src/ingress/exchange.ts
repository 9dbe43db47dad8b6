import { withinTime } from "../system/waiting.ts";
import { type AnswerStyle, answer, answerBytes } from "./answers.ts";
import type { ClientSocket } from "./client-socket.ts";
import {
  answerFields,
  expectsContinue,
  interimFields,
  requestedUpgrade,
  requestFields,
  switchingFields,
} from "./forwarding.ts";
import { bodyOf, chunkOf, type Framing, LAST_CHUNK, responseFraming } from "./http/body.ts";
import { headBytes, membersOf, type RequestHead, type ResponseHead, readResponseHead } from "./http/head.ts";
import { ByteReader, MessageError } from "./http/reader.ts";
import type { Times } from "./times.ts";
import { tunnel } from "./tunnel.ts";
import type { GuestConnection, Visit } from "./upstream.ts";

/** Largest number of a guest's answers with a status below 200 to one request. */
const INTERIM_COUNT_MAX = 16;

/** Both sides of an exchange. */
export interface ExchangeParts {
  readonly client: ClientSocket;
  /** the client's bytes after the head of the request */
  readonly reader: ByteReader;
  readonly visit: Visit;
  /** the head for the guest, without credentials */
  readonly head: RequestHead;
  /** of the request's body */
  readonly framing: Framing;
  /** names of cookies that the guest must not set */
  readonly cookies: ReadonlySet<string>;
  readonly guest: GuestConnection;
  readonly upstream: AnswerStyle;
  readonly times: Times;
}

/** The progress of the request's body. */
interface Upload {
  isComplete: boolean;
  /** the client broke the rules, or left; null: neither */
  error: MessageError | null;
}

/**
 * Passes a request to a connection of its own and the answer back, each piece as it comes and at the pace of the slower side.
 * Resolves to true when the client's connection can carry a further request.
 */
export async function exchange(parts: ExchangeParts): Promise<boolean> {
  const { client, guest, head, visit, framing } = parts;
  using _guest = { [Symbol.dispose]: () => guest.reset() };
  // A guest that says nothing more does not notice by itself that its client has left.
  const onGone = () => guest.reset();
  client.gone.addEventListener("abort", onGone);
  const ignoreGone = () => client.gone.removeEventListener("abort", onGone);
  using _listener = { [Symbol.dispose]: ignoreGone };
  const upload: Upload = { isComplete: false, error: null };
  const guestReader = new ByteReader(guest.chunks());
  let response: ResponseHead;
  let responseBody: Framing;
  try {
    await guest.write(headBytes(`${head.method} ${head.target} HTTP/1.1`, requestFields(head, visit, framing)));
    void sendBody(parts, upload);
    response = await withinTime(finalHead(parts, guestReader), parts.times.answerMs, tooSlow);
    responseBody = responseFraming(response, head.method);
  } catch (error) {
    await refuse(parts, upload, error);
    return false;
  }
  if (response.status === 101) {
    // The guest still gets the bytes that the client sent before it left.
    ignoreGone();
    const fields = switchingFields(response, parts.cookies);
    const isSent = await client.write(headBytes("HTTP/1.1 101 Switching Protocols", fields));
    if (isSent) await tunnel({ client, reader: parts.reader, guest, guestReader });
    return false;
  }
  return await answerClient(parts, upload, { response, framing: responseBody, reader: guestReader });
}

function tooSlow(): never {
  throw new MessageError(504, "the guest did not answer in time");
}

/** Sends the request's body to the guest; resets the guest when the client breaks the rules of HTTP. Never rejects. */
async function sendBody({ reader, framing, guest, times }: ExchangeParts, upload: Upload): Promise<void> {
  const body = bodyOf(reader, framing);
  const next = async () => {
    try {
      return await withinTime(body.next(), times.bodyMs, stalled);
    } catch (error) {
      upload.error = error instanceof MessageError ? error : new MessageError(400, "the body is incomplete");
      guest.reset();
      return null;
    }
  };
  try {
    for (let piece = await next(); piece !== null && piece.done !== true; piece = await next()) {
      if (!(await guest.write(framing.kind === "chunked" ? chunkOf(piece.value) : piece.value))) return;
    }
    if (upload.error !== null) return;
    upload.isComplete = framing.kind !== "chunked" || (await guest.write(LAST_CHUNK));
  } catch {
    // The guest is lost, which the reader of its answer sees, too.
  }
}

function stalled(): never {
  throw new MessageError(408, "the body does not arrive");
}

/** Reads the head of the final answer, and passes those before it. @throws MessageError; Error after a reset */
async function finalHead({ client, head, visit, framing }: ExchangeParts, reader: ByteReader): Promise<ResponseHead> {
  for (let count = 0; count <= INTERIM_COUNT_MAX; count++) {
    const response = await readResponseHead(reader);
    if (response.status >= 200) return response;
    if (response.status === 101) {
      const protocol = requestedUpgrade(head, framing);
      if (protocol !== null && membersOf(response.fields, "upgrade")[0] === protocol) return response;
      throw new MessageError(502, "the guest switched to a protocol that was not requested");
    }
    const passes = visit.head.version === 1 && (response.status !== 100 || expectsContinue(visit.head));
    const start = `HTTP/1.1 ${response.status} ${response.reason}`;
    if (passes && !(await client.write(headBytes(start, interimFields(response))))) break;
  }
  throw new MessageError(502, "the guest does not end its interim answers");
}

/** Answers in place of a guest that gave none. */
async function refuse({ client, visit, upstream }: ExchangeParts, upload: Upload, error: unknown): Promise<void> {
  const failure = upload.error ?? error;
  // The client is at fault only for its own message.
  const status =
    failure instanceof MessageError && (failure === upload.error || failure.status >= 502) ? failure.status : 502;
  const reason = failure instanceof MessageError ? failure.message : "the connection was closed";
  const message = upload.error === null ? `the program on this port did not answer as HTTP/1.1: ${reason}` : reason;
  await client.write(answerBytes(answer(status, message), { head: visit.head, closes: true, upstream }));
}

interface GuestAnswer {
  readonly response: ResponseHead;
  readonly framing: Framing;
  readonly reader: ByteReader;
}

/** Passes the final answer. Resolves to true when the client's connection can carry a further request. */
async function answerClient(parts: ExchangeParts, upload: Upload, guestAnswer: GuestAnswer): Promise<boolean> {
  const { client, visit, cookies, head } = parts;
  const { response, framing, reader } = guestAnswer;
  const { status, reason } = response;
  const isOld = visit.head.version === 0;
  const hasBody = head.method !== "HEAD" && status !== 204 && status !== 304;
  const sent: Framing = framing.kind === "length" ? framing : { kind: isOld ? "close" : "chunked" };
  // A body that the guest does not read to its end stays in the connection, in front of the next request.
  const closes = isOld || !upload.isComplete || membersOf(visit.head.fields, "connection").includes("close");
  const fields = answerFields(response, cookies, { framing: hasBody ? sent : null, closes });
  if (!(await client.write(headBytes(`HTTP/1.1 ${status} ${reason}`, fields)))) return false;
  try {
    for await (const piece of bodyOf(reader, framing)) {
      if (!(await client.write(sent.kind === "chunked" ? chunkOf(piece) : piece))) return false;
    }
  } catch {
    // The guest is lost, or broke the rules: the client sees an answer that has no end.
    client.reset();
    return false;
  }
  if (hasBody && sent.kind === "chunked" && !(await client.write(LAST_CHUNK))) return false;
  return !closes;
}
