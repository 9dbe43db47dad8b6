/** A floor of the source: folders and files below src, and their content. */
export interface Floor {
  readonly names: readonly string[];
  readonly content: string;
}

/** The floors, from the top. A folder imports only from its own floor and those below it. */
export const FLOORS: readonly Floor[] = [
  { names: ["main.ts"], content: "the entry point" },
  { names: ["tools"], content: "the programs that build the executable and a release; they are not part of it" },
  { names: ["cli"], content: "one file per command, or a folder for a command with several files" },
  { names: ["daemon.ts"], content: "the assembly of the appliance" },
  { names: ["web"], content: "the page: views, their parts, and the data that they follow; built for browsers" },
  {
    names: ["client"],
    content:
      "the typed client of the API, for the command line, the page, and as a package; it imports the rules of the domain, and only types of the server",
  },
  {
    names: ["api"],
    content:
      "HTTP: routes, schemas, scopes, errors; `v1` is the specified API, `contree`, `e2b`, `mcp` and `dav` speak to other clients, " +
      "`web` serves the page and its sessions, `operator` health and control, `openapi` the description",
  },
  {
    names: ["ingress"],
    content:
      "HTTP from outside to ports of sandboxes: a listener of its own, which passes each request to the port that its Host names",
  },
  {
    names: ["service"],
    content:
      "the use cases, one file per noun: functions of a principal and a request; they check ownership, and make every change by the function `change`",
  },
  {
    names: ["supervisor"],
    content:
      "long-running work: operations and their kinds, the scheduler, instances, imports, merging, machines, the janitor",
  },
  { names: ["config"], content: "the settings" },
  {
    names: ["db", "storage"],
    content: "database rows; files: layers, indexes, merged trees, archives, event logs, uploads",
  },
  { names: ["oci"], content: "skopeo, umoci and mkfs, with their inputs and outputs" },
  {
    names: ["network"],
    content: "rules, the policy of registries, and the process that connects for sandboxes and imports",
  },
  {
    names: ["vm"],
    content: "machines: QEMU, Cloud Hypervisor, the agent's protocol, the jail, templates, the pool",
  },
  { names: ["metrics.ts"], content: "the metrics of the appliance" },
  { names: ["cgroup", "system"], content: "control groups; processes, sockets and kernel interfaces" },
  { names: ["domain"], content: "the nouns and their rules, without input and output" },
  { names: ["log.ts", "version.ts"], content: "the log and the version, which every floor may use" },
];

/**
 * Allowed imports, by the folder or file below src; the longest name that contains a file applies. Every file may import from
 * its own top folder, and log.ts as a type.
 */
