import { join } from "node:path";
import { DIE_WITH_PARENT } from "../../../src/system/exec.ts";

/** The answer of a server of `serve.ts`. */
export type Peer =
  | { readonly kind: "file"; readonly path: string }
  | { readonly kind: "operation"; readonly dataDir: string; readonly operation: unknown }
  | {
      readonly kind: "bytes";
      readonly dataDir: string;
      /** in base64 */
      readonly body: string;
      readonly headers: Readonly<Record<string, string>>;
    };

/** A server that runs. Disposal ends it. */
export interface PeerServer extends AsyncDisposable {
  readonly url: string;
  readonly pid: number;
}

export async function startPeer(peer: Peer): Promise<PeerServer> {
  return await startServer([process.execPath, join(import.meta.dir, "serve.ts")], JSON.stringify(peer));
}

/** Starts a program that writes its address as its first line. @throws Error when it ends instead */
export async function startServer(argv: readonly string[], stdin = ""): Promise<PeerServer> {
  const child = Bun.spawn([...DIE_WITH_PARENT, ...argv], {
    stdin: Buffer.from(stdin),
    stdout: "pipe",
    stderr: "inherit",
  });
  const decoder = new TextDecoder();
  let line = "";
  for await (const chunk of child.stdout) {
    line += decoder.decode(chunk, { stream: true });
    if (line.endsWith("\n")) break;
  }
  if (!line.endsWith("\n")) throw new Error(`${argv.join(" ")} ended with ${await child.exited}`);
  return {
    url: line.trim(),
    pid: child.pid,
    async [Symbol.asyncDispose]() {
      child.kill("SIGKILL");
      await child.exited;
    },
  };
}
