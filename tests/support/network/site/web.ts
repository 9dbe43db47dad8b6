import type { Certified } from "./authority.ts";
import type { GitServer } from "./git-server.ts";

/** Contents by path. */
export type Files = Readonly<Record<string, Uint8Array | string>>;

const CHUNK_BYTES = 65_536;

export interface WebOptions {
  readonly addresses: readonly string[];
  readonly certified: Certified;
  /** by the first part of their paths */
  readonly folders: Readonly<Record<string, Files>>;
  readonly git: GitServer;
}

/**
 * One web server under any name, on the ports 80 and 443 of some addresses:
 * `/FOLDER/...` files, `/git/...` a repository, `/bytes/N` that many bytes, `/count` the number of bytes in the body,
 * `/to?URL` a redirect.
 */
export class Web implements AsyncDisposable {
  /** requested addresses, such as `https://npm.test/npm/test-words` */
  readonly seen: string[] = [];
  readonly #options: WebOptions;
  readonly #servers: readonly Bun.Server<undefined>[];

  constructor(options: WebOptions) {
    this.#options = options;
    const { certificate: cert, key } = options.certified;
    const common = { idleTimeout: 0, fetch: (request: Request) => this.#answer(request) };
    this.#servers = options.addresses.flatMap((hostname) => [
      Bun.serve({ ...common, hostname, port: 80 }),
      Bun.serve({ ...common, hostname, port: 443, tls: { cert, key } }),
    ]);
  }

  /** Requests for paths under a name until now. */
  requestsTo(name: string): readonly string[] {
    return this.seen.filter((url) => new URL(url).hostname === name);
  }

  async #answer(request: Request): Promise<Response> {
    const url = new URL(request.url);
    this.seen.push(request.url);
    const [, folder = "", ...rest] = decodeURIComponent(url.pathname).split("/");
    const path = rest.join("/");
    if (folder === "git") return await this.#options.git.answer(request, path);
    if (folder === "bytes") return new Response(zeros(Number(path)), { headers: { "content-length": path } });
    if (folder === "count") return Response.json({ bytes: await countOf(request.body) });
    if (folder === "to") return Response.redirect(url.search.slice(1));
    const file = this.#options.folders[folder]?.[path];
    if (file === undefined) return new Response("no such file", { status: 404 });
    if (typeof file === "string") return new Response(file, { headers: { "content-type": "text/html" } });
    return new Response(new Uint8Array(file));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#servers.map((server) => server.stop(true)));
  }
}

/** That many bytes, produced as they are read. */
export function zeros(total: number): ReadableStream<Uint8Array> {
  let left = total;
  return new ReadableStream({
    pull(controller) {
      const size = Math.min(left, CHUNK_BYTES);
      left -= size;
      if (size > 0) controller.enqueue(new Uint8Array(size));
      if (left === 0) controller.close();
    },
  });
}

async function countOf(body: ReadableStream<Uint8Array> | null): Promise<number> {
  let count = 0;
  for await (const chunk of body ?? []) count += (chunk as Uint8Array).length;
  return count;
}
