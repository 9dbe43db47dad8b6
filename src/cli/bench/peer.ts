import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { authenticate, authorize } from "../../api/auth.ts";
import { Operation } from "../../api/v1/schema/operations.ts";
import { openDatabase } from "../../db/database.ts";
import { tokenVerifier } from "../../service/tokens.ts";
import { dataLayout } from "../../storage/layout.ts";
import { TokenKeys } from "../../storage/token-keys.ts";

/** What the appliance's answers are compared with: the same by the least that can give it. Gives its address. */
export type Peer =
  | { readonly kind: "file"; readonly path: string }
  | { readonly kind: "route"; readonly dataDir: string; readonly operation: unknown };

export async function servePeer(peer: Peer): Promise<string> {
  return peer.kind === "file" ? serveFile(peer.path) : await serveRoute(peer.dataDir, peer.operation);
}

function serveFile(path: string): string {
  return Bun.serve({ port: 0, hostname: "127.0.0.1", fetch: () => new Response(Bun.file(path)) }).url.href;
}

/** The same keys, tokens and schema; the answer is at hand. */
async function serveRoute(dataDir: string, operation: unknown): Promise<string> {
  const layout = dataLayout(dataDir);
  const db = openDatabase(layout.database);
  const verify = tokenVerifier(db, await TokenKeys.open(layout.keys), Date.now);
  const app = new Elysia({ strictPath: true, systemRouter: false }).get(
    "/v1/operations/:id",
    async ({ request }) => {
      authorize((await authenticate(request, verify)).principal, "operations:read");
      return operation as never;
    },
    { params: Type.Object({ id: Type.String() }), response: Operation },
  );
  app.listen({ port: 0, hostname: "127.0.0.1" });
  return `http://127.0.0.1:${app.server?.port}/`;
}