export const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  "main.ts": ["cli", "config", "log", "daemon"],
  "daemon.ts": ["*"],
  "version.ts": ["package.json"],
  "log.ts": [],
  "metrics.ts": ["domain", "system/metric-registry.ts"],
  // The tools that build the product, which does not contain them.
  tools: ["api/web/bundle.ts", "supervisor/health/programs.ts", "vm/assets.ts", "version.ts", "system/exec.ts"],
  cli: ["client", "domain", "config", "log.ts", "version.ts"],
  // The rules are pure: errors in them are reported before anything is sent.
  "cli/running/network.ts": ["client", "domain", "network/rules.ts"],
  // The files of a project are those that git lists.
  "cli/sandbox/project/copy.ts": ["client", "domain", "system/exec.ts"],
  "cli/io.ts": ["config", "system/terminal.ts"],
  "cli/command-line.ts": ["storage/layout.ts", "config", "version.ts"],
  "cli/serve.ts": [
    ...["system/notify.ts", "system/systemd.ts", "service/operator/desk.ts", "daemon.ts"],
    ...["config", "log.ts", "version.ts"],
  ],
  "cli/version.ts": ["vm/assets.ts", "version.ts"],
  // These work on the data directory or the host itself, where no appliance need run.
  "cli/token.ts": [
    ...["service/e2b/keys.ts", "service/operator/tokens.ts", "service/parts.ts", "db/database.ts"],
    ...["storage/layout.ts", "storage/token-keys.ts", "domain", "config", "log.ts"],
  ],
  "cli/receipts": ["client", "domain", "storage/receipts/verification.ts"],
  "cli/backup": ["db", "domain", "storage", "system", "version.ts"],
  "cli/gc": ["api/operator/control.ts", "config", "db", "domain", "log.ts", "storage", "supervisor/reclaim.ts"],
  // The machines of this host, with or without a daemon.
  "cli/host": [
    ...["api/operator/control.ts", "cgroup", "domain", "storage/layout.ts", "system/exec.ts"],
    ...["supervisor/survivors/instance-record.ts", "supervisor/survivors/record-file.ts"],
    ...["supervisor/machines/cgroups.ts", "vm/jail/jailed-vmm.ts"],
  ],
  "cli/stop": [
    ...["api/operator/control.ts", "config", "domain", "storage/layout.ts", "system/systemd.ts"],
    ...["vm/jail/processes.ts"],
  ],
  "cli/doctor": ["cgroup", "config", "domain", "log.ts", "network", "storage", "supervisor", "system", "vm"],
  "cli/install": [
    ...["api/operator/control.ts", "config", "domain", "storage/layout.ts", "system/systemd.ts", "version.ts"],
    ...["systemd/coppice.service", "systemd/coppice-machines.service"],
    ...["systemd/coppice.sysusers.conf", "systemd/coppice.tmpfiles.conf"],
  ],
  // It writes a file to upload.
  "cli/bench": ["client", "domain", "system"],
  // The page talks to the appliance through the client; the rules of the domain are pure.
  web: ["client", "domain"],
  // A part of pages, with the rules of the domain and only types of the server.
  client: ["api/app.ts", "domain"],
  // A surface defines the wire form of a use case; it does not see the layers below the use cases.
  api: ["domain", "service", "metrics.ts"],
  "api/access.ts": ["domain", "system/turns.ts"],
  "api/app.ts": ["system/yielding-turns.ts"],
  "api/arrivals.ts": ["domain", "system/yielding-turns.ts"],
  "api/body": ["domain", "system/waiting.ts"],
  "api/server.ts": ["system/turns.ts"],
  "api/socket.ts": ["domain", "system/turns.ts"],
  // Surface and proxy at once, with a listener of its own.
  "api/e2b": ["domain", "service", "ingress", "config/e2b.ts", "metrics.ts", "system/turns.ts", "system/waiting.ts"],
  "api/v1/running/attach.ts": ["domain", "service", "system/turns.ts", "system/waiting.ts"],
  "api/v1/running/ports.ts": ["domain", "service", "system/waiting.ts"],
  "api/v1/events.ts": ["domain", "service", "system/turns.ts"],
  "api/e2b/network.ts": ["domain", "network/rules.ts"],
  "api/mcp": ["domain", "service", "network/rules.ts"],
  "api/web/sign-in.ts": ["domain", "service", "system/turns.ts"],
  "api/contree/events.ts": ["domain", "service", "system/turns.ts"],
  // Surface and proxy at once: messages, connections of clients, credentials.
  ingress: ["domain", "service", "config/ingress.ts", "system/turns.ts", "system/waiting.ts"],
  // The use cases are independent of requests, answers, names and schemas of a wire.
  service: ["domain", "db", "storage", "supervisor", "metrics.ts"],
  // The rules are pure: permissions of a request are decided where the request is.
  "service/operator/desk.ts": ["domain", "db", "supervisor", "cgroup"],
  "service/network.ts": ["domain", "network/rules.ts"],
  supervisor: ["domain", "db", "storage", "oci", "network", "vm", "cgroup", "system", "metrics.ts", "log.ts"],
  db: ["domain"],
  "db/scans": ["domain", "system/round-robin.ts"],
  storage: ["domain", "system"],
  oci: ["domain", "network", "system"],
  // Judges every connection that is made on behalf of others, and makes it.
  // The connecting process has a control group.
  network: ["domain", "system", "cgroup"],
  vm: ["domain", "system", "cgroup"],
  cgroup: ["domain", "system"],
  config: ["domain/ingress.ts", "domain/network.ts", "domain/text/quantities.ts", "log.ts"],
  "config/network.ts": ["domain", "network/rules.ts"],
  system: [],
  domain: [],
};

const VIEWS = ["appliance", "branches", "image", "run", "sandboxes"] as const;

