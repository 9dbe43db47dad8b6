import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { connect } from "node:net";
import { Api } from "../../support/api/api.ts";

const ANSWER_MS_MAX = 10_000;

let api: Api;
let image = "";
beforeAll(async () => {
  api = await Api.start();
  image = await api.addImage([[{ path: "f", type: "f", content: "x" }]]);
});
afterAll(() => api[Symbol.asyncDispose]());

describe("on the wire", () => {
  const answerTo = async (request: string): Promise<string> => {
    const { promise, resolve, reject } = Promise.withResolvers<string>();
    let text = "";
    const socket = connect(Number(new URL(api.url).port), "127.0.0.1", () => socket.write(request));
    socket.setTimeout(ANSWER_MS_MAX, () => socket.destroy(new Error(`no answer to ${request}`)));
    socket.on("data", (chunk) => {
      text += chunk;
    });
    socket.on("end", () => resolve(text));
    socket.on("error", reject);
    return await promise;
  };
  const headers = () => `Authorization: Bearer ${api.token}\r\nConnection: close\r\n`;

  test.each(["a", "pi", "nas", "host", "pi:80", "[::1]"])(
    "a path is the same under every name of the host: %j",
    async (host) => {
      for (const [request, status] of [
        ["GET /healthz", 200],
        [`GET /v1/inspect/${image}/list?path=/`, 200],
        [`HEAD /v1/inspect/${image}/?path=/f`, 200],
        ["GET /v1/operations/x", 400],
        ["GET /v1/nothing", 404],
        // The first segment is not part of the host.
        ["GET /ab/v1/images", 404],
        ["PUT /v1/images", 405],
      ] as const) {
        expect(await answerTo(`${request} HTTP/1.1\r\nHost: ${host}\r\n${headers()}\r\n`)).toStartWith(
          `HTTP/1.1 ${status} `,
        );
      }
      const body = "Content-Length: 1\r\n\r\nx";
      expect(await answerTo(`POST /v1/files HTTP/1.1\r\nHost: ${host}\r\n${headers()}${body}`)).toStartWith(
        "HTTP/1.1 201 ",
      );
    },
  );

  test.each([
    "/healthz",
    "/v1/images",
    "/v1/inspect/{image}/",
    "/v1/inspect/{image}/list?path=/",
    "/v1/files?uuid={file}",
  ])("HEAD has the header fields of GET: %s", async (pattern) => {
    const file = (await api.call("POST", "/v1/files", { body: "x" })).json.uuid;
    const path = pattern.replace("{image}", image).replace("{file}", file);
    const fields = async (method: string) =>
      (await answerTo(`${method} ${path} HTTP/1.1\r\nHost: localhost\r\n${headers()}\r\n`))
        .split("\r\n\r\n", 1)
        .flatMap((head) => head.split("\r\n"))
        .map((line) => line.replace(/^(date|x-request-id): .+$/i, "$1").toLowerCase())
        .sort();
    expect(await fields("HEAD")).toEqual(await fields("GET"));
  });

  test("and for HTTP/1.0 without a host, and before a fragment", async () => {
    const path = `/v1/inspect/${image}/list?path=/`;
    expect(await answerTo(`GET ${path} HTTP/1.0\r\n${headers()}\r\n`)).toStartWith("HTTP/1.1 200 ");
    const fragment = `GET /v1/images#part HTTP/1.1\r\nHost: localhost\r\n${headers()}\r\n`;
    expect(await answerTo(fragment)).toStartWith("HTTP/1.1 200 ");
  });
});
