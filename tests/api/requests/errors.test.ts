import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { JSON_NAMES_COUNT_MAX } from "../../../src/api/body/json-structure.ts";
import { SCOPES } from "../../../src/domain/scope.ts";
import { Api, errorOf } from "../../support/api/api.ts";
import { contreeSamples } from "../../support/api/contree-samples.ts";
import { MCP_SAMPLES } from "../../support/api/mcp-samples.ts";
import { OPEN, type Sample, SPAWN, samples, UNKNOWN_UUID } from "../../support/api/samples.ts";

const own: Record<string, string> = {};
const SAMPLES = [...samples(own), ...contreeSamples(own), ...MCP_SAMPLES];
const named = (list: readonly Sample[]) => list.map((sample) => [`${sample.method} ${sample.path}`, sample] as const);

let api: Api;
/** allows every request of the matrix */
let token: string;

beforeAll(async () => {
  api = await Api.start();
  token = await api.issue("alice", ["*", "operator"]);
  own["image"] = await api.addImage([[{ path: "f", type: "f", content: "x" }]]);
  own["doomed"] = await api.addImage([[{ path: "f", type: "f", content: "z" }]]);
  await api.addImage([[{ path: "f", type: "f", content: "y" }]], { tag: "matrix" });
  own["operation"] = (await api.call("POST", "/v1/instances", { json: SPAWN })).json.uuid;
  own["instance"] = own["operation"] as string;
  own["sandbox"] = (await api.call("POST", "/v1/sandboxes", { json: OPEN })).json.uuid;
  own["doomedSandbox"] = (await api.call("POST", "/v1/sandboxes", { json: OPEN })).json.uuid;
  own["file"] = (await api.call("POST", "/v1/files", { body: "matrix" })).json.uuid;
});
afterAll(() => api[Symbol.asyncDispose]());

const fill = (sample: Sample, uuid: string) => sample.path.replace("{uuid}", uuid);
const bodyOf = ({ json, body }: Sample) => ({
  ...(json === undefined ? {} : { json }),
  ...(body === undefined ? {} : { body }),
});
const askedMethod = ({ method, isEndless }: Sample): string => (isEndless ? "HEAD" : method);
const call = (sample: Sample, uuid: string, token: string | null) =>
  api.call(askedMethod(sample), fill(sample, uuid), { ...bodyOf(sample), token });

/** HEAD answers have no body to hold the error value. */
async function expectError(
  sample: Sample,
  answer: Awaited<ReturnType<typeof call>>,
  code: Parameters<typeof errorOf>[1],
  status: number,
) {
  if (askedMethod(sample) === "HEAD") expect(answer.status).toBe(status);
  else errorOf(answer, code);
}

/** The route of a sample, in the spelling of `routeName`. */
const sampledRoute = ({ method, path, route = path }: Sample): string =>
  `${method} ${route.replace(/\?.*/, "").replaceAll(/\/\d+/g, "/{number}")}`;
const routeName = ({ method, path }: { readonly method: string; readonly path: string }): string =>
  `${method} ${path.replace(/:\w+/, "{uuid}").replaceAll(/:\w+/g, "{number}")}`;

test("the matrix has every route", () => {
  const covered = new Set(SAMPLES.map(sampledRoute));
  for (const route of api.parts.routes.filter(({ scope }) => scope !== null)) {
    expect(covered).toContain(routeName(route));
  }
});

