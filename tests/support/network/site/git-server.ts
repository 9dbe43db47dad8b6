import { writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "../../../../src/system/exec.ts";
import { scratchDirectory } from "../../../../src/system/scratch.ts";

const GIT_MS = 30_000;
const BACKEND = "/usr/lib/git-core/git-http-backend";

/** A repository `words.git` with one commit, served by git's own HTTP program. */
export class GitServer implements AsyncDisposable {
  readonly #directory: string;
  readonly #owned: AsyncDisposableStack;

  private constructor(directory: string, owned: AsyncDisposableStack) {
    this.#directory = directory;
    this.#owned = owned;
  }

  static async start(): Promise<GitServer> {
    await using stack = new AsyncDisposableStack();
    const { path } = stack.use(await scratchDirectory(tmpdir(), "git-server-"));
    const git = async (...args: string[]): Promise<void> => {
      const env = { HOME: path, GIT_CONFIG_NOSYSTEM: "1" };
      await run({ argv: ["git", "-C", path, ...args], env, timeoutMs: GIT_MS });
    };
    await git("init", "-q", "-b", "main", "work");
    await writeFile(join(path, "work/words"), "hello from git\n");
    await git("-C", "work", "add", "words");
    await git("-C", "work", "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q", "-m", "Add words");
    await git("clone", "-q", "--bare", "work", "words.git");
    return new GitServer(path, stack.move());
  }

  /** The answer to a request for a path of the repository, from CGI. */
  async answer(request: Request, path: string): Promise<Response> {
    const { search } = new URL(request.url);
    const body = await request.bytes();
    const child = Bun.spawn([BACKEND], {
      env: {
        GIT_PROJECT_ROOT: this.#directory,
        GIT_HTTP_EXPORT_ALL: "1",
        GIT_PROTOCOL: request.headers.get("git-protocol") ?? "",
        HOME: this.#directory,
        PATH_INFO: `/${path}`,
        QUERY_STRING: search.slice(1),
        REQUEST_METHOD: request.method,
        CONTENT_TYPE: request.headers.get("content-type") ?? "",
        CONTENT_LENGTH: String(body.length),
        HTTP_CONTENT_ENCODING: request.headers.get("content-encoding") ?? "",
        REMOTE_ADDR: "127.0.0.1",
      },
      stdin: body,
      stdout: "pipe",
      stderr: "ignore",
      timeout: GIT_MS,
    });
    const output = Buffer.from(await new Response(child.stdout).arrayBuffer());
    const end = output.indexOf("\r\n\r\n");
    const headers = new Headers();
    for (const line of output.toString("latin1", 0, end).split("\r\n")) {
      const [name = "", value = ""] = line.split(": ");
      headers.append(name, value);
    }
    const status = Number.parseInt(headers.get("status") ?? "200", 10);
    headers.delete("status");
    return new Response(output.subarray(end + 4), { status, headers });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
  }
}
