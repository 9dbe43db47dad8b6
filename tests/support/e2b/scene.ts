import { wireId } from "../../../src/api/e2b/ids.ts";
import type { E2bConfig } from "../../../src/config/e2b.ts";
import { findSandbox } from "../../../src/db/sandboxes/rows.ts";
import { parseUuidOrDigits, type SandboxId } from "../../../src/domain/ids.ts";
import { keyOfToken } from "../../../src/service/e2b/keys.ts";
import { type Answer, Api, type CallOptions, send } from "../api/api.ts";
import { openSandbox, runSandbox, type SandboxFixture } from "../api/sandboxes.ts";
import { until } from "../waiting.ts";

const SETTINGS: E2bConfig = {
  ...{ host: "127.0.0.1", port: 0, tls: null, isBehindProxy: false },
  ...{ domain: null, defaultUser: "user", hasPublicPorts: true },
};

export interface E2bCallOptions extends Omit<CallOptions, "token"> {
  /** null: none; default: all scopes of alice */
  readonly key?: string | null;
}

type Overrides = Omit<NonNullable<Parameters<typeof Api.start>[0]>, "e2b">;

/**
 * The listener for clients of E2B on a real socket. Each sandbox of alice gets a machine when it waits for one: a real agent,
 * whose processes run on this host. An image with the tag `base` exists.
 */
export class E2bScene implements AsyncDisposable {
  readonly api: Api;
  readonly key: string;
  readonly foreignKey: string;
  /** the present machines */
  readonly machines = new Map<SandboxId, SandboxFixture>();
  /** the latest errors of machines, of which there should be none */
  readonly errors: unknown[] = [];
  /** true: the host has no room for further machines */
  isFull = false;
  readonly #working = new Set<Promise<void>>();
  readonly #stack: AsyncDisposableStack;

  private constructor(api: Api, stack: AsyncDisposableStack) {
    this.api = api;
    this.#stack = stack;
    this.key = keyOfToken(api.token);
    this.foreignKey = keyOfToken(api.foreignToken);
    stack.use(api.parts.lives.journal.listen(({ row }) => this.#onState(row.id, row.state)));
  }

  static async start(settings: Partial<E2bConfig> = {}, overrides: Overrides = {}): Promise<E2bScene> {
    await using stack = new AsyncDisposableStack();
    const api = stack.use(await Api.start({ ...overrides, e2b: { ...SETTINGS, ...settings } }));
    await api.addImage([[{ path: "etc", type: "d" }]], { tag: "base" });
    return new E2bScene(api, stack.move());
  }

  get port(): number {
    const port = this.api.parts.e2b?.port;
    if (port === undefined) throw new Error("there is no listener");
    return port;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  /** Sends a request to the API, with the key of alice. */
  async call(
    method: string,
    path: string,
    { key = this.key, headers, ...options }: E2bCallOptions = {},
  ): Promise<Answer> {
    const all = { ...(key === null ? {} : { "x-api-key": key }), ...headers };
    return await send(`${this.url}${path}`, method, { ...options, headers: all });
  }

  /** Creates a sandbox as clients do, on the template `base`. */
  async create(body: Readonly<Record<string, unknown>> = {}): Promise<E2bSandbox> {
    const { status, json, text } = await this.call("POST", "/v2/sandboxes", { json: { templateID: "base", ...body } });
    if (status !== 201) throw new Error(`${status} ${text}`);
    return this.sandbox(json.sandboxID, json.envdAccessToken);
  }

  /** Opens a sandbox of alice by the API of the service, which clients see, too. */
  async open(fields: Readonly<Record<string, unknown>> = {}): Promise<E2bSandbox> {
    const id = (await openSandbox(this.api, fields)) as SandboxId;
    await until("the sandbox runs", () => this.stateOf(id) === "running");
    const { e2b } = this.api.parts.service;
    const recorded = e2b.find(id);
    if (recorded === null) throw new Error("the sandbox is gone");
    return this.sandbox(wireId(id), await e2b.credentials.token("envd", recorded.record));
  }

  /** A sandbox of any account, which may not exist. */
  sandbox(id: string, token: string): E2bSandbox {
    return new E2bSandbox(this, id, token);
  }

  /** Gives a machine to a sandbox for which there was no room. */
  room(id: SandboxId): void {
    this.#onState(id, this.stateOf(id) ?? "");
  }

  stateOf(id: SandboxId): string | undefined {
    return findSandbox(this.api.parts.db, id)?.state;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const machine of [...this.machines.values()]) await machine[Symbol.asyncDispose]();
    await this.#stack.disposeAsync();
  }

  #onState(id: SandboxId, state: string): void {
    if (this.isFull || (state !== "starting" && state !== "resuming")) return;
    const work = this.#live(id).catch((error: unknown) => void this.errors.push(error));
    this.#working.add(work);
    void work.then(() => this.#working.delete(work));
  }

  /** One life of a sandbox, with a machine of its own. */
  async #live(id: SandboxId): Promise<void> {
    await until("it has an operation", () => findSandbox(this.api.parts.db, id)?.operationId !== null);
    const machine = await runSandbox(this.api, id).catch((error: unknown) => {
      // A request has ended the sandbox meanwhile.
      if (this.stateOf(id) === "ended") return null;
      throw error;
    });
    if (machine === null) return;
    this.machines.set(id, machine);
    void machine.finish().then(
      () => this.machines.delete(id),
      (error: unknown) => this.errors.push(error),
    );
  }
}

/** A sandbox as a client has it. */
export class E2bSandbox {
  readonly id: string;
  readonly uuid: SandboxId;
  readonly token: string;
  readonly #scene: E2bScene;

  constructor(scene: E2bScene, id: string, token: string) {
    this.#scene = scene;
    this.id = id;
    this.uuid = parseUuidOrDigits<SandboxId>(id) ?? (id as SandboxId);
    this.token = token;
  }

  /** Its present machine. */
  get machine(): SandboxFixture {
    const machine = this.#scene.machines.get(this.uuid);
    if (machine === undefined) throw new Error("it has no machine");
    return machine;
  }

  get state(): string | undefined {
    return this.#scene.stateOf(this.uuid);
  }

  /** The fields of its requests, as a user of the guest; null: the default user. */
  headers(user: string | null = null): Record<string, string> {
    return {
      "e2b-sandbox-id": this.id,
      "e2b-sandbox-port": "49983",
      "x-access-token": this.token,
      ...(user === null ? {} : { authorization: `Basic ${Buffer.from(`${user}:`).toString("base64")}` }),
    };
  }

  /** Sends a request to its agent. */
  async envd(method: string, path: string, { headers, ...options }: Omit<E2bCallOptions, "key"> = {}): Promise<Answer> {
    const all = { ...this.headers(), ...headers };
    return await this.#scene.call(method, path, { ...options, key: null, headers: all });
  }

  /** Makes a unary call, as a user of the guest. */
  async rpc(method: string, message: unknown, user: string | null = null): Promise<Answer> {
    const headers = { ...this.headers(user), "connect-protocol-version": "1" };
    return await this.#scene.call("POST", `/${method}`, { key: null, headers, json: message });
  }
}
