/** The comparison side of the HTTP rows, in a process of its own: prints its address and serves until it is killed. */
import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { authenticate, authorize } from "../../src/api/auth.ts";
import { tokenVerifier } from "../../src/api/tokens.ts";
import { openDatabase } from "../../src/db/database.ts";
import { Operation } from "../../src/domain/operation.ts";
import { dataLayout } from "../../src/storage/layout.ts";
import { TokenKeys } from "../../src/storage/token-keys.ts";

const [kind = "", path = "", operation = "{}"] = process.argv.slice(2);

if (kind === "file") {
  const server = Bun.serve({ port: 0, hostname: "127.0.0.1", fetch: () => new Response(Bun.file(path)) });
  process.stdout.write(`${server.url.href}\n`);
} else {
  // The same keys, tokens and schema; the answer is at hand.
  const layout = dataLayout(path);
  const db = openDatabase(layout.database);
  const verify = tokenVerifier(db, await TokenKeys.open(layout.keys), Date.now);
  const answer = JSON.parse(operation) as never;
  const app = new Elysia({ strictPath: true, systemRouter: false }).get(
    "/v1/operations/:id",
    async ({ request }) => {
      authorize(await authenticate(request, verify), "operations:read");
      return answer;
    },
    { params: Type.Object({ id: Type.String() }), response: Operation },
  );
  app.listen({ port: 0, hostname: "127.0.0.1" });
  process.stdout.write(`http://127.0.0.1:${app.server?.port}/\n`);
}
