import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createApp } from "../../../src/api/app.ts";
import { type E2bListener, openE2b } from "../../../src/api/e2b/open.ts";
import { STATUS_OF_ERROR } from "../../../src/api/errors.ts";
import type { ApiOptions } from "../../../src/api/options.ts";
import { describe, type Route } from "../../../src/api/route.ts";
import { listen } from "../../../src/api/server.ts";
import type { E2bConfig } from "../../../src/config/e2b.ts";
import { type Database, openDatabase } from "../../../src/db/database.ts";
import type { ImageOrigin } from "../../../src/db/images/history.ts";
import { getImage } from "../../../src/db/images/images.ts";
import { layerIds } from "../../../src/db/images/layers.ts";
import { startOperation } from "../../../src/db/operations.ts";
import { publishOperation } from "../../../src/db/publish.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import type { ErrorBody, ErrorCode } from "../../../src/domain/errors.ts";
import type { AccountId, ImageId, OperationId } from "../../../src/domain/ids.ts";
import { NO_DEFAULTS } from "../../../src/domain/image-defaults.ts";
import { silentLog } from "../../../src/log.ts";
import { createMetrics } from "../../../src/metrics.ts";
import type { ServiceLimits, ServiceParts } from "../../../src/service/parts.ts";
import { createService, type Service } from "../../../src/service/service.ts";
import { sessionUseCases } from "../../../src/service/sessions.ts";
import { issueToken, tokenVerifier } from "../../../src/service/tokens.ts";
import { EventLogs } from "../../../src/storage/events/event-logs.ts";
import { LayerStore } from "../../../src/storage/layers/layer-store.ts";
import { layerBytes } from "../../../src/storage/layers/layers.ts";
import { type DataLayout, dataLayout } from "../../../src/storage/layout.ts";
import { TokenKeys } from "../../../src/storage/token-keys.ts";
import { AccountChanges } from "../../../src/supervisor/account-changes.ts";
import { ForkedStarts } from "../../../src/supervisor/instance/forks/forked-starts.ts";
import { RunningInstances } from "../../../src/supervisor/instance/running-instances.ts";
import { InstanceForks } from "../../../src/supervisor/kinds/instance-forks.ts";
import { Requests } from "../../../src/supervisor/operations/requests.ts";
import { releaseWhenRead } from "../../../src/supervisor/reclaim.ts";
import { Lives } from "../../../src/supervisor/sandboxes/lives.ts";
import { Sandboxes } from "../../../src/supervisor/sandboxes/sandboxes.ts";
import { Builds } from "../../../src/supervisor/templates/builds.ts";
import { wallClock } from "../../../src/system/wall-clock.ts";
import { NO_MACHINES } from "../sandboxes/no-machines.ts";
import { NO_MEMORY } from "../sandboxes/no-memory.ts";
import { emptyApplianceParts } from "./appliance-parts.ts";
import { assertConforms, errorBodyOf } from "./conformance.ts";
import { type LayerFixture, makeLayer } from "./layers.ts";
import { HeldOperations } from "./operations.ts";
import { EXECUTABLE, startProgram } from "./program.ts";

const TOKEN_TTL_MS = 3_600_000;
const FILE_BYTES_MAX = 1_048_576;

export const LIMITS: ServiceLimits = {
  instanceTimeoutSecondsMax: 3600,
  sandboxTimeoutSecondsMax: 86_400,
  ingress: null,
  fileBytesMax: FILE_BYTES_MAX,
  diskReserveBytes: 1,
  vcpusDefault: 1,
  vcpusMax: 4,
  memoryBytesDefault: 268_435_456,
  memoryBytesMax: 1_073_741_824,
  diskBytesDefault: 1_073_741_824,
  diskBytesMax: 4_294_967_296,
  network: {
    allow: [
      { host: "*.example.org", ports: [80, 443] },
      { host: "10.0.7.0/24", ports: [5432] },
    ],
    record: true,
  },
  instanceCountMax: 10,
  importCountMax: 5,
  roomMsMax: 45_000,
};

/** A complete answer. */
export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly bytes: Uint8Array;
  readonly text: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into any answer.
  readonly json: any;
}

export interface CallOptions {
  /** null: no Authorization header; default of `Api.call`: all scopes of alice */
  readonly token?: string | null;
  readonly json?: unknown;
  readonly body?: string | Uint8Array<ArrayBuffer> | ReadableStream<Uint8Array>;
  readonly headers?: Record<string, string>;
}

/** Sends a request, by default without a token, and reads the answer to its end. */
export async function send(url: string, method: string, options: CallOptions = {}): Promise<Answer> {
  const headers = new Headers(options.headers);
  const { token = null } = options;
  if (token !== null && !headers.has("authorization")) headers.set("authorization", `Bearer ${token}`);
  if (options.json !== undefined && !headers.has("content-type")) headers.set("content-type", "application/json");
  const body = options.json === undefined ? options.body : JSON.stringify(options.json);
  const response = await fetch(url, { method, headers, redirect: "manual", ...(body === undefined ? {} : { body }) });
  const bytes = await response.bytes();
  const text = Buffer.from(bytes).toString("utf8");
  const isJson = response.headers.get("content-type")?.startsWith("application/json") === true && text !== "";
  const json = isJson ? JSON.parse(text) : null;
  return { status: response.status, headers: response.headers, bytes, text, json };
}

