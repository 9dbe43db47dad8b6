import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { connect } from "node:net";
import { Elysia } from "elysia";
import { elysiaPathOf, pathOf, RouteTable, unknownRoute } from "../../../src/api/elysia-gaps.ts";

/** The behaviour of Elysia that each workaround changes. When one of these tests fails, its workaround can go. */
const app = new Elysia({ strictPath: true, systemRouter: false })
  .get("/items/:id", ({ params }) => `get ${params.id}`)
  .head("/items/:id", () => new Response(null, { headers: { "x-own": "head", "content-length": "12345" } }))
  .post("/items/import", () => "imported")
  .get("/query", ({ query }) => Buffer.from(query["path"] ?? "", "latin1").toString("hex"))
  .post("/body", { hidden: true }, { beforeHandle: () => new Response(null, { status: 403 }), parse: "json" });

let url = "";
beforeAll(() => {
  app.listen({ port: 0, hostname: "127.0.0.1" });
  url = `http://127.0.0.1:${app.server?.port}`;
});
afterAll(async () => {
  await app.stop(true);
});

async function statusLine(request: string): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const socket = connect(Number(new URL(url).port), "127.0.0.1", () => socket.write(request));
  socket.once("data", (chunk) => resolve(String(chunk).split("\r\n")[0] ?? ""));
  socket.on("error", reject);
  const line = await promise;
  socket.destroy();
  return line;
}

describe("Elysia without our workarounds", () => {
  test("runs GET for HEAD of a path with parameters", async () => {
    const answer = await fetch(`${url}/items/7`, { method: "HEAD" });
    expect(answer.headers.get("x-own")).toBeNull();
    expect(answer.headers.get("content-length")).toBe(String("get 7".length));
  });

  test("takes the path of a URL with a short host from the wrong offset", async () => {
    expect(await statusLine("GET /items/7 HTTP/1.1\r\nHost: pi\r\n\r\n")).toContain("404");
    expect(await statusLine("GET /items/7 HTTP/1.1\r\nHost: localhost\r\n\r\n")).toContain("200");
  });

  test("answers an unknown method with 404, without Allow", async () => {
    const answer = await fetch(`${url}/items/7`, { method: "PUT" });
    expect([answer.status, answer.headers.get("allow")]).toEqual([404, null]);
  });

  test("lets a fixed path fall through to one with a parameter", async () => {
    expect(await (await fetch(`${url}/items/import`)).text()).toBe("get import");
  });

  test("loses bytes of a query that are not UTF-8", async () => {
    expect(await (await fetch(`${url}/query?path=%ff`)).text()).not.toBe("ff");
  });

  test("makes a response again when a hook passes its context on", async () => {
    const answer = new Response("answer");
    const see = (context: unknown) => expect(context).toBeDefined();
    const passing = new Elysia().onRequest((context) => see(context)).get("/own", () => answer);
    expect(await passing.handle(new Request("http://localhost/own"))).not.toBe(answer);
  });

  test("reads the body before it refuses a caller", async () => {
    const init = { method: "POST", body: "{bad", headers: { "content-type": "application/json" } };
    expect((await fetch(`${url}/body`, init)).status).toBe(400);
  });
});

describe("the workarounds", () => {
  const table = new RouteTable([
    { method: "GET", path: "/items/:id" },
    { method: "HEAD", path: "/items/:id" },
    { method: "POST", path: "/items/import" },
    { method: "GET", path: "/plain.txt" },
  ]);

  test("a route is found by method and path, and HEAD falls back to GET", () => {
    expect(table.find("HEAD", "/items/7")).toEqual({
      route: { method: "HEAD", path: "/items/:id" },
      params: { id: "7" },
    });
    expect(table.find("HEAD", "/plain.txt")?.route.method).toBe("GET");
    expect(table.find("GET", "/items/%41%zz")?.params).toEqual({ id: "%41%zz" });
    expect(table.find("GET", "/items/%41")?.params).toEqual({ id: "A" });
    expect([table.find("GET", "/plainxtxt"), table.find("GET", "/items/a/b")]).toEqual([null, null]);
  });

  test("a fixed path does not match a path with a parameter", () => {
    expect(table.find("GET", "/items/import")).toBeNull();
    expect([table.isShadowed("GET", "/items/import"), table.isShadowed("POST", "/items/import")]).toEqual([
      true,
      false,
    ]);
    expect(table.isShadowed("GET", "/items/7")).toBe(false);
    expect(table.allowed("/items/import")).toEqual(["POST"]);
  });

  test("the error for an unknown method lists the known ones", () => {
    expect(unknownRoute(table, "/items/7").body()).toMatchObject({
      error: "method_not_allowed",
      details: { allow: ["GET", "HEAD"] },
    });
    expect(unknownRoute(table, "/nothing").code).toBe("not_found");
  });

  test("the path of a URL is distinguished from what Elysia reads as the path", () => {
    for (const [whole, path, taken] of [
      ["http://localhost/a/b?c=/d", "/a/b", "/a/b"],
      ["http://pi/a/b?c", "/a/b", "/b"],
      ["http://localhost/a#b?c", "/a", "/a#b"],
    ] as const) {
      expect([pathOf(whole), elysiaPathOf(whole)]).toEqual([path, taken]);
    }
  });
});
