import { createHmac, timingSafeEqual } from "node:crypto";
import { findSandbox, getSandbox, noMachineOf, type SandboxRow, sandboxNamed } from "../db/sandboxes/rows.ts";
import { getTokenCached } from "../db/tokens.ts";
import { ApiError } from "../domain/errors.ts";
import { parseUuid, type SandboxId } from "../domain/ids.ts";
import { type NamedSandbox, PORT_MAX, portUrl } from "../domain/ingress.ts";
import type { TokenKey } from "../storage/token-keys.ts";
import { type Changed, change } from "./change.ts";
import type { GuestConnection } from "./instances.ts";
import type { IngressSettings, Principal, ServiceParts } from "./parts.ts";

/** Name of the parameter of a link that has the grant. */
export const LINK_PARAMETER = "coppice-link";
export const LINK_TTL_SECONDS_DEFAULT = 3600;
export const LINK_TTL_SECONDS_MAX = 7 * 86_400;
/** Prefix of the data that a grant's key signs, so that a grant cannot be the signature of a token or of a page key. */
const GRANT_PREFIX = "ingress:";
/** A grant in bytes: the ids of a key and of a token, the end in `seconds` since the epoch, and the signature. */
const ID_BYTES = 16;
const END_BYTES = 6;
const SIGNED_BYTES = 2 * ID_BYTES + END_BYTES;
const GRANT_BYTES = SIGNED_BYTES + 32;
const grantExpression = /^[A-Za-z0-9_-]{94}$/;

export interface LinkRequest {
  readonly port: number;
  /** how long it can be used; default: an hour. It ends with the token that made it. */
  readonly ttlSeconds?: number | undefined;
}

/** An address that gives access to a port without a token. */
export interface Link {
  readonly url: string;
  /** `milliseconds` since the epoch */
  readonly expiresAt: number;
}

/** The part of a sandbox that decides which grants are for it. */
export type GrantedSandbox = Pick<SandboxRow, "id" | "accountId">;

/** Requests from outside to ports of sandboxes. Their callers may have no token, so most of these take no principal. */
export interface IngressUseCases {
  /** null: there is no listener */
  readonly settings: IngressSettings | null;
  /** The addresses of a sandbox's ports, with `{port}` for the port; null when there is no listener. */
  patternOf(id: SandboxId): string | null;
  /**
   * Makes a link to a port of a sandbox.
   * @throws ApiError `not_found`; `forbidden` when there is no listener; `validation_error`
   */
  link(principal: Principal, id: SandboxId, request: LinkRequest): Promise<Changed<Link>>;
  /** The sandbox of any account that a host names; null when there is none. */
  find(sandbox: NamedSandbox): SandboxRow | null;
  /** Whether every caller may reach the port. */
  isPublic(sandbox: SandboxRow, port: number): boolean;
  /** The end of a link's grant to the port, in `milliseconds` since the epoch; null when it is not valid now. */
  grantEnd(grant: string, sandbox: GrantedSandbox, port: number): Promise<number | null>;
  /**
   * Connects to a port for a caller who may reach it. A paused sandbox with `auto_resume` is resumed first. Until disposal,
   * the sandbox is not idle.
   * @throws ApiError `conflict` for the sandbox's state, or with `port` in the details when nothing listens there;
   *   `too_many_requests`; the reason of `signal`
   */
  connect(sandbox: SandboxRow, port: number, signal: AbortSignal): Promise<PortConnection>;
}

export interface PortConnection extends Disposable {
  readonly connection: GuestConnection;
}

