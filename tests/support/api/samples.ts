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
  readonly object?: "image" | "doomed" | "operation" | "file" | "instance";
}

export const SPAWN = { image: "tag:matrix", command: "true" };
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
  { method: "GET", path: "/v1/instances/{uuid}/stats", scope: "instances:read", object: "instance" },
  { method: "GET", path: "/v1/instances/{uuid}/ports/80", scope: "instances:exec", object: "instance" },
  {
    ...{ method: "POST", path: "/v1/instances/{uuid}/processes", scope: "instances:exec" },
    ...{ json: { command: "true" }, object: "instance" },
  },
  { method: "GET", path: "/v1/instances/{uuid}/processes", scope: "instances:exec", object: "instance" },
  { method: "GET", path: "/v1/instances/{uuid}/processes/1/attach", scope: "instances:exec", object: "instance" },
  { method: "GET", path: "/v1/instances/{uuid}/processes/1", scope: "instances:exec", object: "instance" },
  { method: "DELETE", path: "/v1/instances/{uuid}/processes/1", scope: "instances:exec", object: "instance" },
  {
    ...{ method: "POST", path: "/v1/instances/{uuid}/processes/1/stdin", scope: "instances:exec" },
    ...{ json: { content: "x" }, object: "instance" },
  },
  {
    ...{ method: "POST", path: "/v1/instances/{uuid}/processes/1/stdin/stream", scope: "instances:exec" },
    ...{ body: "x", object: "instance" },
  },
  {
    ...{ method: "PATCH", path: "/v1/instances/{uuid}/processes/1/pty", scope: "instances:exec" },
    ...{ json: { rows: 24, cols: 80 }, object: "instance" },
  },
  ...["", "/stat", "/list", "/watch"].map((view) => {
    const path = `/v1/instances/{uuid}/files${view}?path=/tmp`;
    return { method: "GET", path, scope: "instances:read", object: "instance" } as const;
  }),
  { method: "HEAD", path: "/v1/instances/{uuid}/files?path=/tmp", scope: "instances:read", object: "instance" },
  {
    ...{ method: "PUT", path: "/v1/instances/{uuid}/files?path=/f", scope: "instances:exec" },
    ...{ body: "x", object: "instance" },
  },
  { method: "DELETE", path: "/v1/instances/{uuid}/files?path=/f", scope: "instances:exec", object: "instance" },
  {
    ...{ method: "PATCH", path: "/v1/instances/{uuid}/files/attributes", scope: "instances:exec" },
    ...{ json: { path: "/f", mode: "0600" }, object: "instance" },
  },
  {
    ...{ method: "POST", path: "/v1/instances/{uuid}/files/move", scope: "instances:exec" },
    ...{ json: { from: "/f", to: "/g" }, object: "instance" },
  },
  {
    ...{ method: "POST", path: "/v1/instances/{uuid}/files/directory", scope: "instances:exec" },
    ...{ json: { path: "/d" }, object: "instance" },
  },
  {
    ...{ method: "POST", path: "/v1/instances/{uuid}/files/join", scope: "instances:exec" },
    ...{ json: { from: ["/f"], to: "/g" }, object: "instance" },
  },
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
  { method: "GET", path: "/v1/inspect/{uuid}/find?glob=x", scope: "images:read", object: "image" },
  { method: "GET", path: "/v1/inspect/{uuid}/grep?pattern=x", scope: "images:read", object: "image" },
];
