import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { changeState, insertSandbox, type SandboxRow, updateSandbox } from "../../../src/db/sandboxes/rows.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import type { AccountId, OperationId, SandboxId } from "../../../src/domain/ids.ts";
import { sandboxConflict } from "../../../src/domain/sandbox.ts";
import { Gateway } from "../../../src/ingress/gateway.ts";
import { silentLog } from "../../../src/log.ts";
import { ingressUseCases } from "../../../src/service/ingress.ts";
import type { IngressSettings, ServiceParts } from "../../../src/service/parts.ts";
import { issueToken, tokenVerifier } from "../../../src/service/tokens.ts";
import { TokenKeys } from "../../../src/storage/token-keys.ts";
import { alice, importImage, newId, type TestDatabase, testDatabase } from "../database.ts";
import { IngressScene } from "./scene.ts";

const HOUR_MS = 3_600_000;

export interface GatewayOptions {
  readonly domain?: string;
  readonly allowsPublic?: boolean;
  readonly isBehindProxy?: boolean;
}

/**
 * The gateway over a real database and real keys. Sandboxes have rows and no machines: the guest at a port is the one that
 * `scene` has at `NAME PORT`.
 */
export class GatewayScene implements AsyncDisposable {
  readonly keys: TokenKeys;
  readonly parts: ServiceParts;
  /** added to the time, in `milliseconds` */
  offsetMs = 0;
  /** uses of sandboxes that have not ended */
  usesCount = 0;
  scene: IngressScene;
  readonly #database: TestDatabase;
  readonly #directory: string;
  /** names of the sandboxes of instances */
  readonly #names = new Map<OperationId, string>();

  private constructor(directory: string, keys: TokenKeys, options: GatewayOptions) {
    this.#directory = directory;
    this.keys = keys;
    this.#database = testDatabase();
    this.parts = {
      db: this.#database.db,
      keys,
      clock: () => this.now,
      accounts: new Accounts({ visits: { max: 20 } }),
      log: silentLog,
      sandboxes: { use: async (_: AccountId, id: SandboxId) => this.#use(id) },
      instances: { current: (id: OperationId) => ({ dial: (port: number) => this.#dial(id, port) }) },
    } as unknown as ServiceParts;
    this.scene = this.#open(options);
  }

  static async start(options: GatewayOptions = {}): Promise<GatewayScene> {
    const directory = await mkdtemp(join(tmpdir(), "coppice-ingress-"));
    return new GatewayScene(directory, await TokenKeys.open(directory), options);
  }

  /** `milliseconds` since the epoch */
  get now(): number {
    return Date.now() + this.offsetMs;
  }

  /** Closes all connections, and listens with other settings. */
  async reopen(options: GatewayOptions): Promise<void> {
    await this.scene[Symbol.asyncDispose]();
    this.scene = this.#open(options);
  }

  /** Adds a sandbox that runs. */
  add(name: string, accountId: AccountId = alice): SandboxRow {
    const { db } = this.parts;
    const imageId = importImage(db, { accountId });
    const row = insertSandbox(
      db,
      {
        ...{ id: newId<SandboxId>(), accountId, name, imageId, operationId: null, timeoutMs: HOUR_MS, endsAt: null },
        ...{
          idleTimeoutMs: null,
          onTimeout: "pause",
          autoResume: false,
          boot: null,
          discardsPauses: false,
          env: {},
          cwd: null,
          user: null,
          network: null,
        },
        ...{ resources: { vcpus: 1, memoryBytes: 1, diskBytes: 1 }, metadata: {}, publicPorts: [] },
      },
      this.now,
    );
    changeState(db, row.id, "start", { now: this.now });
    return row;
  }

  /** A token for an hour. */
  async token(account = "alice", scopes = ["instances:exec"]): Promise<string> {
    const request = { account, scopes, ttlMs: HOUR_MS, now: this.now };
    return (await issueToken(this.parts.db, this.keys, request)).token;
  }

  /** A link to port 8080. */
  async link(id: SandboxId, secret: string, ttlSeconds?: number) {
    const principal = await this.#verifyToken(secret);
    if (principal === null) throw new Error("the token is not valid");
    const { url, expiresAt } = await this.#ingress({}).link(principal, id, { port: 8080, ttlSeconds });
    const parsed = new URL(url);
    parsed.port = String(this.scene.listener.port);
    return { url: parsed, grant: parsed.searchParams.get("coppice-link") ?? "", expiresAt };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.scene[Symbol.asyncDispose]();
    this.#database[Symbol.dispose]();
    await rm(this.#directory, { recursive: true, force: true });
  }

  readonly #verifyToken = (token: string) => tokenVerifier(this.parts.db, this.keys, () => this.now)(token);
  #domain = "box.test";

  #ingress({ allowsPublic = true }: GatewayOptions) {
    const settings: IngressSettings = { address: { scheme: "http", domain: this.#domain, port: 8644 }, allowsPublic };
    return ingressUseCases({ ...this.parts, limits: { ...this.parts.limits, ingress: settings } });
  }

  #open({ domain = this.#domain, isBehindProxy = false, ...options }: GatewayOptions): IngressScene {
    this.#domain = domain;
    const ingress = this.#ingress(options);
    const upstream = new Gateway({ ingress, domain, verifyToken: this.#verifyToken });
    return new IngressScene({ upstream, isBehindProxy });
  }

  #use(id: SandboxId) {
    const { db } = this.parts;
    const { state, autoResume, name } = updateSandbox(db, id, {});
    if (state === "paused" && autoResume) changeState(db, id, "resume", { now: this.now });
    else if (state !== "running") throw sandboxConflict(state);
    this.usesCount++;
    const instance = newId<OperationId>();
    this.#names.set(instance, name);
    return { instance, [Symbol.dispose]: () => void this.usesCount-- };
  }

  async #dial(id: OperationId, port: number) {
    return (await this.scene.connect(`${this.#names.get(id)} ${port}`)).connection;
  }
}
