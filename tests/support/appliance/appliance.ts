import { existsSync } from "node:fs";
import { copyFile, mkdir, mkdtemp, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { openCgroupTree } from "../../../src/cgroup/cgroup.ts";
import type { Operation } from "../../../src/client/types.ts";
import { cgroupNamespace } from "../../../src/supervisor/machines/cgroups.ts";
import { DIE_WITH_PARENT } from "../../../src/system/exec.ts";
import { PROBE_MEMO_NAME } from "../../../src/vm/probe.ts";
import { deadline } from "../waiting.ts";

const ROOT = resolve(import.meta.dir, "../../..");
/** A host without verdicts probes its acceleration, which takes up to 15 s per candidate. */
const READY_MS_MAX = 60_000;
const STOP_MS_MAX = 30_000;
const SHARED = process.env["COPPICE_TEST_SHARED"];
const PROBE_MEMO = SHARED === undefined ? null : join(SHARED, PROBE_MEMO_NAME);

/** The tested executable, or the sources by default. */
function program(executable = process.env["COPPICE_TEST_EXECUTABLE"]): string[] {
  return executable ? [resolve(executable)] : [process.execPath, join(ROOT, "src/main.ts")];
}

export interface ApplianceOptions {
  /** flags of `serve` that are added to those of every test */
  readonly flags?: readonly string[];
  /** `host:port` of registries on loopback that speak plain HTTP, or tables of their settings */
  readonly registries?: readonly (string | (Readonly<Record<string, string | boolean>> & { readonly host: string }))[];
  /** size of the pool of waiting clones */
  readonly poolSize?: number;
  /** where the data directory is created; default is the system's place for temporary files */
  readonly parent?: string;
  /** a directory whose `data` is the data directory, and which is removed with the appliance; default is a new one */
  readonly home?: string;
  /** another executable than the tested one */
  readonly executable?: string;
  /** further tables of the configuration, in TOML */
  readonly tables?: string;
  /** added to the daemon's environment */
  readonly environment?: Readonly<Record<string, string>>;
}

/** A finished instance operation. */
export type Finished = Operation & { readonly result?: Record<string, never> };

/** A real daemon on its own data directory, with a client. */
export class Appliance implements AsyncDisposable {
  readonly dataDir: string;
  readonly configFile: string;
  readonly #program: readonly string[];
  readonly #environment: Readonly<Record<string, string>>;
  /** flags of the next start */
  flags: readonly string[];
  #process: Bun.Subprocess | null = null;
  #log = "";
  url = "";
  token = "";

  private constructor(
    dataDir: string,
    configFile: string,
    { flags = [], executable, environment = {} }: ApplianceOptions,
  ) {
    this.dataDir = dataDir;
    this.configFile = configFile;
    this.#program = program(executable);
    this.flags = flags;
    this.#environment = environment;
  }

  static async start(options: ApplianceOptions = {}): Promise<Appliance> {
    const home = options.home ?? (await mkdtemp(join(options.parent ?? tmpdir(), "coppice-test-")));
    const configFile = join(home, "config.toml");
    const hosts = (options.registries ?? []).map((entry) => {
      const { host, ...settings } = typeof entry === "string" ? { host: entry, insecure: true } : entry;
      const lines = Object.entries(settings).map(([name, value]) => `${name} = ${JSON.stringify(value)}`);
      return [`[registries.hosts."${host}"]`, ...lines].join("\n");
    });
    const toml = [
      `data_dir = "${join(home, "data")}"`,
      "[listen]",
      "port = 0",
      "[vm]",
      'emulation = "allow"',
      // Another build may not support this setting.
      ...(options.executable === undefined ? ['probe_timeout = "60s"'] : []),
      "[pool]",
      `size = ${options.poolSize ?? 1}`,
      ...hosts,
      options.tables ?? "",
    ];
    await writeFile(configFile, toml.join("\n"));
    const appliance = new Appliance(join(home, "data"), configFile, options);
    await appliance.#rememberProbe();
    await appliance.up();
    appliance.token = await appliance.createToken("tester");
    return appliance;
  }

  get pid(): number {
    if (this.#process === null) throw new Error("the appliance is not running");
    return this.#process.pid;
  }

  /** The daemon's log. */
  get log(): string {
    return this.#log;
  }

  /** Starts the daemon and waits until it listens. */
  async up(): Promise<void> {
    const child = Bun.spawn(
      // A daemon must not outlive a test or benchmark that was killed.
      [
        ...DIE_WITH_PARENT,
        ...this.#program,
        "serve",
        "--config",
        this.configFile,
        "--log-format",
        "json",
        ...this.flags,
      ],
      {
        env: { PATH: process.env["PATH"] ?? "", HOME: "/root", TMPDIR: tmpdir(), ...this.#environment },
        stdin: "ignore",
        stdout: "inherit",
        stderr: "pipe",
      },
    );
    this.#process = child;
    const { promise: listening, resolve: listens, reject } = Promise.withResolvers<string>();
    void this.#read(child.stderr, listens);
    const fail = (what: string): void => reject(new Error(`${what}:\n${this.#log.slice(-4000)}`));
    void child.exited.then((code) => fail(`the daemon ended with ${code}`));
    using _late = deadline(READY_MS_MAX, () => fail("the daemon does not listen"));
    this.url = await listening;
  }

  /** Stops the daemon and waits for its end. */
  async down(signal: "SIGTERM" | "SIGKILL" | "SIGABRT" = "SIGTERM"): Promise<number | null> {
    const child = this.#process;
    if (child === null) return null;
    this.#process = null;
    child.kill(signal);
    using _late = deadline(STOP_MS_MAX, () => child.kill("SIGKILL"));
    await child.exited;
    return child.exitCode;
  }

  /** Runs the command line program with this appliance's configuration. */
  async command(
    args: readonly string[],
    stdin?: Uint8Array,
  ): Promise<{ code: number; stdout: string; stderr: string }> {
    const child = Bun.spawn([...this.#program, ...args], {
      env: { PATH: process.env["PATH"] ?? "", HOME: "/root", COPPICE_URL: this.url, COPPICE_TOKEN: this.token },
      stdin: stdin ?? "ignore",
      stdout: "pipe",
      stderr: "pipe",
      timeout: 120_000,
    });
    const [stdout, stderr] = await Promise.all([new Response(child.stdout).text(), new Response(child.stderr).text()]);
    return { code: await child.exited, stdout, stderr };
  }

  async createToken(account: string, ...more: string[]): Promise<string> {
    const args = ["token", "create", "--config", this.configFile, "--account", account, ...more];
    const { code, stdout, stderr } = await this.command(args);
    if (code !== 0) throw new Error(`token create failed: ${stderr}`);
    return stdout.trim();
  }

  fetch(path: string, init: RequestInit & { token?: string } = {}): Promise<Response> {
    const headers = new Headers(init.headers);
    headers.set("authorization", `Bearer ${init.token ?? this.token}`);
    return fetch(`${this.url}/v1${path}`, { redirect: "manual", ...init, headers });
  }

  post(path: string, body: unknown, token = this.token): Promise<Response> {
    const headers = { "content-type": "application/json" };
    return this.fetch(path, { method: "POST", headers, body: JSON.stringify(body), token });
  }

  /** Waits for the end of the operation that a Location header names. */
  async finished(id: string, limitMs = 120_000, token = this.token): Promise<Finished> {
    const deadline = Date.now() + limitMs;
    while (Date.now() < deadline) {
      const operation = (await (await this.fetch(`/operations/${id}?wait=30`, { token })).json()) as Finished;
      if (!["PENDING", "EXECUTING"].includes(operation.status)) return operation;
    }
    throw new Error(`operation ${id} did not end:\n${this.#log.slice(-4000)}`);
  }

  /** Submits an import and returns the id of its operation. */
  async submitImport(registry: string, more: Record<string, unknown> = {}): Promise<string> {
    const response = await this.post("/images/import", { registry, ...more });
    const body = (await response.json()) as { uuid: string };
    if (response.status !== 202) throw new Error(`import answered ${response.status}: ${JSON.stringify(body)}`);
    return body.uuid;
  }

  /** Imports an image and returns its uuid. */
  async importImage(registry: string, tag?: string): Promise<string> {
    const operation = await this.finished(await this.submitImport(registry, tag ? { tag } : {}));
    if (operation.status !== "SUCCESS") throw new Error(`import failed: ${JSON.stringify(operation)}`);
    return (operation.result as unknown as { image: string }).image;
  }

  /** Spawns an instance and returns its id. */
  async spawn(request: Record<string, unknown>): Promise<string> {
    const response = await this.post("/instances", request);
    const body = (await response.json()) as { uuid: string };
    if (response.status !== 201) throw new Error(`spawn answered ${response.status}: ${JSON.stringify(body)}`);
    return body.uuid;
  }

  /** Runs a shell command and returns the finished operation. */
  async run(image: string, command: string, more: Record<string, unknown> = {}): Promise<Finished> {
    return await this.finished(await this.spawn({ image, command, shell: true, ...more }));
  }

  /** VMMs of this appliance, including those in its pool. */
  async machinePids(): Promise<number[]> {
    return (await this.#machineProcesses()).map(({ pid }) => pid);
  }

  /** VMMs without their launchers, and without monitors of the probe. */
  async monitorPids(): Promise<number[]> {
    const processes = await this.#machineProcesses();
    return processes
      .filter(({ argv }) => /^\/usr\/bin\/qemu-system-x86_64 .*-accel tcg/.test(argv))
      .map(({ pid }) => pid);
  }

  async #machineProcesses(): Promise<{ pid: number; argv: string }[]> {
    const namespace = cgroupNamespace(this.dataDir);
    const processes = await processesWith("qemu-system-x86_64");
    const groups = await Promise.all(
      processes.map(({ pid }) => readFile(`/proc/${pid}/cgroup`, "utf8").catch(() => "")),
    );
    return processes.filter((_, index) => groups[index]?.includes(namespace));
  }

  /** Entries of those directories of the data directory that only running work uses. */
  async leftovers(): Promise<string[]> {
    const paths: string[] = [];
    for (const directory of ["vms", "tmp"]) {
      for (const name of await readdir(join(this.dataDir, directory)).catch(() => []))
        paths.push(`${directory}/${name}`);
    }
    return paths;
  }

  /** Entries of the directory for unfinished work. They may disappear a moment after the operation has ended. */
  async unfinished(): Promise<string[]> {
    return (await this.leftovers()).filter((path) => path.startsWith("tmp/"));
  }

  /**
   * The first appliance of a run of rings tries every way to run machines. Later ones start with its verdicts, as a
   * restarted appliance does. They hold for one build and one boot of the host.
   */
  async #rememberProbe(): Promise<void> {
    if (PROBE_MEMO === null || !existsSync(PROBE_MEMO)) return;
    await mkdir(this.dataDir, { recursive: true, mode: 0o700 });
    await copyFile(PROBE_MEMO, join(this.dataDir, PROBE_MEMO_NAME));
  }

  async #shareProbe(): Promise<void> {
    const own = join(this.dataDir, PROBE_MEMO_NAME);
    if (PROBE_MEMO === null || existsSync(PROBE_MEMO) || !existsSync(own)) return;
    await copyFile(own, `${PROBE_MEMO}.${process.pid}`);
    await rename(`${PROBE_MEMO}.${process.pid}`, PROBE_MEMO);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.down();
    await this.#endMachines();
    await this.#shareProbe();
    await rm(resolve(this.dataDir, ".."), { recursive: true, force: true });
  }

  /** Ends the machines that have outlived a daemon which was killed. */
  async #endMachines(): Promise<void> {
    if ((await this.machinePids()).length === 0) return;
    await using cgroups = await openCgroupTree({ namespace: cgroupNamespace(this.dataDir) });
    for (const name of await cgroups.list()) await cgroups.open(name)[Symbol.asyncDispose]();
  }

  async #read(stream: ReadableStream<Uint8Array>, listens: (url: string) => void): Promise<void> {
    const decoder = new TextDecoder();
    let line = "";
    for await (const chunk of stream) {
      const text = decoder.decode(chunk, { stream: true });
      this.#log += text;
      line += text;
      const url = /"url":"(http[^"]+)"/.exec(line)?.[1];
      if (url !== undefined) listens(url);
      line = line.slice(line.lastIndexOf("\n") + 1);
    }
  }
}

/** Live processes whose command line contains `text`, with their pids. */
export async function processesWith(text: string): Promise<{ pid: number; argv: string }[]> {
  const processes: { pid: number; argv: string }[] = [];
  for (const name of await readdir("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    // The process may end between the listing and the read.
    const argv = (await readFile(`/proc/${name}/cmdline`, "utf8").catch(() => "")).replaceAll("\0", " ");
    if (argv.includes(text)) processes.push({ pid: Number(name), argv });
  }
  return processes;
}

/** Kills processes. A process that ended after it was listed counts as killed. */
export function killAll(pids: readonly number[]): void {
  for (const pid of pids) {
    try {
      process.kill(pid, "SIGKILL");
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
    }
  }
}

/** Text of a captured output. */
export function text(output: unknown): string {
  const { content, encoding } = output as { content: string; encoding: string };
  return encoding === "base64" ? Buffer.from(content, "base64").toString("utf8") : content;
}
