import { ApiError, type ErrorBody } from "../../domain/errors.ts";
import { parseUuidOrDigits, type SandboxId } from "../../domain/ids.ts";
import { answerOf } from "../../ingress/answers.ts";
import type { Field, RequestHead } from "../../ingress/http/head.ts";
import { membersOf, valuesOf } from "../../ingress/http/head.ts";
import type { Answer, GuestConnection, Passage, Upstream, Visit } from "../../ingress/upstream.ts";
import { tokenOfKey } from "../../service/e2b/keys.ts";
import type { E2bRecord, Recorded } from "../../service/e2b/records.ts";
import { CORS, SANDBOX_FIELD } from "./app.ts";
import { E2bError, e2bGone, e2bStatusOf, portClosed } from "./errors.ts";
import { type E2bOptions, isPublicPort } from "./options.ts";
import { isPort, type NamedPort, placeOf } from "./routing.ts";
import { tlsConnection } from "./tls-connection.ts";

/** The field with the token of a sandbox's ports. It never reaches a guest. */
const TRAFFIC_FIELD = "e2b-traffic-access-token";
/** Fields in which a client may send the key of an account, or one that a program in a guest expects. */
const KEY_FIELDS: ReadonlySet<string> = new Set(["x-api-key", "x-access-token", "authorization"]);
/** The part of a sandbox's Host that stands for the port. */
const portPlaceExpression = /\$\{PORT\}/g;
/** Largest head that the application reads, in `bytes`. */
const APP_HEAD_BYTES_MAX = 15_872;
const hostValueExpression = /^[A-Za-z0-9._:[\]-]{1,255}$/;
/**
 * Time without a byte of a body for the application, in `milliseconds`: clients keep the input of a command open, and send
 * nothing. Only a caller who was proven has it.
 */
const APP_BODY_MS = 3_600_000;
const NO_COOKIES: ReadonlySet<string> = new Set();
/** Methods of the application's routes. Its server ends the connection without an answer for a method that it does not know. */
const METHODS: ReadonlySet<string> = new Set(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]);
const PREFLIGHT: readonly Field[] = [
  ["Access-Control-Allow-Headers", "*"],
  ["Access-Control-Allow-Methods", "*"],
  ["Access-Control-Max-Age", "86400"],
];

export interface E2bGatewayParts extends Pick<E2bOptions, "service" | "settings" | "verifyToken"> {
  /** Connects to the application. */
  readonly connectApp: () => Promise<GuestConnection>;
}

interface PortDial {
  readonly port: number;
  /** as the client asked for it */
  readonly host: string;
  readonly signal: AbortSignal;
}

type Guest = Disposable & { readonly connection: GuestConnection };

/** Passes requests to ports of sandboxes, and all others to the application. */
export class E2bGateway implements Upstream {
  readonly fields = CORS;
  readonly #parts: E2bGatewayParts;

  constructor(parts: E2bGatewayParts) {
    this.#parts = parts;
  }

  async decide(visit: Visit): Promise<Passage | Answer> {
    const place = placeOf(visit);
    try {
      if (place.kind === "port") return await this.#port(visit, place);
    } catch (error) {
      return answerTo(error);
    }
    const { head } = visit;
    if (head.method === "OPTIONS") return { status: 204, body: null, fields: preflight(head) };
    if (!METHODS.has(head.method)) return answerTo(new E2bError(405, "this method is not supported"));
    if (bytesOf(head) > APP_HEAD_BYTES_MAX) return answerTo(new E2bError(431, "the head of the request is too large"));
    return {
      head: forApp(head, place.kind === "envd" ? (place.sandbox ?? "") : null),
      cookies: NO_COOKIES,
      bodyMs: APP_BODY_MS,
      connect: async () => {
        const connection = await this.#parts.connectApp();
        return { connection, [Symbol.dispose]: () => connection.reset() };
      },
    };
  }

  /** The status is in the body, too, and so are the names of a sandbox and of a port that are in the details. */
  errorJson({ message, details: { sandboxId, port } }: ErrorBody, status: number): unknown {
    return { sandboxId, message, port, code: status };
  }

