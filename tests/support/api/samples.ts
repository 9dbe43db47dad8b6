export const UNKNOWN_UUID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";
const SHA256 = "0".repeat(64);

/** Every route of the interface with a valid request, from which a test makes invalid ones. */
export interface Sample {
  readonly method: string;
  readonly path: string;
  /** null: any token is valid */
  readonly scope: string | null;
  readonly json?: unknown;
  readonly body?: string;
  /** its answer lasts until the client leaves: HEAD is requested instead */
  readonly isEndless?: true;
  /** path of the route, where `path` does not show it */
  readonly route?: string;
  /** the path names an object of an account */
  readonly object?: "image" | "doomed" | "operation" | "file" | "instance" | "sandbox" | "doomedSandbox";
}

export const SPAWN = { image: "tag:matrix", command: "true" };
/** It starts as long as the tests last, and requests that need its machine do not wait. */
export const OPEN = { image: "tag:matrix", auto_resume: false };

/** The routes that an instance and a sandbox have. */
const runningSamples = (prefix: string, object: "instance" | "sandbox"): readonly Sample[] => {
  const sample = (method: string, path: string, more: Partial<Sample> = {}): Sample => ({
    method,
    path: `${prefix}/{uuid}${path}`,
    scope: "instances:exec",
    object,
    ...more,
  });
  return [
    sample("GET", "/stats", { scope: "instances:read" }),
    sample("GET", "/ports/80"),
    sample("POST", "/processes", { json: { command: "true" } }),
    sample("GET", "/processes"),
    sample("GET", "/processes/1/attach"),
    sample("GET", "/processes/1"),
    sample("DELETE", "/processes/1"),
    sample("POST", "/processes/1/stdin", { json: { content: "x" } }),
    sample("POST", "/processes/1/stdin/stream", { body: "x" }),
    sample("PATCH", "/processes/1/pty", { json: { rows: 24, cols: 80 } }),
    ...["", "/stat", "/list", "/watch"].map((view) =>
      sample("GET", `/files${view}?path=/tmp`, { scope: "instances:read" }),
    ),
    sample("HEAD", "/files?path=/tmp", { scope: "instances:read" }),
    sample("PUT", "/files?path=/f", { body: "x" }),
    sample("DELETE", "/files?path=/f"),
    sample("PATCH", "/files/attributes", { json: { path: "/f", mode: "0600" } }),
    sample("POST", "/files/move", { json: { from: "/f", to: "/g" } }),
    sample("POST", "/files/directory", { json: { path: "/d" } }),
    sample("POST", "/files/join", { json: { from: ["/f"], to: "/g" } }),
  ];
};

const sandboxSamples: readonly Sample[] = [
  { method: "POST", path: "/v1/sandboxes", scope: "instances:spawn", json: OPEN },
  { method: "GET", path: "/v1/sandboxes", scope: "instances:read" },
  { method: "GET", path: "/v1/sandboxes/{uuid}", scope: "instances:read", object: "sandbox" },
  {
    ...{ method: "PATCH", path: "/v1/sandboxes/{uuid}", scope: "instances:spawn" },
    ...{ json: { metadata: { a: "b" } }, object: "sandbox" },
  },
  { method: "DELETE", path: "/v1/sandboxes/{uuid}", scope: "instances:spawn", object: "doomedSandbox" },
  { method: "POST", path: "/v1/sandboxes/{uuid}/pause", scope: "instances:spawn", object: "sandbox" },
  { method: "POST", path: "/v1/sandboxes/{uuid}/resume", scope: "instances:spawn", object: "sandbox" },
  { method: "POST", path: "/v1/sandboxes/{uuid}/rollback", scope: "instances:spawn", json: {}, object: "sandbox" },
  { method: "POST", path: "/v1/sandboxes/{uuid}/checkpoint", scope: "instances:exec", json: {}, object: "sandbox" },
  { method: "POST", path: "/v1/sandboxes/{uuid}/fork", scope: "instances:spawn", json: {}, object: "sandbox" },
  {
    ...{ method: "POST", path: "/v1/sandboxes/{uuid}/links", scope: "instances:exec" },
    ...{ json: { port: 80 }, object: "sandbox" },
  },
  { method: "GET", path: "/v1/sandboxes/{uuid}/states", scope: "instances:read", object: "sandbox" },
  { method: "GET", path: "/v1/sandboxes/{uuid}/metrics", scope: "instances:read", object: "sandbox" },
  { method: "GET", path: "/v1/sandboxes/{uuid}/events", scope: "operations:read", object: "sandbox" },
  ...runningSamples("/v1/sandboxes", "sandbox"),
];