describe.each(named(SAMPLES))("%s", (_name, sample) => {
  // spec: auth.401
  test('"A missing or invalid token yields 401"', async () => {
    for (const token of [null, "", "x", "a.b.c", `${api.token}x`]) {
      const answer = await call(sample, UNKNOWN_UUID, token);
      await expectError(sample, answer, "unauthorized", 401);
      expect(answer.headers.get("www-authenticate")).toStartWith("Bearer");
    }
  });

  const { scope } = sample;
  // spec: auth.403
  test('"A token without sufficient permissions yields 403"', async () => {
    if (scope === null) return;
    // `*` is all scopes but that of operators.
    const others = [...SCOPES.filter((other) => other !== scope), ...(scope === "operator" ? ["*"] : [])];
    await expectError(sample, await call(sample, UNKNOWN_UUID, await api.issue("alice", others)), "forbidden", 403);
  });

  test("its own scope is enough", async () => {
    const answer = await call(sample, UNKNOWN_UUID, await api.issue("alice", [scope ?? "files:read"]));
    expect([401, 403]).not.toContain(answer.status);
  });

  if (sample.object !== undefined) {
    const { object } = sample;
    // spec: errors.404
    test("an object of another account is 404, like one that does not exist", async () => {
      const foreign = await call(sample, own[object] ?? "", api.foreignToken);
      await expectError(sample, foreign, "not_found", 404);
      const unknown = await call(sample, UNKNOWN_UUID, api.token);
      await expectError(sample, unknown, "not_found", 404);
      expect(foreign.text.replaceAll(own[object] ?? "", "")).toBe(unknown.text.replaceAll(UNKNOWN_UUID, ""));
    });

    // spec: errors.validation_error, errors.400, errors.shape
    test('"validation_error is used for … a malformed image UUID"', async () => {
      for (const uuid of [
        "x",
        "0197a1d0",
        `${UNKNOWN_UUID}0`,
        "..%2f..%2fetc",
        "%00",
        "%zz",
        "%ff",
        UNKNOWN_UUID.replace("-", ""),
      ]) {
        await expectError(sample, await call(sample, uuid, api.token), "validation_error", 400);
      }
    });

    test("an identifier may be in upper case", async () => {
      if (sample.method === "DELETE" && object === "operation") return;
      const answer = await call(sample, (own[object] ?? "").toUpperCase(), api.token);
      // The instance waits: it has no process yet, and no connection is upgraded.
      if (sample.path.endsWith("/attach")) return;
      if (answer.status === 404) expect(answer.json.details).toEqual({ spid: 1 });
      else expect(answer.status).not.toBe(400);
    });
  }
});

const JSON_SAMPLES = SAMPLES.filter(({ json }) => json !== undefined);

/** The request is valid. The instance and the sandbox do not run, which only a checkpoint detects after its request. */
function expectTaken({ path, object }: Sample, { status }: { readonly status: number }): void {
  // The appliance has no listener for ports of sandboxes.
  if (path.endsWith("/links")) expect(status).toBe(403);
  else if (object === "instance") expect([202, 409, 425]).toContain(status);
  else if (object === "sandbox") expect([200, 409]).toContain(status);
  else expect(status).toBeLessThan(300);
}

