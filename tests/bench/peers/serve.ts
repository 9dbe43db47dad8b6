/**
 * A server that gives the same answers as the appliance by the least that can, in a process of its own, as the appliance has
 * one. It reads what to serve from its standard input, and writes its address.
 */
import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { authenticate, authorize } from "../../../src/api/auth.ts";
import { Operation } from "../../../src/api/v1/schema/operations.ts";
import { openDatabase } from "../../../src/db/database.ts";
import type { Scope } from "../../../src/domain/scope.ts";
import { tokenVerifier } from "../../../src/service/tokens.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import { TokenKeys } from "../../../src/storage/token-keys.ts";
import type { Peer } from "./peer.ts";

const LISTEN = { port: 0, hostname: "127.0.0.1" };

/** Checks the token of a request as the appliance does, with its keys. */
async function checker(dataDir: string): Promise<(request: Request, scope: Scope) => Promise<void>> {
  const layout = dataLayout(dataDir);
  const verify = tokenVerifier(openDatabase(layout.database), await TokenKeys.open(layout.keys), Date.now);
  return async (request, scope) => authorize((await authenticate(request, verify)).principal, scope);
}

function serveFile(path: string): string {
  return Bun.serve({ ...LISTEN, fetch: () => new Response(Bun.file(path)) }).url.href;
}

/** One route of Elysia, with the same schema; the answer is at hand. */
async function serveOperation(dataDir: string, operation: unknown): Promise<string> {
  const check = await checker(dataDir);
  const app = new Elysia({ strictPath: true, systemRouter: false }).get(
    "/v1/operations/:id",
    async ({ request }) => {
      await check(request, "operations:read");
      return operation as never;
    },
    { params: Type.Object({ id: Type.String() }), response: Operation },
  );
  app.listen(LISTEN);
  return `http://127.0.0.1:${app.server?.port}/`;
}

/** The same bytes, whatever the path. */
async function serveBytes(dataDir: string, { body, headers }: { body: string; headers: Record<string, string> }) {
  const check = await checker(dataDir);
  const bytes = Buffer.from(body, "base64");
  const server = Bun.serve({
    ...LISTEN,
    async fetch(request) {
      await check(request, "images:read");
      return new Response(bytes, { headers });
    },
  });
  return server.url.href;
}

async function serve(peer: Peer): Promise<string> {
  if (peer.kind === "file") return serveFile(peer.path);
  return peer.kind === "operation"
    ? await serveOperation(peer.dataDir, peer.operation)
    : await serveBytes(peer.dataDir, peer);
}

process.stdout.write(`${await serve((await Bun.stdin.json()) as Peer)}\n`);
