import type { Scope } from "../../../src/domain/scope.ts";

const SHA256 = "0".repeat(64);

/** Objects of an account that paths and bodies name, as clients spell their ids. */
export interface OwnObjects {
  readonly sandbox: string;
  /** a template whose build waits */
  readonly template: string;
  readonly build: string;
  /** a template that is a snapshot */
  readonly snapshot: string;
  readonly image: string;
}

/** A route of the API with a valid request. */
export interface E2bSample {
  readonly method: string;
  /** path of the route, in the spelling of Elysia */
  readonly route: string;
  /** all scopes that the request needs */
  readonly scopes: readonly Scope[];
  /** of the route by an object's id; absent: the route with that id in place of its first parameter */
  readonly path?: (own: OwnObjects) => string;
  readonly json?: (own: OwnObjects) => object;
  /** kinds of objects that the request can name: one of another account is unknown; absent: none */
  readonly names?: readonly (keyof OwnObjects)[];
  /** the answer to an object that does not exist; absent: 404 */
  readonly unknown?: number;
}

type More = Omit<E2bSample, "method" | "route" | "scopes">;

const sample = (method: string, route: string, scopes: readonly Scope[], more: More = {}): E2bSample => ({
  ...{ method, route, scopes },
  ...more,
});

const SPAWN = ["instances:spawn"] as const;
const ENTER = ["instances:spawn", "instances:exec"] as const;
const READ = ["instances:read"] as const;
const IMAGES = ["images:read"] as const;
const TAG = ["images:tag"] as const;
const SANDBOX = { names: ["sandbox"] } as const;
const TEMPLATE = { names: ["template", "snapshot"] } as const;
const BUILD = { names: ["template", "build"] } as const;

const sandboxSamples: readonly E2bSample[] = [
  ...["/sandboxes", "/v2/sandboxes"].map((route) =>
    sample("POST", route, ENTER, {
      names: ["template", "snapshot", "image"],
      json: ({ template }) => ({ templateID: template }),
    }),
  ),
  sample("GET", "/sandboxes", READ),
  sample("GET", "/v2/sandboxes", READ),
  sample("GET", "/sandboxes/metrics", READ, { path: ({ sandbox }) => `/sandboxes/metrics?sandbox_ids=${sandbox}` }),
  sample("GET", "/sandboxes/:sandboxID", READ, SANDBOX),
  sample("DELETE", "/sandboxes/:sandboxID", SPAWN, SANDBOX),
  sample("POST", "/sandboxes/:sandboxID/timeout", SPAWN, { ...SANDBOX, json: () => ({ timeout: 60 }) }),
  sample("POST", "/sandboxes/:sandboxID/refreshes", SPAWN, SANDBOX),
  sample("POST", "/sandboxes/:sandboxID/connect", ENTER, SANDBOX),
  sample("POST", "/v2/sandboxes/:sandboxID/connect", ENTER, SANDBOX),
  sample("POST", "/sandboxes/:sandboxID/pause", SPAWN, SANDBOX),
  sample("POST", "/sandboxes/:sandboxID/resume", ENTER, SANDBOX),
  sample("POST", "/sandboxes/:sandboxID/fork", ENTER, SANDBOX),
  sample("POST", "/sandboxes/:sandboxID/snapshots", ["instances:exec", "images:tag"], SANDBOX),
  sample("PUT", "/sandboxes/:sandboxID/network", SPAWN, SANDBOX),
  sample("GET", "/sandboxes/:sandboxID/metrics", READ, SANDBOX),
  sample("GET", "/sandboxes/:sandboxID/logs", ["operations:read"], SANDBOX),
  sample("GET", "/v2/sandboxes/:sandboxID/logs", ["operations:read"], SANDBOX),
  sample("GET", "/snapshots", IMAGES, { path: ({ sandbox }) => `/snapshots?sandboxID=${sandbox}` }),
];

const buildPath =
  (prefix: string, rest = "") =>
  ({ template, build }: OwnObjects) =>
    `${prefix}/templates/${template}/builds/${build}${rest}`;

const templateSamples: readonly E2bSample[] = [
  sample("POST", "/v3/templates", ["instances:spawn", "images:tag"], { json: () => ({ name: "matrix-new" }) }),
  sample("GET", "/templates/:templateID/files/:hash", ["files:write"], {
    names: ["template", "snapshot"],
    path: ({ template }) => `/templates/${template}/files/${SHA256}`,
  }),
  sample("POST", "/v2/templates/:templateID/builds/:buildID", ["instances:spawn", "images:import", "images:tag"], {
    ...BUILD,
    path: buildPath("/v2"),
    json: () => ({ fromTemplate: "base" }),
  }),
  sample("GET", "/templates/:templateID/builds/:buildID/status", IMAGES, { ...BUILD, path: buildPath("", "/status") }),
  sample("GET", "/templates/:templateID/builds/:buildID/logs", IMAGES, { ...BUILD, path: buildPath("", "/logs") }),
  sample("GET", "/templates", IMAGES),
  sample("GET", "/v2/templates", IMAGES),
  sample("GET", "/templates/aliases/:alias", IMAGES, { names: ["snapshot", "image"] }),
  sample("GET", "/templates/:templateID", IMAGES, TEMPLATE),
  sample("PATCH", "/v2/templates/:templateID", TAG, { ...TEMPLATE, json: () => ({ public: false }) }),
  sample("DELETE", "/templates/:templateID", ["images:delete"], { names: ["template", "snapshot", "image"] }),
  sample("GET", "/templates/:templateID/tags", IMAGES, TEMPLATE),
  sample("POST", "/templates/tags", TAG, {
    ...TEMPLATE,
    json: ({ template }) => ({ target: template, tags: ["stolen"] }),
  }),
  sample("DELETE", "/templates/tags", TAG, {
    ...TEMPLATE,
    json: ({ template }) => ({ name: template, tags: ["default"] }),
  }),
  sample("POST", "/templates", TAG),
  sample("POST", "/v2/templates", TAG),
  // They refuse builds of old clients, whatever the template is.
  sample("POST", "/templates/:templateID", TAG, { ...TEMPLATE, unknown: 400 }),
  sample("POST", "/templates/:templateID/builds/:buildID", TAG, { ...BUILD, path: buildPath(""), unknown: 400 }),
];

/** Every route of the API, from which tests make requests that must be refused. */
export const E2B_SAMPLES: readonly E2bSample[] = [...sandboxSamples, ...templateSamples];
