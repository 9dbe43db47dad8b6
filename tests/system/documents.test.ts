import { afterAll, beforeAll, expect, test } from "bun:test";
import { chmod, mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pushBusybox } from "../support/images/images.ts";
import { Registry } from "../support/images/registry.ts";
import { http, Outside } from "../support/outside.ts";
import { DOCUMENTS, documentText, type Step, sectionOf, stepsOf } from "../support/source/documents.ts";
import { until } from "../support/waiting.ts";

const ROOT = resolve(import.meta.dir, "../..");
const PROGRAM = resolve(process.env["COPPICE_TEST_EXECUTABLE"] ?? join(ROOT, "dist/coppice"));
/** Longest time of all commands of a page, in `milliseconds`: the appliance probes this host meanwhile. */
const PAGE_MS_MAX = 240_000;
const LISTEN_MS_MAX = 30_000;

let registry: Registry;
/** the names of docs/network.md */
let outside: Outside;
let webPort: number;
let home: string;
let url: string;
let daemon: Bun.Subprocess | null = null;

/** Sets up what the commands of the pages expect on the reader's machine. */
beforeAll(async () => {
  registry = await Registry.start();
  // The pages only run a shell in these images, which the mirror below serves under their public names.
  for (const name of ["busybox:1.36", "python:3.12-slim"]) await pushBusybox(registry, `library/${name}`);
  outside = await Outside.start("www.example.org");
  webPort = (await outside.serve(http(() => "it works\n"))).port;
  home = await mkdtemp(join(tmpdir(), "coppice-readme-"));
  await mkdir(join(home, "bin"));
  await symlink(PROGRAM, join(home, "bin/coppice"));
  const probe = Bun.listen({ hostname: "127.0.0.1", port: 0, socket: { data: () => undefined } });
  const port = probe.port;
  probe.stop(true);
  url = `http://127.0.0.1:${port}`;
  const lines = [
    "[listen]",
    `port = ${port}`,
    "[pool]",
    "size = 1",
    "[vm]",
    'probe_timeout = "60s"',
    ...["[network]", 'allow = ["*.example.org:*"]', 'private = ["*.example.org"]', "record = true"],
    `resolvers = ["${outside.names.address}"]`,
    `[registries.hosts."${registry.host}"]`,
    "insecure = true",
    '[registries.hosts."docker.io"]',
    `mirrors = [{ host = "${registry.host}", insecure = true }]`,
  ];
  await writeFile(join(home, "config.toml"), `${lines.join("\n")}\n`);
}, 60_000);

afterAll(async () => {
  daemon?.kill("SIGTERM");
  await daemon?.exited;
  await registry[Symbol.asyncDispose]();
  await outside[Symbol.asyncDispose]();
  await rm(home, { recursive: true, force: true });
}, 60_000);

const environment = () => ({
  PATH: `${join(home, "bin")}:${process.env["PATH"]}`,
  HOME: home,
  TMPDIR: tmpdir(),
  COPPICE_CONFIG: join(home, "config.toml"),
  COPPICE_DATA_DIR: join(home, "data"),
  COPPICE_URL: url,
});

/** Replaces names of the reader's machine by those of this one. */
function localized(command: string): string {
  return (
    command
      .replaceAll("dist/coppice", "coppice")
      .replaceAll("/tmp/coppice", join(home, "data"))
      .replaceAll("http://127.0.0.1:8642", url)
      .replaceAll("https://box.lan:8642", url)
      .replaceAll("/path/to/authority.pem", join(home, "authority.pem"))
      .replaceAll("/mnt/nas", home)
      // The page uses a registry with TLS; this one has none.
      .replaceAll("skopeo copy docker://docker.io", `skopeo copy --src-tls-verify=false docker://${registry.host}`)
      .replaceAll("example.org:8080", `example.org:${webPort}`)
  );
}

/** Parts of outputs that differ between runs, by kind. */
function comparable(output: string): string {
  return output
    .replaceAll(`[${webPort}]`, "[8080]")
    .replaceAll(home, "/root")
    .replaceAll(/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/g, "UUID")
    .replaceAll(/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z/g, "TIME")
    .replaceAll(/sha256:[0-9a-f]{64}/g, "SHA256")
    .replaceAll(/"(\w+_bytes|\w+_ms)": \d+/g, '"$1": NUMBER')
    .replaceAll(/\d+(\.\d+)? (ms|s|KiB|MiB)\b/g, "QUANTITY")
    .replaceAll(/\d+\.\d+\.\d+-\d+-cloud-amd64/g, "KERNEL")
    .replaceAll('"vm-emulated"', '"vm"')
    .trimEnd();
}

