import { createHash, timingSafeEqual } from "node:crypto";
import type { SandboxId } from "../../domain/ids.ts";
import { ownerOf } from "../../ingress/listener.ts";
import type { CredentialOwner } from "../../service/e2b/credentials.ts";
import { ownTurn } from "../../system/turns.ts";
import { rawQuery } from "../query.ts";
import { E2bError } from "./errors.ts";
import type { E2bParts } from "./options.ts";
import { addressOf } from "./principal.ts";

/** Signatures that match no sandbox, of one address within a window. */
const MISSES_COUNT_MAX = 30;
const WINDOW_MS = 60_000;
/** Addresses whose misses are counted. */
const ADDRESSES_COUNT_MAX = 4096;
/** Sandboxes that requests have found, and that are compared first. */
const RECENT_COUNT_MAX = 64;
/** Sandboxes that are compared in one turn of the event loop. */
const COMPARED_COUNT_MAX = 256;

/** The part of a request for a file that its signature covers. */
interface Signed {
  readonly signature: string;
  /** path, operation and user, as the client signed them */
  readonly subject: string;
  /** `seconds` since the epoch, as the client wrote them; null: it does not expire */
  readonly expiration: string | null;
}

/** The misses of an address. */
interface MissWindow {
  count: number;
  /** `milliseconds` since the epoch */
  readonly endsAt: number;
  /** resolves when the latest search of the address is over */
  searched: Promise<void>;
}

/**
 * Requests that name no sandbox, so that it is found by what its token gave: links to files by their signature, and requests
 * of some clients by the token itself.
 */
export class SignedLinks {
  readonly #parts: Pick<E2bParts, "service" | "clock">;
  /** windows by the owner of an address, the latest use at the end */
  readonly #misses = new Map<string, MissWindow>();
  /** the sandboxes that were found last, the latest at the end */
  readonly #recent = new Set<SandboxId>();

  constructor(parts: Pick<E2bParts, "service" | "clock">) {
    this.#parts = parts;
  }

  /**
   * The sandbox that a link is for.
   * @throws E2bError 401 when there is none; 429 after too many of those
   */
  async find(request: Request): Promise<SandboxId> {
    const signed = signedPart(request);
    const id = await this.#search(request, (owner) => this.#isOf(signed, owner));
    if (id === null) throw invalid();
    this.#requireInTime(signed);
    return id;
  }

  /** The sandbox whose token a request has; null when there is none. @throws E2bError 429 after too many of those */
  async findByToken(request: Request, token: string): Promise<SandboxId | null> {
    const { credentials } = this.#parts.service.e2b;
    return await this.#search(request, (owner) => credentials.isToken(token, "envd", owner));
  }

  async #search(request: Request, isOf: (owner: CredentialOwner) => Promise<boolean>): Promise<SandboxId | null> {
    const window = this.#windowOf(ownerOf(addressOf(request)));
    // One search of an address at a time, so that many at once are bounded by their misses, too, and by nothing else.
    const earlier = window.searched;
    const { promise, resolve } = Promise.withResolvers<void>();
    window.searched = promise;
    using _searched = { [Symbol.dispose]: resolve };
    await earlier;
    if (window.count >= MISSES_COUNT_MAX) throw tooMany(Math.ceil((window.endsAt - this.#parts.clock()) / 1000));
    for (const [index, owner] of this.#owners().entries()) {
      if (index % COMPARED_COUNT_MAX === COMPARED_COUNT_MAX - 1) await ownTurn(this);
      if (!(await isOf(owner))) continue;
      this.#remember(owner.sandboxId);
      return owner.sandboxId;
    }
    window.count++;
    return null;
  }

  /** All owners, those that were found last before the others. */
  #owners(): CredentialOwner[] {
    const owners = this.#parts.service.e2b.owners();
    const { true: recent = [], false: others = [] } = Object.groupBy(owners, ({ sandboxId }) =>
      this.#recent.has(sandboxId) ? "true" : "false",
    );
    return [...recent, ...others];
  }

  #remember(id: SandboxId): void {
    this.#recent.delete(id);
    this.#recent.add(id);
    const [oldest = id] = this.#recent;
    if (this.#recent.size > RECENT_COUNT_MAX) this.#recent.delete(oldest);
  }

  /** @throws E2bError 401 when the signature of the request is not that of the sandbox */
  async check(request: Request, owner: CredentialOwner): Promise<void> {
    const signed = signedPart(request);
    if (!(await this.#isOf(signed, owner))) throw invalid();
    this.#requireInTime(signed);
  }

  async #isOf({ signature, subject, expiration }: Signed, owner: CredentialOwner): Promise<boolean> {
    const token = await this.#parts.service.e2b.credentials.token("envd", owner);
    const text = `${subject}:${token}${expiration === null ? "" : `:${expiration}`}`;
    const expected = Buffer.from(`v1_${createHash("sha256").update(text).digest("base64").replace(/=+$/, "")}`);
    const given = Buffer.from(signature);
    return given.byteLength === expected.byteLength && timingSafeEqual(given, expected);
  }

  #requireInTime({ expiration }: Signed): void {
    const isOver = expiration !== null && !(Number(expiration) * 1000 >= this.#parts.clock());
    if (isOver) throw new E2bError(401, "signature is already expired");
  }

  #windowOf(address: string): MissWindow {
    const now = this.#parts.clock();
    const present = this.#misses.get(address);
    const isPresent = present !== undefined && present.endsAt > now;
    const window = isPresent ? present : { count: 0, endsAt: now + WINDOW_MS, searched: Promise.resolve() };
    this.#misses.delete(address);
    this.#misses.set(address, window);
    const [oldest = address] = this.#misses.keys();
    if (this.#misses.size > ADDRESSES_COUNT_MAX) this.#misses.delete(oldest);
    return window;
  }
}

/** @throws E2bError 401 for a request without a signature */
function signedPart({ method, url }: Request): Signed {
  const query = new URLSearchParams(rawQuery(url));
  const signature = query.get("signature");
  if (signature === null || signature === "") throw new E2bError(401, "missing signature query parameter");
  const operation = method === "GET" || method === "HEAD" ? "read" : "write";
  return {
    // A plus sign that a client did not encode is read as a blank.
    signature: signature.replaceAll(" ", "+"),
    subject: `${query.get("path") ?? ""}:${operation}:${query.get("username") ?? ""}`,
    expiration: query.get("signature_expiration"),
  };
}

function invalid(): E2bError {
  return new E2bError(401, "invalid signature");
}

function tooMany(seconds: number): E2bError {
  return new E2bError(429, "too many invalid signatures and tokens", {}, { retry_after_seconds: seconds });
}
