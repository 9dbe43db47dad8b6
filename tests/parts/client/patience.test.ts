/** Requests of a client while its appliance is being restarted. */
import { afterEach, expect, test } from "bun:test";
import { answerOf, Client } from "../../../src/client/client.ts";
import { ResponseError, UnreachableError } from "../../../src/client/errors.ts";
import { errorReply, ScriptedAppliance } from "../../support/cli/cli.ts";
import { failureOf } from "../../support/failures.ts";
import { freePort } from "../../support/free-port.ts";

const LONG = { knownMs: 60_000, unknownMs: 60_000 };
const REQUEST = { image: "tag:x", command: "true" };
const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";

let owned = new AsyncDisposableStack();
afterEach(async () => {
  await owned.disposeAsync();
  owned = new AsyncDisposableStack();
});

/** A server that closes each connection when it has a request, and the first lines of those. */
function hangUp(port = 0) {
  const lines: string[] = [];
  const server = Bun.listen({
    hostname: "127.0.0.1",
    port,
    socket: {
      data: (socket, data) => {
        lines.push(data.toString().split(" HTTP")[0] ?? "");
        socket.terminate();
      },
    },
  });
  owned.defer(() => server.stop(true));
  return { lines, url: `http://127.0.0.1:${server.port}`, stop: () => server.stop(true) };
}

function scripted(patience = LONG) {
  const appliance = owned.use(new ScriptedAppliance());
  return { appliance, client: new Client({ url: appliance.environment["COPPICE_URL"] ?? "", token: "t", patience }) };
}

const adopting = () =>
  Response.json({ error: "unavailable", message: "it is opened", details: { reason: "adopting" } }, { status: 503 });

test("a request that nothing accepted is sent when something listens again", async () => {
  const port = await freePort();
  let refusals = 0;
  let server: Bun.Server<undefined> | null = null;
  const client = new Client({
    ...{ url: `http://127.0.0.1:${port}`, token: "t", patience: LONG },
    fetch: (url, init) =>
      fetch(url, init).catch((error: unknown) => {
        refusals += 1;
        server ??= Bun.serve({
          hostname: "127.0.0.1",
          port,
          fetch: () => Response.json({ uuid: ID }, { status: 201 }),
        });
        throw error;
      }),
  });
  owned.defer(() => server?.stop(true));
  expect(await answerOf(client.v1.instances.post(REQUEST))).toMatchObject({ uuid: ID });
  expect(refusals).toBe(1);
});

test("a request that is put off until its machine is opened is repeated with its body, whatever it changes", async () => {
  const { appliance, client } = scripted();
  appliance.answer = () => (appliance.seen.length < 3 ? adopting() : Response.json({ uuid: ID }, { status: 201 }));
  expect(await answerOf(client.v1.instances.post(REQUEST))).toMatchObject({ uuid: ID });
  expect(appliance.bodies("POST", "/instances")).toEqual([REQUEST, REQUEST, REQUEST]);
});

test("any other refusal, also of another server, is an answer", async () => {
  const { appliance, client } = scripted();
  for (const answer of [() => errorReply(503, "unavailable", "no room"), () => new Response("busy", { status: 503 })]) {
    appliance.answer = answer;
    expect(await failureOf(answerOf(client.v1.images.get()))).toBeInstanceOf(ResponseError);
  }
  expect(appliance.seen).toHaveLength(2);
});

test("of requests whose connection is lost, only those that read are repeated", async () => {
  const { lines, url } = hangUp();
  const client = new Client({ url, token: "t", patience: { knownMs: 0, unknownMs: 600 } });
  expect(await failureOf(answerOf(client.v1.instances.post(REQUEST)))).toBeInstanceOf(UnreachableError);
  expect(lines).toEqual(["POST /v1/instances"]);
  expect(await failureOf(answerOf(client.v1.images.get()))).toBeInstanceOf(UnreachableError);
  expect(lines.slice(1).length).toBeGreaterThan(1);
  expect(new Set(lines.slice(1))).toEqual(new Set(["GET /v1/images"]));
});

test("an appliance that was known is waited for longer than one that may not run", async () => {
  const { appliance, client } = scripted({ knownMs: 0, unknownMs: 60_000 });
  appliance.answer = () => Response.json([]);
  await answerOf(client.v1.images.get());
  appliance.answer = adopting;
  expect(await failureOf(answerOf(client.v1.images.get()))).toMatchObject({ status: 503 });
  expect(appliance.seen).toHaveLength(2);
  const nothing = new Client({ url: `http://127.0.0.1:${await freePort()}`, token: "t", patience: { unknownMs: 0 } });
  expect(await failureOf(answerOf(nothing.v1.images.get()))).toBeInstanceOf(UnreachableError);
});

test("a body that is a stream is sent once, and the caller's signal ends the wait", async () => {
  const { appliance, client } = scripted();
  appliance.answer = adopting;
  const body = new Response("content").body as ReadableStream<Uint8Array>;
  expect(await failureOf(client.call("POST", "/files", { body }))).toMatchObject({ status: 503 });
  expect(appliance.seen).toHaveLength(1);
  const stop = new AbortController();
  const reason = new Error("enough");
  appliance.answer = () => {
    stop.abort(reason);
    return adopting();
  };
  expect(await failureOf(client.call("GET", "/images", { signal: stop.signal }))).toBe(reason);
});