  /** @throws E2bError */
  async #port({ head, host }: Visit, { sandbox: name, port }: NamedPort): Promise<Passage> {
    const { service, settings } = this.#parts;
    const { e2b } = service;
    if (!isPort(port)) throw new E2bError(400, "the port must be from 1 to 65535");
    const id = parseUuidOrDigits<SandboxId>(name);
    const recorded = id === null ? null : e2b.find(id);
    if (recorded === null) throw e2bGone(name);
    if (!isPublicPort(settings, recorded, port)) {
      const [token = ""] = valuesOf(head.fields, TRAFFIC_FIELD);
      const isRight = await e2b.credentials.isToken(token, "traffic", recorded.record);
      if (!isRight) throw new E2bError(403, `the ports of this sandbox need its token in ${TRAFFIC_FIELD}`);
    }
    return {
      head: masked(await this.#withoutKeys(without(head, new Set([TRAFFIC_FIELD]))), recorded.record, port),
      cookies: NO_COOKIES,
      connect: async (signal) => {
        try {
          return await this.#connect(recorded, { port, host, signal });
        } catch (error) {
          return answerTo(portError(error, name, port));
        }
      },
    };
  }

  /** Connects to the program on a port. @throws ApiError when there is none */
  async #connect(recorded: Recorded, { port, host, signal }: PortDial): Promise<Guest> {
    const { e2b, ingress } = this.#parts.service;
    using _use = await e2b.use(recorded, signal);
    using undo = new DisposableStack();
    const { connection } = undo.use(await ingress.connect(recorded.sandbox, port, signal));
    const isTls = recorded.record.network?.httpsPorts?.includes(port) === true;
    const own = isTls ? await tlsConnection(connection, host.replace(/:.*/, "")) : connection;
    const held = undo.move();
    return { connection: own, [Symbol.dispose]: () => held.dispose() };
  }

  /** A key of this appliance never reaches a guest; one of another service is for its program. */
  async #withoutKeys(head: RequestHead): Promise<RequestHead> {
    const isKey = async ([name, value]: Field): Promise<boolean> =>
      KEY_FIELDS.has(plain(name)) &&
      (await this.#parts.verifyToken(tokenOfKey(value.replace(/^bearer +/i, "")))) !== null;
    const areKeys = await Promise.all(head.fields.map(isKey));
    return { ...head, fields: head.fields.filter((_field, index) => areKeys[index] === false) };
  }
}

/** The head with the Host that the owner of the sandbox wants its programs to see. */
function masked(head: RequestHead, { network }: E2bRecord, port: number): RequestHead {
  const host = network?.maskRequestHost?.replaceAll(portPlaceExpression, String(port)) ?? "";
  if (!hostValueExpression.test(host)) return head;
  return { ...head, fields: [["Host", host], ...without(head, new Set(["host"])).fields] };
}

/** The `*` of a preflight's answer is all fields but one, which names the user of a call. */
function preflight({ fields }: RequestHead): readonly Field[] {
  const isAsked = membersOf(fields, "access-control-request-headers").includes("authorization");
  return isAsked ? [...PREFLIGHT, ["Access-Control-Allow-Headers", "Authorization"]] : PREFLIGHT;
}

/** A conflict is a state in which the sandbox does not run. */
function portError(error: unknown, name: string, port: number): unknown {
  if (!(error instanceof ApiError)) return error;
  if (error.details["port"] !== undefined) return portClosed(name, port);
  return error.code === "conflict" || error.code === "not_found" ? e2bGone(name) : error;
}

/** @throws `error` when it is not for callers */
function answerTo(error: unknown): Answer {
  if (!(error instanceof ApiError)) throw error;
  const details = error instanceof E2bError ? error.fields : error.details;
  const { fields = [] } = answerOf(error);
  return { status: e2bStatusOf(error).status, body: { error: error.code, message: error.message, details }, fields };
}

/**
 * The head for the application, which gets a Host without surprises: that of the client is in X-Forwarded-Host. It switches
 * to no other protocol. A client that names a field in Connection would take that field away from the application.
 */
function forApp(head: RequestHead, sandbox: string | null): RequestHead {
  const { fields, ...rest } = without(head, new Set(["host", "connection", "upgrade", SANDBOX_FIELD]));
  const named: Field[] = sandbox === null ? [] : [[SANDBOX_FIELD, sandbox]];
  return { ...rest, fields: [["Host", "localhost"], ...fields, ...named] };
}

/** The name of a field as a program sees it that takes `_` for `-`. */
function plain(name: string): string {
  return name.toLowerCase().replaceAll("_", "-");
}

function without(head: RequestHead, names: ReadonlySet<string>): RequestHead {
  return { ...head, fields: head.fields.filter(([name]) => !names.has(plain(name))) };
}

function bytesOf({ target, fields }: RequestHead): number {
  return fields.reduce((sum, [name, value]) => sum + name.length + value.length + 4, target.length);
}
