import { existsSync } from "node:fs";
import { copyFile, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { DIE_WITH_PARENT, run } from "../../../src/system/exec.ts";
import { Appliance } from "../appliance/appliance.ts";
import { freePort } from "../free-port.ts";
import { Registry } from "../images/registry.ts";
import { type Client, directoryOf, pythonOf } from "./clients.ts";
import { guestArchive } from "./guest.ts";

/** For a program with many sandboxes on a host that emulates its machines. */
const PROGRAM_MS_MAX = 1_800_000;
const COPY_MS_MAX = 120_000;
const PROGRAMS = resolve(import.meta.dir, "../../e2b/programs");

export interface ProgramEnd {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/**
 * An appliance with a template `base`, and a home directory for its clients. For the appliance, docker.io is a registry on the
 * loopback.
 */
export class ClientScene implements AsyncDisposable {
  readonly appliance: Appliance;
  readonly home: string;
  readonly #registry: Registry;
  readonly #environment: Readonly<Record<string, string>>;
  readonly #owned: AsyncDisposableStack;

  private constructor(
    appliance: Appliance,
    home: string,
    registry: Registry,
    environment: Readonly<Record<string, string>>,
    owned: AsyncDisposableStack,
  ) {
    this.appliance = appliance;
    this.home = home;
    this.#registry = registry;
    this.#environment = environment;
    this.#owned = owned;
  }

  static async start(): Promise<ClientScene> {
    const archive = await guestArchive();
    const listener = `127.0.0.1:${await freePort()}`;
    await using stack = new AsyncDisposableStack();
    const registry = stack.use(await Registry.start());
    const tables = `
      [e2b]
      listen = "${listener}"
      domain = "localhost:${listener.split(":")[1]}"
      [registries]
      default = "docker.io"
      [registries.hosts."docker.io"]
      mirrors = [{ host = "${registry.host}", insecure = true }]
    `;
    const appliance = stack.use(await Appliance.start({ tables, flags: ["--vm-cpu-budget", "16"] }));
    const home = await mkdtemp(join(tmpdir(), "e2b-home-"));
    stack.defer(() => rm(home, { recursive: true, force: true }));
    for (const args of [
      ["image", "load", archive, "--tag", "debian"],
      ["e2b", "template", "base", "tag:debian"],
    ]) {
      const { code, stderr } = await appliance.command(args);
      if (code !== 0) throw new Error(`coppice ${args.join(" ")}: ${stderr}`);
    }
    const environment = {
      E2B_API_URL: `http://${listener}`,
      E2B_SANDBOX_URL: `http://${listener}`,
      E2B_API_KEY: await appliance.createToken("tester", "--e2b"),
    };
    return new ClientScene(appliance, home, registry, environment, stack.move());
  }

  /** Publishes the guest as an image of docker.io. @param name with its tag */
  async publish(name: string): Promise<void> {
    const target = `docker://${this.#registry.host}/library/${name}`;
    const argv = [
      "skopeo",
      "copy",
      "--quiet",
      "--dest-tls-verify=false",
      `oci-archive:${await guestArchive()}`,
      target,
    ];
    await run({ argv, timeoutMs: COPY_MS_MAX });
  }

  /** Runs a program of `tests/e2b/programs` with the packages of a client. */
  async program(client: Client, name: string, ...args: readonly string[]): Promise<ProgramEnd> {
    const directory = installed(client);
    const source = join(PROGRAMS, name);
    if (client.language === "python") return await this.python(client, source, ...args);
    // Node.js looks for packages from the place of the program.
    const copy = join(directory, name);
    await copyFile(source, copy);
    return await this.run(["node", copy, ...args]);
  }

  /** Runs the tests of a program of pytest. @param only an expression for their names; default: all */
  async pytest(client: Client, name: string, only?: string): Promise<ProgramEnd> {
    const options = [
      "-q",
      "-p",
      "no:cacheprovider",
      "-p",
      "no:warnings",
      "-o",
      "asyncio_mode=auto",
      "--rootdir",
      PROGRAMS,
    ];
    const selection = only === undefined ? [] : ["-k", only];
    return await this.python(client, "-m", "pytest", ...options, ...selection, join(PROGRAMS, name));
  }

  /** Runs Python with the packages of a client. */
  async python(client: Client, ...args: readonly string[]): Promise<ProgramEnd> {
    const { program, env } = pythonOf(client);
    return await this.run([program, ...args], {
      PYTHONPATH: installed(client),
      PYTHONDONTWRITEBYTECODE: "1",
      ...env,
    });
  }

  /** Runs a program with the environment of a user who points it at the appliance. */
  async run(argv: readonly string[], environment: Record<string, string> = {}, stdin = ""): Promise<ProgramEnd> {
    const child = Bun.spawn([...DIE_WITH_PARENT, ...argv], {
      cwd: this.home,
      env: { PATH: process.env["PATH"] ?? "", HOME: this.home, ...this.#environment, ...environment },
      stdin: Buffer.from(stdin),
      stdout: "pipe",
      stderr: "pipe",
      timeout: PROGRAM_MS_MAX,
    });
    const [stdout, stderr] = await Promise.all([new Response(child.stdout).text(), new Response(child.stderr).text()]);
    return { code: await child.exited, stdout, stderr };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
  }
}

/** The directory of a client. @throws Error when it was not installed */
export function installed(client: Client): string {
  const directory = directoryOf(client);
  if (existsSync(directory)) return directory;
  throw new Error(`${client.packages.join(", ")} is missing: bun tests/support/e2b/install.ts`);
}