describe.each(named(JSON_SAMPLES))("body of %s", (_name, sample) => {
  const send = (
    body: string | Uint8Array<ArrayBuffer>,
    headers: Record<string, string> = { "content-type": "application/json" },
  ) => api.call(sample.method, fill(sample, own[sample.object ?? "image"] ?? ""), { body, headers, token });

  // spec: service.json
  test.each(["", "{", "nul", "'a'", '{"a":1,}', "\u0000", "[", "{}x"])("%j is not JSON", async (body) => {
    expect(errorOf(await send(body), "validation_error").message).toBe("the body must be valid JSON");
  });

  test.each(["null", "[]", "1", '"a"', "true"])("%s is not an object", async (body) => {
    errorOf(await send(body), "validation_error");
  });

  test("bytes that are not UTF-8, and excessive nesting", async () => {
    errorOf(await send(Uint8Array.from([0x22, 0xff, 0x22])), "validation_error");
    errorOf(await send("[".repeat(900_000)), "validation_error");
    errorOf(await send(`{"a":`.repeat(100_000)), "validation_error");
  });

  test("more names than a body may have are refused, also where none of them has a meaning", async () => {
    const names = Array.from({ length: JSON_NAMES_COUNT_MAX }, (_, index) => [`n${index}`, 0]);
    const error = errorOf(
      await send(JSON.stringify({ ...(sample.json as object), unknown: Object.fromEntries(names) })),
      "validation_error",
    );
    expect(error.details["limit"]).toBe(JSON_NAMES_COUNT_MAX);
  });

  test("a field that is nested deeply is refused like any other wrong value", async () => {
    const nested = `${"[".repeat(200_000)}${"]".repeat(200_000)}`;
    for (const name of Object.keys(sample.json as object)) {
      const rest = JSON.stringify({ ...(sample.json as object), [name]: undefined }).slice(1, -1);
      const body = `{"${name}":${nested}${rest === "" ? "" : `,${rest}`}}`;
      expect({ name, error: errorOf(await send(body), "validation_error").error }).toMatchObject({ name });
    }
  });

  // spec: service.json
  test("a form is not a JSON body; JSON without a content type or with a character set is one", async () => {
    errorOf(await send("a=b", { "content-type": "application/x-www-form-urlencoded" }), "validation_error");
    const answer = await send(JSON.stringify(sample.json), { "content-type": "Application/JSON; charset=utf-8" });
    expectTaken(sample, answer);
  });

  test("a body over the limit is 413 in our shape, with and without a length", async () => {
    const route = api.parts.routes.find((candidate) => routeName(candidate) === sampledRoute(sample));
    const size = (route?.bodyBytesMax ?? 0) + 1;
    errorOf(await send(" ".repeat(size)), "payload_too_large");
    const stream = new ReadableStream<Uint8Array>({
      start(controller) {
        for (let left = size; left > 0; left -= 1_048_576)
          controller.enqueue(new Uint8Array(Math.min(left, 1_048_576)).fill(32));
        controller.close();
      },
    });
    const answer = await api.call(sample.method, fill(sample, own[sample.object ?? "image"] ?? ""), {
      token,
      body: stream,
      headers: { "content-type": "application/json" },
    });
    errorOf(answer, "payload_too_large");
  });

  test("a chunked body is accepted", async () => {
    const stream = new Blob([JSON.stringify(sample.json)]).stream();
    const answer = await api.call(sample.method, fill(sample, own[sample.object ?? "image"] ?? ""), {
      token,
      body: stream,
      headers: { "content-type": "application/json" },
    });
    expectTaken(sample, answer);
  });

  test("unknown fields are ignored", async () => {
    const extra = { ...(sample.json as object), unknown: { deep: [1] }, __proto__: null, constructor: 1 };
    const answer = await api.call(sample.method, fill(sample, own[sample.object ?? "image"] ?? ""), {
      json: extra,
      token,
    });
    expectTaken(sample, answer);
  });
});

describe('"422 Invalid path"', () => {
  const paths = ["relative", "", "/a/../b", "/a%00b", `/${"a".repeat(256)}`, `/${"a/".repeat(2048)}`];
  // spec: errors.422
  test.each(paths)("%j", async (path) => {
    const image = own["image"];
    for (const what of ["list", "download"]) {
      errorOf(await api.call("GET", `/v1/inspect/${image}/${what}?path=${path}`), "invalid_path");
    }
    expect((await api.call("HEAD", `/v1/inspect/${image}/?path=${path}`)).status).toBe(422);
  });

  // spec: errors.422, instances.cwd, instances.files
  test("of a working directory and of an input file", async () => {
    errorOf(await api.call("POST", "/v1/instances", { json: { ...SPAWN, cwd: "relative" } }), "invalid_path");
    const files = { relative: { uuid: own["file"] } };
    errorOf(await api.call("POST", "/v1/instances", { json: { ...SPAWN, files } }), "invalid_path");
  });
});

test("an unexpected failure is a 500 without details, which the log has", async () => {
  const lines: unknown[] = [];
  const log = {
    debug: () => undefined,
    info: () => undefined,
    warn: () => undefined,
    error: (message: string, fields?: Record<string, unknown>) => void lines.push({ message, ...fields }),
    child: () => log,
  };
  await using broken = await Api.start({ log, verifyToken: () => Promise.reject(new Error("secret detail")) });
  const response = await fetch(`${broken.url}/v1/images`, { headers: { authorization: "Bearer x" } });
  expect(response.status).toBe(500);
  const text = await response.text();
  expect(JSON.parse(text).error).toBe("internal_error");
  expect(text).not.toContain("secret");
  expect(lines).toHaveLength(1);
  expect(lines[0]).toMatchObject({ request: response.headers.get("x-request-id"), status: 500, path: "/v1/images" });
});
