import { isIP } from "node:net";
import { ApiError } from "../domain/errors.ts";
import type { Log } from "../log.ts";
import { ownTurn } from "../system/turns.ts";
import { withinTime } from "../system/waiting.ts";
import { answer, answerBytes, answerOf } from "./answers.ts";
import type { ClientSocket } from "./client-socket.ts";
import { exchange } from "./exchange.ts";
import { type Framing, requestFraming } from "./http/body.ts";
import { membersOf, type RequestHead, readRequestHead, valuesOf } from "./http/head.ts";
import { ByteReader, MessageError } from "./http/reader.ts";
import type { Times } from "./times.ts";
import type { Answer, Passage, Upstream, Visit } from "./upstream.ts";

export interface ServeOptions {
  readonly upstream: Upstream;
  readonly log: Log;
  readonly isTls: boolean;
  /** whether a reverse proxy is in front, whose X-Forwarded fields are true */
  readonly isBehindProxy: boolean;
  /** Registers a client without a request, until disposal. */
  readonly idle: (client: ClientSocket) => Disposable;
  readonly times: Times;
  /** aborted when the listener stops: connections end after their present request */
  readonly stopping: AbortSignal;
}

/** Serves the requests of a client's connection, one after another, until it ends. Never rejects. */
export async function serve(client: ClientSocket, options: ServeOptions): Promise<void> {
  const reader = new ByteReader(client.chunks());
  try {
    while (await hasRequest(client, reader, options)) {
      if (!(await serveRequest(client, reader, options))) break;
    }
    await client.finish();
  } catch (error) {
    options.log.error("a connection from outside failed", { error });
    client.reset();
  }
}

async function hasRequest(
  client: ClientSocket,
  reader: ByteReader,
  { idle, stopping, times }: ServeOptions,
): Promise<boolean> {
  // Requests that are here already are answered without a wait: many of them would hold up everything else.
  if (!reader.isEmpty) await ownTurn(client);
  using _idle = idle(client);
  return !stopping.aborted && (await withinTime(reader.hasMore(), times.idleMs, () => false));
}

/** Resolves to true when the connection can carry a further request. */
async function serveRequest(client: ClientSocket, reader: ByteReader, options: ServeOptions): Promise<boolean> {
  let head: RequestHead;
  let framing: Framing;
  try {
    head = await withinTime(readRequestHead(reader), options.times.headMs, tooSlow);
    framing = requestFraming(head);
    checkExpectation(head);
  } catch (error) {
    if (!(error instanceof MessageError)) throw error;
    const { upstream } = options;
    await client.write(answerBytes(answer(error.status, error.message), { head: null, closes: true, upstream }));
    return false;
  }
  const { upstream, times } = options;
  const visit = visitOf(head, client, options);
  // A body that is not read stays in the connection, in front of the next request.
  const closes = head.version === 0 || !isEmpty(framing) || membersOf(head.fields, "connection").includes("close");
  const reply = async (content: Answer) =>
    (await client.write(answerBytes(content, { head, closes, upstream }))) && !closes;
  const place = await destination(visit, client, options);
  if ("status" in place) return await reply(place);
  using target = place;
  const { cookies, connection: guest, head: passed, bodyMs = times.bodyMs } = target;
  return await exchange({
    client,
    reader,
    visit,
    head: passed,
    framing,
    cookies,
    guest,
    upstream,
    times: { ...times, bodyMs },
  });
}

type Destination = Omit<Passage, "connect"> & Exclude<Awaited<ReturnType<Passage["connect"]>>, Answer>;

/** Connects the request to its guest, or answers in its place. */
async function destination(
  visit: Visit,
  client: ClientSocket,
  { upstream, log }: ServeOptions,
): Promise<Destination | Answer> {
  try {
    const decision = await upstream.decide(visit);
    if ("status" in decision) return decision;
    const { connect, ...passage } = decision;
    const target = await connect(client.gone);
    if ("status" in target) return target;
    return { ...passage, connection: target.connection, [Symbol.dispose]: () => target[Symbol.dispose]() };
  } catch (error) {
    const isExpected = error instanceof ApiError || client.gone.aborted;
    if (!isExpected) log.error("a request from outside failed", { host: visit.host, error });
    return answerOf(error);
  }
}

function tooSlow(): never {
  throw new MessageError(408, "the head of the request does not arrive");
}

function isEmpty(framing: Framing): boolean {
  return framing.kind === "length" && framing.bytes === 0;
}

function checkExpectation({ fields }: RequestHead): void {
  if (membersOf(fields, "expect").some((member) => member !== "100-continue")) {
    throw new MessageError(417, "the only expectation is 100-continue");
  }
}

function visitOf(head: RequestHead, client: ClientSocket, { isTls, isBehindProxy }: ServeOptions): Visit {
  const host = (valuesOf(head.fields, "host")[0] ?? "").toLowerCase();
  // A proxy appends to what its own client sent.
  const address = isBehindProxy ? membersOf(head.fields, "x-forwarded-for").at(-1) : undefined;
  const isSecure = isBehindProxy ? membersOf(head.fields, "x-forwarded-proto").at(-1) === "https" : isTls;
  return { head, host, address: address !== undefined && isIP(address) > 0 ? address : client.address, isSecure };
}
