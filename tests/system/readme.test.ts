import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pushBusybox } from "../support/images.ts";
import { Registry } from "../support/registry.ts";
import { until } from "../support/runs.ts";

const ROOT = resolve(import.meta.dir, "../..");
const PROGRAM = resolve(process.env["COPPICE_TEST_EXECUTABLE"] ?? join(ROOT, "dist/coppice"));
/** Of all commands of a section together, in `milliseconds`: the appliance probes this host meanwhile. */
const SECTION_MS_MAX = 240_000;
const LISTEN_MS_MAX = 30_000;

let registry: Registry;
let home: string;
let url: string;
let daemon: Bun.Subprocess | null = null;

/** Everything that the README's commands expect of the machine of a reader. */
beforeAll(async () => {
  registry = await Registry.start();
  await pushBusybox(registry, "busybox:1.36");
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
    `[registries.hosts."${registry.host}"]`,
  ];
  await writeFile(join(home, "config.toml"), [...lines, "insecure = true", ""].join("\n"));
}, 60_000);

afterAll(async () => {
  daemon?.kill("SIGTERM");
  await daemon?.exited;
  await registry[Symbol.asyncDispose]();
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

/** A command, and what the README shows of its output; null where it shows nothing. */
interface Step {
  readonly command: string;
  readonly shown: string | null;
}

async function section(heading: string): Promise<string> {
  const readme = await readFile(join(ROOT, "README.md"), "utf8");
  const found = readme.split(`\n## ${heading}\n`)[1]?.split("\n## ")[0];
  if (found === undefined) throw new Error(`the README has no section ${heading}`);
  return found;
}

/** Commands after a prompt, with the lines up to the next. */
function stepsOfConsole(text: string): Step[] {
  const [, block = ""] = /```console\n([\s\S]*?)```/.exec(text) ?? [];
  return block
    .split(/^\$ /m)
    .slice(1)
    .map((part) => {
      const [command = "", ...lines] = part.trimEnd().split("\n");
      return { command, shown: lines.length === 0 ? null : lines.join("\n") };
    });
}

/** Blocks of shell, each with the block that follows it at once. */
function stepsOfShell(text: string): Step[] {
  const blocks = text.matchAll(/```sh\n([\s\S]*?)```\n(?:\n```(?:json|text)\n([\s\S]*?)```)?/g);
  return [...blocks].map(([, command = "", shown]) => ({ command, shown: shown?.trimEnd() ?? null }));
}

/** The reader's machine in place of ours. */
function localized(command: string): string {
  return command
    .replaceAll("dist/coppice", "coppice")
    .replaceAll("/tmp/coppice", join(home, "data"))
    .replaceAll("http://127.0.0.1:8642", url)
    .replaceAll("REGISTRY", registry.host);
}

/** What differs from run to run, by its kind. */
function comparable(output: string): string {
  return output
    .replaceAll(registry.host, "REGISTRY")
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

/** Runs all steps in one shell, as a reader would, and gives the output of each. */
async function outputs(steps: readonly Step[]): Promise<string[]> {
  const script = steps.map(({ command }) => `${localized(command)}\nprintf '\\0'\n`).join("");
  const shell = Bun.spawn(["/bin/bash", "-c", `set -eu -o pipefail\nexec 2>&1\n${script}`], {
    cwd: home,
    env: environment(),
    stdin: "ignore",
    stdout: "pipe",
    timeout: SECTION_MS_MAX,
  });
  const parts = (await new Response(shell.stdout).text()).split("\0");
  const failed = steps[parts.length - 1];
  if (failed !== undefined) throw new Error(`failed: ${failed.command}\n${parts.at(-1)}`);
  expect(await shell.exited).toBe(0);
  return parts;
}

async function expectShown(steps: readonly Step[]): Promise<void> {
  const found = await outputs(steps);
  for (const [index, { command, shown }] of steps.entries()) {
    if (shown === null) continue;
    expect({ command, output: comparable(found[index] ?? "") }).toEqual({ command, output: comparable(shown) });
  }
}

test(
  "the quick start does what it shows",
  async () => {
    const steps = stepsOfConsole(await section("Quick start"));
    expect(steps.length).toBeGreaterThan(8);
    const at = steps.findIndex(({ command }) => command.endsWith(" &"));
    await expectShown(steps.slice(0, at));
    const serve = localized(steps[at]?.command ?? "").replace(/ &$/, "");
    daemon = Bun.spawn(["/bin/bash", "-c", `exec ${serve}`], {
      cwd: home,
      env: environment(),
      stdin: "ignore",
      stderr: Bun.file(join(home, "serve.log")),
    });
    // A reader takes longer to type.
    await until(
      "the appliance listens",
      () =>
        fetch(`${url}/healthz`).then(
          ({ ok }) => ok,
          () => false,
        ),
      LISTEN_MS_MAX,
    );
    await expectShown(steps.slice(at + 1));
  },
  2 * SECTION_MS_MAX,
);

test(
  "the examples of the API do what they show",
  async () => {
    const steps = stepsOfShell(await section("API"));
    expect(steps.length).toBeGreaterThan(6);
    expect(steps.filter(({ shown }) => shown !== null).length).toBeGreaterThan(5);
    await expectShown(steps);
  },
  SECTION_MS_MAX,
);
