/** The least of a server, of Bun alone or of Elysia, which `bare-program.ts` builds. It writes its address. */
import { argv, stdout } from "node:process";

const LISTEN = { port: 0, hostname: "127.0.0.1" };

/** One server of Elysia that takes what an instance is started with, and answers as short. */
async function elysia(): Promise<string> {
  // Only here: the other server starts without it.
  const { Elysia } = await import("elysia");
  const app = new Elysia()
    .post("/v1/instances", ({ body }) => ({ uuid: String((body as { image?: unknown }).image) }))
    .get("/v1/operations/:id", ({ params: { id } }) => ({ id, status: "SUCCESS" }));
  app.listen(LISTEN);
  return `http://127.0.0.1:${app.server?.port}`;
}

function bun(): string {
  return Bun.serve({ ...LISTEN, fetch: () => new Response("ok") }).url.href;
}

stdout.write(`${argv.includes("elysia") ? await elysia() : bun()}\n`);