export function ingressUseCases(parts: ServiceParts): IngressUseCases {
  const { db, keys, clock } = parts;
  const settings = parts.limits.ingress;
  return {
    settings,
    patternOf: (id) => (settings === null ? null : portUrl(settings.address, id, "{port}")),
    async link(principal, id, request) {
      const sandbox = getSandbox(db, principal.accountId, id);
      if (sandbox === null) throw new ApiError("not_found", "no such sandbox", { uuid: id });
      if (settings === null) throw new ApiError("forbidden", "the operator has not set ingress.listen");
      const { port } = request;
      const details = () => ({ port });
      return await change(parts, principal, { noun: "sandbox", verb: "link", id, details }, async () => {
        const endSeconds = linkEnd(request, clock(), tokenEnd(parts, sandbox, principal.tokenId) ?? 0);
        const key = await keys.signing();
        const signed = Buffer.concat([idBytes(key.id), idBytes(principal.tokenId), Buffer.alloc(END_BYTES)]);
        signed.writeUIntBE(endSeconds, 2 * ID_BYTES, END_BYTES);
        const grant = Buffer.concat([signed, signature(signed, { key, id, port })]).toString("base64url");
        const url = `${portUrl(settings.address, id, port)}?${LINK_PARAMETER}=${grant}`;
        return { url, expiresAt: endSeconds * 1000 };
      });
    },
    find: (sandbox) =>
      "id" in sandbox ? findSandbox(db, sandbox.id) : sandboxNamed(db, sandbox.accountId, sandbox.name),
    isPublic: ({ publicPorts }, port) => settings?.allowsPublic === true && publicPorts.includes(port),
    async grantEnd(grant, sandbox, port) {
      const bytes = Buffer.from(grantExpression.test(grant) ? grant : "", "base64url");
      const [keyId, tokenId] = [idOf(bytes, 0), idOf(bytes, ID_BYTES)];
      if (bytes.byteLength !== GRANT_BYTES || keyId === null || tokenId === null) return null;
      const key = await keys.find(keyId);
      const signed = bytes.subarray(0, SIGNED_BYTES);
      if (key === null) return null;
      if (!timingSafeEqual(signature(signed, { key, id: sandbox.id, port }), bytes.subarray(SIGNED_BYTES))) return null;
      const end = Math.min(signed.readUIntBE(2 * ID_BYTES, END_BYTES) * 1000, tokenEnd(parts, sandbox, tokenId) ?? 0);
      return clock() < end ? end : null;
    },
    async connect({ id, accountId }, port, signal) {
      using stack = new DisposableStack();
      stack.use(parts.accounts.take(accountId, "visits"));
      const use = stack.use(await parts.sandboxes.use(accountId, id, signal));
      const instance = parts.instances.current(use.instance);
      if (instance === null) throw noMachineOf(parts.db, id);
      const connection = await instance.dial(port);
      stack.defer(() => connection.reset());
      const held = stack.move();
      return { connection, [Symbol.dispose]: () => held.dispose() };
    },
  };
}

/** @throws ApiError `validation_error` */
function linkEnd(
  { port, ttlSeconds = LINK_TTL_SECONDS_DEFAULT }: LinkRequest,
  now: number,
  tokenEndMs: number,
): number {
  if (!Number.isInteger(port) || port < 1 || port > PORT_MAX) {
    throw new ApiError("validation_error", `port must be an integer from 1 to ${PORT_MAX}`, { field: "port" });
  }
  if (!Number.isInteger(ttlSeconds) || ttlSeconds < 1 || ttlSeconds > LINK_TTL_SECONDS_MAX) {
    const message = `ttl must be an integer from 1 to ${LINK_TTL_SECONDS_MAX} seconds`;
    throw new ApiError("validation_error", message, { field: "ttl" });
  }
  return Math.floor(Math.min(now + ttlSeconds * 1000, tokenEndMs) / 1000);
}

/** The end of the token of a link, in `milliseconds` since the epoch; null when it was revoked, or is of another account. */
function tokenEnd({ db }: ServiceParts, { accountId }: GrantedSandbox, tokenId: string): number | null {
  const row = getTokenCached(db, tokenId);
  return row === null || row.revokedAt !== null || row.accountId !== accountId ? null : row.expiresAt;
}

interface Signed {
  readonly key: TokenKey;
  readonly id: SandboxId;
  readonly port: number;
}

function signature(signed: Uint8Array, { key, id, port }: Signed): Buffer {
  return createHmac("sha256", key.secret).update(`${GRANT_PREFIX}${id}:${port}:`).update(signed).digest();
}

function idBytes(id: string): Buffer {
  return Buffer.from(id.replaceAll("-", ""), "hex");
}

function idOf(bytes: Buffer, at: number): string | null {
  const hex = bytes.subarray(at, at + ID_BYTES).toString("hex");
  return parseUuid(hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5"));
}