interface ApiParts {
  readonly url: string;
  /** of the process that serves */
  readonly pid: number;
  readonly service: Service;
  readonly e2b: E2bListener | null;
  readonly db: Database;
  readonly layout: DataLayout;
  readonly layers: LayerStore;
  readonly keys: TokenKeys;
  readonly operations: HeldOperations;
  readonly instances: RunningInstances;
  readonly lives: Lives;
  readonly eventLogs: EventLogs;
  readonly changes: AccountChanges;
  readonly routes: readonly Route[];
  /** all scopes of the account `alice` */
  readonly token: string;
  /** all scopes of the account `bob` */
  readonly foreignToken: string;
  /** added to the time that the services see */
  readonly clock: { offsetMs: number };
}

/** The interface on a real socket, over a real database and real storage; only the work itself is the test's. */
export class Api implements AsyncDisposable {
  readonly parts: ApiParts;
  readonly #stack: AsyncDisposableStack;

  private constructor(parts: ApiParts, stack: AsyncDisposableStack) {
    this.parts = parts;
    this.#stack = stack;
  }

  get url(): string {
    return this.parts.url;
  }

  get token(): string {
    return this.parts.token;
  }

  get foreignToken(): string {
    return this.parts.foreignToken;
  }

  get operations(): HeldOperations {
    return this.parts.operations;
  }

  static async start(
    overrides: Partial<ServiceParts & Pick<ApiOptions, "verifyToken" | "publicUrl" | "log" | "web">> & {
      /** settings of the listener for clients of E2B; absent: there is none */
      readonly e2b?: E2bConfig;
    } = {},
  ): Promise<Api> {
    await using stack = new AsyncDisposableStack();
    const directory = await mkdtemp(join(tmpdir(), "coppice-api-"));
    stack.defer(() => rm(directory, { recursive: true, force: true }));
    const layout = dataLayout(directory);
    await layout.ensure();
    const isProgram = EXECUTABLE !== undefined && Object.keys(overrides).every((name) => name === "limits");
    const db = stack.use(openDatabase(layout.database, "migrate", { sharesFile: isProgram }));
    const layers = stack.use(new LayerStore({ layout, chainOf: (topId) => layerIds(db, topId) }));
    stack.use(releaseWhenRead({ db, layers, log: silentLog }));
    const keys = await TokenKeys.open(layout.keys);
    const offset = { offsetMs: 0 };
    const clock = () => Date.now() + offset.offsetMs;
    const changes = stack.use(new AccountChanges());
    const operations = new HeldOperations(db, clock, changes);
    const instances = new RunningInstances();
    const { accounts = new Accounts() } = overrides;
    // Rings of the smallest size: a test soon fills one.
    const eventLogs = new EventLogs(layout, accounts, wallClock(), 1_048_576);
    const lives = stack.use(new Lives({ db, instances, eventLogs, clock }));
    const appliance = emptyApplianceParts(directory, clock);
    const { scheduler } = appliance;
    const work = {
      db,
      clock,
      log: silentLog,
      accounts,
      operations,
      instances,
      scheduler,
      lives,
      layers,
      changes,
    };
    const starts = new ForkedStarts();
    stack.use(starts.follow(operations.changes));
    const forking = { ...work, layout, starts, diskReserveBytes: 0, machines: NO_MACHINES };
    const sandboxes = stack.use(new Sandboxes({ ...forking, keepStates: 20, memory: NO_MEMORY }));
    const forks = new InstanceForks({ ...forking, requests: new Requests(db, layout) });
    const builds = stack.use(new Builds({ ...work, layout, eventLogs }));
    const metrics = createMetrics();
    const {
      verifyToken = tokenVerifier(db, keys, clock),
      publicUrl = null,
      log = silentLog,
      e2b = null,
      ...rest
    } = overrides;
    const sessions = sessionUseCases({ db, log, keys, verifyToken, clock });
    const { web = { sessions, isTls: false }, ...parts } = rest;
    const limits = parts.limits ?? LIMITS;
    const service = createService({
      accounts,
      log,
      db,
      layout,
      layers,
      operations,
      instances,
      sandboxes,
      builds,
      forks,
      limits,
      defaultRegistry: null,
      clock,
      metrics,
      operationLog: { lines: () => [] },
      eventLogs,
      keys,
      appliance,
      changes,
      version: "0.0.0-test",
      ...parts,
    });
    const app = createApp({ service, accounts, verifyToken, publicUrl, metrics, log, web });
    const served = stack.use(
      isProgram ? await startProgram(directory, db, limits) : listen({ app, host: "127.0.0.1", port: 0 }),
    );
    const outside = { service, accounts, verifyToken, metrics, log, clock, directory: layout.runtime };
    const e2bListener = stack.use(await openE2b(e2b, outside));
    const all = { scopes: ["*"], ttlMs: TOKEN_TTL_MS, now: Date.now() };
    const { token } = await issueToken(db, keys, { account: "alice", ...all });
    const { token: foreignToken } = await issueToken(db, keys, { account: "bob", ...all });
    const fields = {
      url: served.url,
      pid: "pid" in served ? served.pid : process.pid,
      service,
      e2b: e2bListener,
      db,
      layout,
      layers,
      keys,
      operations,
      instances,
      lives,
      eventLogs,
      changes,
      token,
      foreignToken,
      clock: offset,
    };
    return new Api({ ...fields, routes: describe(app.routes) }, stack.move());
  }

