import { join } from "node:path";

export interface BareServer extends AsyncDisposable {
  readonly url: string;
  readonly pid: number;
}

/** Starts `bare-server.ts` and waits for its address. */
export async function startBareServer(args: readonly string[]): Promise<BareServer> {
  const child = Bun.spawn([process.execPath, join(import.meta.dir, "bare-server.ts"), ...args], {
    env: { ...process.env, NODE_ENV: "production" },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "inherit",
  });
  const { value } = await child.stdout.getReader().read();
  const url = new TextDecoder().decode(value ?? new Uint8Array()).trim();
  if (url === "") throw new Error("the bare server does not start");
  return {
    url,
    pid: child.pid,
    [Symbol.asyncDispose]: async () => {
      child.kill("SIGKILL");
      await child.exited;
    },
  };
}