/** Runs all steps in one shell, as a reader would, and returns the output of each. */
async function outputs(steps: readonly Step[], more: Readonly<Record<string, string>>): Promise<string[]> {
  const script = steps.map(({ command }) => `${localized(command)}\nprintf '\\0'\n`).join("");
  const shell = Bun.spawn(["/bin/bash", "-c", `set -eu -o pipefail\nexec 2>&1\n${script}`], {
    cwd: home,
    env: { ...environment(), ...more },
    stdin: "ignore",
    stdout: "pipe",
    timeout: PAGE_MS_MAX,
  });
  const parts = (await new Response(shell.stdout).text()).split("\0");
  const failed = steps[parts.length - 1];
  if (failed !== undefined) throw new Error(`failed: ${failed.command}\n${parts.at(-1)}`);
  expect(await shell.exited).toBe(0);
  return parts;
}

async function expectShown(steps: readonly Step[], more: Readonly<Record<string, string>> = {}): Promise<void> {
  const printed = await outputs(steps, more);
  for (const [index, { command, output }] of steps.entries()) {
    if (output === null) continue;
    expect({ command, output: comparable(printed[index] ?? "") }).toEqual({ command, output: comparable(output) });
  }
}

/** Starts the appliance with a command of a page, and waits until it listens. A reader takes longer to type. */
async function serve(command: string, more: Readonly<Record<string, string>> = {}): Promise<void> {
  daemon = Bun.spawn(["/bin/bash", "-c", `exec ${localized(command)}`], {
    cwd: home,
    env: { ...environment(), ...more },
    stdin: "ignore",
    stderr: Bun.file(join(home, "serve.log")),
  });
  const answers = () =>
    fetch(`${url}/healthz`, { tls: { rejectUnauthorized: false } }).then(
      ({ ok }) => ok,
      () => false,
    );
  await until("the appliance listens", answers, LISTEN_MS_MAX);
}

/** Steps that start the appliance with `&`; all others run in a shell. */
const startsAppliance = ({ command }: Step): boolean => / serve .*&$/.test(command);

// spec: service.branch, service.inspect, service.spawn
test(
  "the README's session and its nine things work as shown",
  async () => {
    const steps = stepsOf(documentText("README.md"));
    expect(steps.length).toBeGreaterThan(30);
    const at = steps.findIndex(startsAppliance);
    await expectShown(steps.slice(0, at));
    await serve((steps[at]?.command ?? "").replace(/ &$/, ""));
    await expectShown(steps.slice(at + 1));
  },
  2 * PAGE_MS_MAX,
);

// spec: service.branch, service.inspect
test(
  "the session with curl works as shown",
  async () => {
    const steps = stepsOf(documentText("docs/api.md"));
    expect(steps.length).toBeGreaterThan(6);
    expect(steps.filter(({ output }) => output !== null).length).toBeGreaterThan(5);
    await expectShown(steps);
  },
  PAGE_MS_MAX,
);

const CLIENTS = "Clients on other machines";

test(
  "the commands of every other page work",
  async () => {
    const pages = DOCUMENTS.filter((path) => path !== "README.md" && path !== "docs/api.md");
    const texts = pages.map((path) =>
      path === "docs/operations.md" ? withoutSection(path, CLIENTS) : documentText(path),
    );
    const steps = texts.flatMap((text) => stepsOf(text));
    expect(steps.length).toBeGreaterThan(8);
    await expectShown(steps);
  },
  PAGE_MS_MAX,
);

function withoutSection(path: string, heading: string): string {
  return documentText(path).replace(sectionOf(path, heading), "");
}

test(
  "a client on another machine needs what the page says",
  async () => {
    daemon?.kill("SIGTERM");
    await daemon?.exited;
    const { key, certificate } = await ownAuthority();
    url = url.replace("http:", "https:");
    await serve(`coppice serve --vm-emulation allow`, {
      COPPICE_LISTEN_TLS_CERT: certificate,
      COPPICE_LISTEN_TLS_KEY: key,
    });
    // Another home directory stands for the other machine, and ssh runs its command here.
    const ssh = join(home, "bin/ssh");
    await writeFile(ssh, '#!/bin/sh\n[ "$1" = root@box.lan ] && shift && exec "$@"\n');
    await chmod(ssh, 0o755);
    const other = join(home, "other");
    await mkdir(other);
    await expectShown(stepsOf(sectionOf("docs/operations.md", CLIENTS)), { HOME: other, COPPICE_URL: "" });
  },
  PAGE_MS_MAX,
);

/** A certificate for the loopback address, signed by no authority that the system knows. */
async function ownAuthority(): Promise<{ readonly key: string; readonly certificate: string }> {
  const [key, certificate] = [join(home, "key.pem"), join(home, "authority.pem")];
  const subject = ["-subj", "/CN=box.lan", "-addext", "subjectAltName=IP:127.0.0.1"];
  const argv = [
    "openssl",
    "req",
    "-x509",
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:P-256",
    "-nodes",
    ...subject,
  ];
  const openssl = Bun.spawn([...argv, "-days", "2", "-keyout", key, "-out", certificate], { stderr: "ignore" });
  expect(await openssl.exited).toBe(0);
  return { key, certificate };
}