  /** Sends a request and checks the answer against the route table. */
  async call(method: string, path: string, options: CallOptions = {}): Promise<Answer> {
    const { url, token, routes } = this.parts;
    const answer = await send(`${url}${path}`, method, { token, ...options });
    assertConforms(routes, method, path, answer);
    return answer;
  }

  async issue(account: string, scopes: readonly string[], ttlMs = TOKEN_TTL_MS): Promise<string> {
    return (await issueToken(this.parts.db, this.parts.keys, { account, scopes, ttlMs, now: Date.now() })).token;
  }

  /** Publishes an image as an import does; the later fixtures are layers on top of the first. */
  async addImage(
    layers: readonly (readonly LayerFixture[])[],
    options: { readonly account?: string; readonly tag?: string; readonly at?: number } = {},
  ): Promise<ImageId> {
    const now = options.at ?? Date.now();
    const accountId = (options.account ?? "alice") as AccountId;
    let parentId: Awaited<ReturnType<typeof makeLayer>>["id"] | null = null;
    let imageId = "" as ImageId;
    for (const [index, fixtures] of layers.entries()) {
      const layer: Awaited<ReturnType<typeof makeLayer>> = await makeLayer(this.parts.layout, fixtures);
      const operation = this.operations.insert(accountId, "image_import");
      startOperation(this.parts.db, operation.id as OperationId, now);
      imageId = Bun.randomUUIDv7() as ImageId;
      const isTop = index === layers.length - 1;
      publishOperation(this.parts.db, {
        operationId: operation.id,
        result: { image: imageId, digest: "sha256:00", size_bytes: layer.diskBytes },
        now,
        layer: {
          id: layer.id,
          parentId,
          format: "ext4",
          sizeBytes: layer.diskBytes,
          diskBytes: layer.diskBytes,
          entryCount: layer.entryCount,
        },
        image: { id: imageId, parentId: null, layerId: layer.id, sizeBytes: layer.diskBytes, defaults: NO_DEFAULTS },
        ...(isTop && options.tag !== undefined ? { tag: options.tag } : {}),
      });
      parentId = layer.id;
    }
    return imageId;
  }

  /** Publishes the changes of a run on `parent` as an image. */
  async addRun(
    parent: string,
    fixtures: readonly LayerFixture[],
    options: { readonly account?: string; readonly origin?: ImageOrigin; readonly at?: number } = {},
  ): Promise<ImageId> {
    const { db, layout } = this.parts;
    const now = options.at ?? Date.now();
    const accountId = (options.account ?? "alice") as AccountId;
    const parentId = parent as ImageId;
    const below = getImage(db, accountId, parentId);
    if (below === null) throw new Error("no such parent");
    const { id, diskBytes, entryCount } = await makeLayer(layout, fixtures);
    const operation = this.operations.insert(accountId, "instance", null, false, parentId);
    startOperation(db, operation.id, now);
    const imageId = Bun.randomUUIDv7() as ImageId;
    const sizeBytes = await layerBytes(layout, id);
    publishOperation(db, {
      operationId: operation.id,
      result: { exit_code: 0 },
      now,
      layer: { id, parentId: below.layerId, format: "ext4", sizeBytes, diskBytes, entryCount },
      image: {
        id: imageId,
        parentId,
        layerId: id,
        sizeBytes,
        defaults: NO_DEFAULTS,
        origin: options.origin ?? { command: ["true"] },
      },
    });
    return imageId;
  }

  /** Names of the remains of unfinished work. */
  async garbage(): Promise<string[]> {
    const names = await readdir(this.parts.layout.tmp);
    // The program formats a scratch disk there in the background, without a request.
    return names.filter((name) => !name.startsWith("scratch-"));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stack.disposeAsync();
  }
}

/** The error object of an answer, which must be of this kind. */
export function errorOf(answer: Answer, code: ErrorCode): ErrorBody {
  const error = errorBodyOf(answer);
  // Every surface has the same status for these.
  if (answer.status !== STATUS_OF_ERROR[code] || error?.error !== code) {
    throw new Error(`expected ${code}, got ${answer.status} ${answer.text.slice(0, 500)}`);
  }
  return error;
}
