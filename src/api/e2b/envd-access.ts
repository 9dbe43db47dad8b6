import { ApiError } from "../../domain/errors.ts";
import { parseUuidOrDigits, type SandboxId } from "../../domain/ids.ts";
import type { Scope } from "../../domain/scope.ts";
import type { Recorded } from "../../service/e2b/records.ts";
import type { Principal } from "../../service/parts.ts";
import type { Caller } from "../auth.ts";
import { E2bError, e2bGone } from "./errors.ts";
import type { E2bParts } from "./options.ts";
import type { SignedLinks } from "./signatures.ts";

/** The sandbox of a request to its agent, which may act on its processes and files. */
export interface Envd extends Recorded {
  /** of the sandbox's account, with the scopes that the agent's part of the surface needs */
  readonly principal: Principal;
  readonly target: { readonly sandbox: SandboxId };
}

/** A request to an agent. */
export interface EnvdRequest {
  readonly path: string;
  /** the sandbox that the request names, as the client spelled it; empty: none */
  readonly sandbox: string;
}

const GRANTS: ReadonlySet<string> = new Set<Scope>(["instances:exec", "instances:read", "images:read"]);
const UNPROVEN = "unauthorized access, please provide a valid access token or method signing if supported";

const proven = new WeakMap<Request, Envd>();
/** Requests whose sandboxes must run: those that only look do not need that. */
const acting = new WeakSet<Request>();

/** The sandbox of a request that was proven. */
export function envdOf(request: Request): Envd {
  const envd = proven.get(request);
  if (envd === undefined) throw new Error("a route of the agent was reached without its sandbox");
  return envd;
}

/** Proves requests to agents of sandboxes: by the token of the sandbox, or by a signature that was made with it. */
export class EnvdAccess {
  readonly #parts: Pick<E2bParts, "service" | "requests">;
  readonly #links: SignedLinks;

  constructor(parts: Pick<E2bParts, "service" | "requests">, links: SignedLinks) {
    this.#parts = parts;
    this.#links = links;
  }

  /**
   * Proves a request. Null: it names no sandbox, and needs none.
   * @throws E2bError 400, 401; 502 for a sandbox that runs no more
   */
  async prove(request: Request, { path, sandbox }: EnvdRequest): Promise<Caller | null> {
    const { e2b } = this.#parts.service;
    if (sandbox === "") return await this.#proveUnnamed(request, path);
    const id = parseUuidOrDigits<SandboxId>(sandbox);
    const recorded = id === null ? null : e2b.find(id);
    if (recorded === null) throw e2bGone(sandbox);
    const token = request.headers.get("x-access-token");
    if (token === null && path === "/files") await this.#links.check(request, recorded.record);
    else if (!(await e2b.credentials.isToken(token ?? "", "envd", recorded.record))) {
      if (path !== "/health") throw new E2bError(401, UNPROVEN);
      // A stranger may look, but neither resumes the sandbox nor keeps it from being idle.
      if (recorded.sandbox.state !== "running") throw e2bGone(sandbox);
      return this.#callerOf(request, recorded, { acts: false });
    }
    return this.#callerOf(request, recorded, { acts: true });
  }

  /** Old clients send only the token of a sandbox to which they have connected. */
  async #proveUnnamed(request: Request, path: string): Promise<Caller | null> {
    const token = request.headers.get("x-access-token");
    if (token === null && path === "/health") return null;
    if (token === null && path !== "/files") {
      throw new E2bError(400, "the request names no sandbox: send its id in E2b-Sandbox-Id");
    }
    const id = token === null ? await this.#links.find(request) : await this.#links.findByToken(request, token);
    const recorded = id === null ? null : this.#parts.service.e2b.find(id);
    // Clients know by this answer that a sandbox which they had is no more.
    if (recorded === null) throw e2bGone(id ?? "");
    return this.#callerOf(request, recorded, { acts: true });
  }

  /**
   * Waits until the sandbox of a proven request runs, which may take as long as a resume. It is not idle until the answer.
   * @throws E2bError 502 when it does not run; as `AccessUseCases.use` does
   */
  async ready(request: Request): Promise<void> {
    const { service, requests } = this.#parts;
    if (!acting.has(request)) return;
    const envd = envdOf(request);
    const { id } = envd.sandbox;
    try {
      requests.hold(request, await service.e2b.use(envd, request.signal));
      // A resume has changed it.
      proven.set(request, { ...envd, ...service.e2b.find(id) });
    } catch (error) {
      const isGone = error instanceof ApiError && (error.code === "conflict" || error.code === "not_found");
      throw isGone ? e2bGone(id) : error;
    }
  }

  #callerOf(request: Request, recorded: Recorded, { acts }: { readonly acts: boolean }): Caller {
    const { service } = this.#parts;
    const { id, accountId } = recorded.sandbox;
    const principal = { accountId, grants: GRANTS, tokenId: "" };
    if (acts) acting.add(request);
    proven.set(request, { ...recorded, principal, target: { sandbox: id } });
    return { principal, isAllowed: async () => service.e2b.find(id) !== null };
  }
}