/** Allowed imports inside a top folder, by its sub-folders and by the files next to them. */
export const MAY_IMPORT_WITHIN: Readonly<Record<string, Readonly<Record<string, readonly string[]>>>> = {
  supervisor: {
    "janitor.ts": ["reclaim.ts"],
    "reclaim.ts": ["account-changes.ts"],
    "account-changes.ts": ["operations"],
    "gauges.ts": ["instance", "machines", "merging", "operations", "shared-reading.ts"],
    "readiness.ts": ["machines"],
    health: ["machines"],
    sandboxes: ["account-changes.ts", "instance", "kinds", "memory", "operations", "reclaim.ts"],
    templates: ["account-changes.ts", "imports", "kinds", "operations", "reclaim.ts"],
    // The worker of each kind of operation is in one of these.
    kinds: ["imports", "instance", "machines", "memory", "operations"],
    // The kept memory of paused sandboxes.
    memory: ["instance", "machines"],
    imports: ["disk-guard.ts", "instance", "machines", "operations"],
    instance: ["disk-guard.ts", "machines", "merging", "network", "operations", "survivors"],
    merging: ["disk-guard.ts", "machines", "operations"],
    // Machines, and the steps that every work performs on one.
    machines: [],
    network: [],
    operations: ["survivors"],
    // Machines that a former process has left.
    survivors: ["machines", "network"],
    "disk-guard.ts": [],
    "settle.ts": [],
    "shared-reading.ts": [],
  },
  storage: {
    archive: ["index", "tree", "limits.ts", "pacer.ts"],
    layers: ["index", "tree", "layout.ts", "limits.ts", "pacer.ts"],
    // Directories and files of an open chain of layers.
    tree: ["index", "byte-budget.ts", "limits.ts", "pacer.ts"],
    index: ["byte-budget.ts", "limits.ts", "pacer.ts"],
    "outputs.ts": ["events", "layout.ts"],
    events: ["layout.ts", "limits.ts"],
    receipts: [],
    "blobs.ts": ["layout.ts", "limits.ts"],
    "free-space.ts": ["limits.ts"],
    "requests.ts": ["layout.ts"],
    "staging.ts": ["layout.ts"],
    "byte-budget.ts": [],
    "layout.ts": [],
    "limits.ts": [],
    "pacer.ts": [],
    "token-keys.ts": [],
  },
  web: {
    "main.tsx": ["app", "styles"],
    app: ["parts", "browser", "data", "text"],
    appliance: ["operations", "parts", "browser", "data", "text"],
    branches: ["parts", "browser", "data", "text"],
    image: ["parts", "browser", "data", "text", "worker"],
    run: ["operations", "parts", "browser", "data", "text"],
    // Its files, processes and terminal are shown as those of images and runs.
    sandboxes: ["image", "run", "operations", "parts", "browser", "data", "text"],
    // Parts that several views share.
    operations: ["parts", "browser", "data", "text"],
    parts: ["browser", "data", "text"],
    // The address, keys, focus, theme and clock.
    browser: ["data", "text"],
    data: [],
    text: [],
    worker: [],
  },
};

/** Sub-folders that a sub-folder may load on demand, with `import()`. */
export const MAY_LOAD: Readonly<Record<string, readonly string[]>> = { "web/app": VIEWS };

/** Folders that may import only types from some others. */
export const TYPES_ONLY: Readonly<Record<string, readonly string[]>> = { client: ["api"] };

/** Packages, by the folders that may use them; node: and bun: modules are allowed everywhere but in domain. */
export const MAY_USE: Readonly<Record<string, readonly string[]>> = {
  db: ["drizzle-orm", "libsql", "drizzle-kit"],
  oci: ["@sinclair/typebox"],
  network: ["ipaddr.js"],
  storage: ["re2js"],
  "vm/agent": ["ipaddr.js"],
  vm: ["@sinclair/typebox"],
  "supervisor/survivors": ["@sinclair/typebox"],
  "supervisor/memory": ["@sinclair/typebox"],
  client: ["@elysiajs/eden", "@noble/hashes", "eventsource-parser"],
  // In the text of the module that the build rewrites.
  "tools/build.ts": ["@libsql/linux-x64-gnu"],
  "tools/client-package.ts": ["typescript"],
  "tools/flat-types.ts": ["typescript"],
  api: ["elysia", "@sinclair/typebox"],
  "api/mcp": ["elysia", "@sinclair/typebox", "@modelcontextprotocol/server"],
  // Among the use cases, only `tokens.ts`: the token selects keys that rotate, so that no plugin can hold one.
  service: ["@elysiajs/jwt", "jose"],
  "cli/mcp": ["eventsource-parser"],
  web: ["preact", "uplot", "@xterm/xterm", "@xterm/addon-fit", "lowlight", "highlight.js", "diff"],
};
