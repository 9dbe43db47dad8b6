import { copyFile, link, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

/** Time limit of a test's command, in `milliseconds`. */
const COMMAND_MS_MAX = 30_000;

/** Path of the tested executable. */
export function executableUnderTest(): string {
  return resolve(process.env["COPPICE_TEST_EXECUTABLE"] ?? "dist/coppice");
}

/** The built executable in a directory without the repository, but with files that it must not read. */
export class Executable implements AsyncDisposable {
  readonly directory: string;
  readonly path: string;

  private constructor(directory: string) {
    this.directory = directory;
    this.path = join(directory, "coppice");
  }

  static async place(): Promise<Executable> {
    const built = executableUnderTest();
    const executable = new Executable(await mkdtemp(join(tmpdir(), "coppice-empty-")));
    await link(built, executable.path).catch(async (error: NodeJS.ErrnoException) => {
      if (error.code !== "EXDEV") throw error;
      await copyFile(built, executable.path);
    });
    return executable;
  }

  /** Starts it with no environment but a PATH and `environment`. */
  start(argv: readonly string[], environment: Readonly<Record<string, string | undefined>> = {}) {
    return Bun.spawn([this.path, ...argv], {
      cwd: this.directory,
      env: { PATH: "/usr/sbin:/usr/bin:/sbin:/bin", HOME: this.directory, TMPDIR: tmpdir(), ...environment },
      stdin: "ignore",
      stdout: "pipe",
      stderr: "pipe",
      timeout: COMMAND_MS_MAX,
    });
  }

  async run(argv: readonly string[], environment: Readonly<Record<string, string | undefined>> = {}) {
    const child = this.start(argv, environment);
    const [stdout, stderr] = await Promise.all([new Response(child.stdout).bytes(), new Response(child.stderr).text()]);
    return { code: await child.exited, stdout: Buffer.from(stdout), stderr };
  }

  /** Files of a hostile directory: settings that run code, or change the program. */
  async layTraps(): Promise<void> {
    await writeFile(join(this.directory, ".env"), "COPPICE_POOL_SIZE=trapped\n");
    await writeFile(join(this.directory, "bunfig.toml"), 'preload = ["./trap.ts"]\n');
    await writeFile(join(this.directory, "trap.ts"), 'console.log("TRAPPED"); process.exit(99);\n');
    await writeFile(join(this.directory, "package.json"), '{"name":"trap","version":"6.6.6"}\n');
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.directory, { recursive: true, force: true });
  }
}
