import type { Reclaimed } from "../../domain/reclaimed.ts";
import type { Log } from "../../log.ts";
import { isSocketPath, serveLocally } from "./local-server.ts";

/** Time limit of a command: removing the layers of a long chain takes minutes on a slow disk. */
const CALL_MS_MAX = 3_600_000;

/** Commands of the operator to a running daemon. They affect all accounts, so no token allows them. */
export interface OperatorCommands {
  gc(dryRun: boolean): Promise<Reclaimed>;
}

/**
 * Listens for the operator's commands on a socket in the data directory, which only its owner can enter, until it is
 * disposed. When the path is too long for a socket, it logs a warning and does not listen.
 */
export async function listenForOperator(path: string, commands: OperatorCommands, log: Log): Promise<AsyncDisposable> {
  if (!isSocketPath(path)) {
    log.warn("the data directory's path is too long for a control socket: stop the appliance for `coppice gc`", {
      path,
    });
    return new AsyncDisposableStack();
  }
  return await serveLocally(path, {
    async fetch(request) {
      const { pathname, searchParams } = new URL(request.url);
      if (request.method !== "POST" || pathname !== "/gc") return new Response(null, { status: 404 });
      return Response.json(await commands.gc(searchParams.get("dry_run") === "true"));
    },
    error(error) {
      log.error("an operator command failed", { error });
      return Response.json({ message: error.message }, { status: 500 });
    },
  });
}

/** Asks the running daemon to reclaim space; null when none listens on `path`. */
export async function askForGc(path: string, dryRun: boolean): Promise<Reclaimed | null> {
  const init = { method: "POST", unix: path, signal: AbortSignal.timeout(CALL_MS_MAX) };
  const response = await fetch(`http://localhost/gc?dry_run=${dryRun}`, init).catch((error: NodeJS.ErrnoException) => {
    if (NOBODY_LISTENS.has(error.code ?? "")) return null;
    throw error;
  });
  if (response === null) return null;
  const body = (await response.json()) as Reclaimed & { message?: string };
  if (!response.ok) throw new Error(`the appliance failed to reclaim space: ${body.message}`);
  return body;
}

const NOBODY_LISTENS: ReadonlySet<string> = new Set([
  "ENOENT",
  "ECONNREFUSED",
  "ConnectionRefused",
  "FailedToOpenSocket",
]);
