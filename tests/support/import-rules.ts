/**
 * Who may import whom, by the folder or file below src. The longest name that a file lies in decides. Everybody may import
 * from its own top folder; log.ts may be imported as a type anywhere.
 */
export const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  "main.ts": ["cli", "config", "log", "daemon"],
  "daemon.ts": ["*"],
  "version.ts": ["package.json"],
  "log.ts": [],
  "metrics.ts": [],
  // What makes the product, and is not in it.
  tools: ["api/web/bundle.ts", "supervisor/health/programs.ts", "vm/assets.ts", "version.ts", "system/exec.ts"],
  cli: ["client", "domain", "config", "log.ts", "version.ts"],
  // The rules are pure: a mistake in one is told before anything is sent.
  "cli/running/network.ts": ["client", "domain", "network/rules.ts"],
  "cli/io.ts": ["config", "system/terminal.ts"],
  "cli/command-line.ts": ["storage/layout.ts", "config", "version.ts"],
  "cli/serve.ts": ["system/notify.ts", "daemon.ts", "config", "log.ts", "version.ts"],
  "cli/version.ts": ["vm/assets.ts", "version.ts"],
  // These work on the data directory or the host itself, where no appliance need run.
  "cli/token.ts": ["service/tokens.ts", "db", "storage", "domain", "config"],
  "cli/backup": ["db", "domain", "storage", "system", "version.ts"],
  "cli/gc": ["api/operator/control.ts", "config", "db", "domain", "log.ts", "storage", "supervisor/reclaim.ts"],
  "cli/doctor": ["cgroup", "config", "domain", "log.ts", "network", "storage", "supervisor", "system", "vm"],
  "cli/install": [
    ...["config", "system/exec.ts", "version.ts"],
    ...["systemd/coppice.service", "systemd/coppice.sysusers.conf", "systemd/coppice.tmpfiles.conf"],
  ],
  // It makes a file to upload.
  "cli/bench": ["client", "domain", "system"],
  // The page talks to the appliance through the client; the rules of the domain are pure.
  web: ["client", "domain"],
  // A part of pages, which knows the types of the server and nothing else of it.
  client: ["api/app.ts", "domain/given.ts"],
  // A surface says how a use case looks on the wire; it sees nothing below the use cases.
  api: ["domain", "service", "metrics.ts"],
  "api/access.ts": ["domain", "system/turns.ts"],
  "api/app.ts": ["system/yielding-turns.ts"],
  "api/body": ["domain", "system/shares.ts", "system/waiting.ts"],
  "api/server.ts": ["system/turns.ts"],
  "api/v1/attach.ts": ["domain", "service", "system/turns.ts", "system/waiting.ts"],
  // Both ends of a connection count its bytes in one way.
  "api/v1/ports.ts": ["client/byte-credit.ts", "domain", "service", "system/waiting.ts"],
  "api/web/event-socket.ts": ["client/byte-credit.ts"],
  "api/v1/events.ts": ["domain", "service", "system/turns.ts"],
  "api/mcp": ["domain", "service", "network/rules.ts", "system/shares.ts"],
  "api/web/sign-in.ts": ["domain", "service", "system/shares.ts", "system/turns.ts"],
  "api/contree/events.ts": ["domain", "service", "system/turns.ts"],
  // The use cases know no request, no answer, no name and no schema of a wire.
  service: ["domain", "db", "storage", "supervisor", "metrics.ts"],
  // The rules are pure: what a request may reach is decided where the request is.
  "service/network.ts": ["domain", "network/rules.ts"],
  supervisor: ["domain", "db", "storage", "oci", "network", "vm", "cgroup", "system", "metrics.ts", "log.ts"],
  db: ["domain"],
  "db/scans": ["domain", "system/round-robin.ts"],
  storage: ["domain", "system"],
  oci: ["domain", "network", "system"],
  // What judges every connection that is made for somebody else, and makes it.
  // The process that makes it has a control group.
  network: ["domain", "system", "cgroup"],
  vm: ["domain", "system", "cgroup"],
  cgroup: ["domain", "system"],
  config: ["domain/network.ts", "log.ts"],
  "config/network.ts": ["domain", "network/rules.ts"],
  system: [],
  domain: [],
};

/** Folders that may import from some others nothing but types. */
export const TYPES_ONLY: Readonly<Record<string, readonly string[]>> = { client: ["api"] };

/** Packages, by who may use them; node: and bun: modules are free everywhere but in domain. */
export const MAY_USE: Readonly<Record<string, readonly string[]>> = {
  db: ["drizzle-orm", "libsql", "drizzle-kit"],
  oci: ["@sinclair/typebox"],
  storage: ["re2js"],
  client: ["@elysiajs/eden", "@noble/hashes", "eventsource-parser"],
  // In the text of the module that the build rewrites.
  "tools/build.ts": ["@libsql/linux-x64-gnu"],
  "tools/client-package.ts": ["typescript"],
  "tools/flat-types.ts": ["typescript"],
  api: ["elysia", "@sinclair/typebox"],
  "api/mcp": ["elysia", "@sinclair/typebox", "@modelcontextprotocol/server"],
  // Of the use cases only `tokens.ts` does: keys that rotate are chosen by the token, so that no plugin can hold one.
  service: ["@elysiajs/jwt", "jose"],
  "cli/mcp": ["eventsource-parser"],
  web: ["preact", "uplot", "@xterm/xterm", "@xterm/addon-fit", "lowlight", "highlight.js", "diff"],
};