/** @param own objects of the account by kind, once they exist */
export const samples = (own: Readonly<Record<string, string>>): readonly Sample[] => [
  { method: "GET", path: "/v1/images", scope: "images:read" },
  { method: "GET", path: "/v1/images/{uuid}", scope: "images:read", object: "image" },
  { method: "DELETE", path: "/v1/images/{uuid}", scope: "images:delete", object: "doomed" },
  { method: "GET", path: "/v1/images/{uuid}/lineage", scope: "images:read", object: "image" },
  { method: "GET", path: "/v1/images/{uuid}/deletion", scope: "images:read", object: "image" },
  { method: "GET", path: "/v1/images/{uuid}/save", scope: "images:read", object: "image" },
  { method: "GET", path: "/v1/images/{uuid}/children", scope: "images:read", object: "image" },
  { method: "GET", path: "/v1/images/{uuid}/diff", scope: "images:read", object: "image" },
  { method: "GET", path: "/v1/images/{uuid}/receipt", scope: "operations:read", object: "image" },
  { method: "GET", path: "/v1/receipts/key", scope: null },
  { method: "GET", path: "/v1/branches", scope: "images:read" },
  { method: "GET", path: "/v1/changes", scope: "images:read", isEndless: true },
  { method: "POST", path: "/v1/images/import", scope: "images:import", json: { registry: "registry.example.net/a:1" } },
  {
    method: "POST",
    path: "/v1/images/load",
    scope: "images:import",
    get json() {
      return { file: own["file"] ?? UNKNOWN_UUID };
    },
  },
  { method: "PATCH", path: "/v1/images/{uuid}/tag", scope: "images:tag", json: { tag: "t" }, object: "image" },
  { method: "DELETE", path: "/v1/images/{uuid}/tag", scope: "images:tag", object: "image" },
  { method: "POST", path: "/v1/files", scope: "files:write", body: "bytes" },
  { method: "HEAD", path: "/v1/files?uuid={uuid}", scope: "files:read", object: "file" },
  { method: "GET", path: "/v1/files?uuid={uuid}", scope: "files:read", object: "file" },
  { method: "GET", path: `/v1/files?sha256=${SHA256}`, scope: "files:read" },
  { method: "POST", path: "/v1/instances", scope: "instances:spawn", json: SPAWN },
  {
    ...{ method: "PATCH", path: "/v1/instances/{uuid}", scope: "instances:exec" },
    ...{ json: { timeout: 60 }, object: "instance" },
  },
  { method: "POST", path: "/v1/instances/{uuid}/checkpoint", scope: "instances:exec", json: {}, object: "instance" },
  { method: "POST", path: "/v1/instances/{uuid}/fork", scope: "instances:spawn", json: {}, object: "instance" },
  ...runningSamples("/v1/instances", "instance"),
  ...sandboxSamples,
  { method: "GET", path: "/v1/operations", scope: "operations:read" },
  { method: "GET", path: "/v1/operations/{uuid}", scope: "operations:read", object: "operation" },
  { method: "GET", path: "/v1/operations/{uuid}/request", scope: "operations:read", object: "operation" },
  { method: "GET", path: "/v1/operations/{uuid}/log", scope: "operations:read", object: "operation" },
  { method: "GET", path: "/v1/operations/{uuid}/events", scope: "operations:read", object: "operation" },
  { method: "DELETE", path: "/v1/operations/{uuid}", scope: "operations:cancel", object: "operation" },
  { method: "GET", path: "/v1/operator/tokens", scope: "operator" },
  {
    ...{ method: "POST", path: "/v1/operator/tokens", scope: "operator" },
    ...{ json: { account: "carol", scopes: ["files:read"] } },
  },
  {
    method: "DELETE",
    path: `/v1/operator/tokens/${UNKNOWN_UUID}`,
    route: "/v1/operator/tokens/{uuid}",
    scope: "operator",
  },
  { method: "GET", path: "/v1/operator/load", scope: "operator" },
  { method: "GET", path: "/v1/operator/space", scope: "operator" },
  { method: "GET", path: "/v1/operator/collection", scope: "operator" },
  { method: "POST", path: "/v1/operator/collection", scope: "operator" },
  { method: "GET", path: "/v1/operator/health", scope: "operator" },
  { method: "GET", path: "/v1/inspect/?tag=matrix", scope: "images:read" },
  { method: "GET", path: "/v1/inspect?tag=matrix", scope: "images:read" },
  { method: "GET", path: "/v1/inspect/{uuid}/", scope: "images:read", object: "image" },
  { method: "GET", path: "/v1/inspect/{uuid}", scope: "images:read", object: "image" },
  { method: "HEAD", path: "/v1/inspect/{uuid}/?path=/", scope: "images:read", object: "image" },
  { method: "HEAD", path: "/v1/inspect/{uuid}?path=/", scope: "images:read", object: "image" },
  { method: "GET", path: "/v1/inspect/{uuid}/list?path=/", scope: "images:read", object: "image" },
  { method: "GET", path: "/v1/inspect/{uuid}/download?path=/f", scope: "images:read", object: "image" },
  { method: "GET", path: "/v1/inspect/{uuid}/archive?path=/", scope: "images:read", object: "image" },
  { method: "GET", path: "/v1/inspect/{uuid}/log?path=/", scope: "images:read", object: "image" },
  { method: "GET", path: "/v1/inspect/{uuid}/blame?path=/", scope: "images:read", object: "image" },
  { method: "GET", path: "/v1/inspect/{uuid}/find?glob=x", scope: "images:read", object: "image" },
  { method: "GET", path: "/v1/inspect/{uuid}/grep?pattern=x", scope: "images:read", object: "image" },
];
