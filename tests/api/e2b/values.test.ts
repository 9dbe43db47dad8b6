/** Values of any kind in the paths, queries and bodies of every route of the API: each has an answer, and none is a failure. */

import { afterAll, beforeAll, beforeEach, expect } from "bun:test";
import { createE2bApp } from "../../../src/api/e2b/app.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import { heldTest } from "../../support/api/program.ts";
import { rawAnswer } from "../../support/api/raw.ts";
import { E2B_SAMPLES, type E2bSample, type OwnObjects } from "../../support/e2b/samples.ts";
import { E2bScene } from "../../support/e2b/scene.ts";

let scene: E2bScene;
let own: OwnObjects;
beforeAll(async () => {
  scene = await E2bScene.start();
  const { id } = await scene.create();
  const { templateID, buildID } = (await scene.call("POST", "/v3/templates", { json: { name: "values" } })).json;
  own = { sandbox: id, template: templateID, build: buildID, snapshot: templateID, image: templateID };
});
beforeEach(async () => {
  // Its files are saved, so that no request waits for a copy of them.
  expect([204, 409]).toContain((await scene.call("POST", `/sandboxes/${own.sandbox}/pause`)).status);
});
afterAll(async () => {
  expect(scene.errors).toEqual([]);
  await scene[Symbol.asyncDispose]();
});

const TEXTS = [
  ...[
    "%",
    "%zz",
    "%00",
    "%ff",
    "%2e%2e",
    "..%2f..%2fx",
    "__proto__",
    "constructor",
    "a:b:c",
    "bob%2Fbase",
    "%252F",
    "-0",
    "1e9",
  ],
  ...[
    "%0d%0aX:1",
    "a".repeat(5000),
    "%f0%9f%98%80",
    "%ed%a0%80",
    "9".repeat(40),
    "0".repeat(32),
    "00000000-0000-0000-0000-000000000000",
  ],
];
const VALUES = [
  ...[
    null,
    true,
    0,
    -1,
    1.5,
    1e308,
    2 ** 53,
    "",
    "x",
    "\0",
    "\ud800",
    "a".repeat(70_000),
    [],
    [null],
    ["\0"],
    [[]],
    {},
    { a: null },
  ],
  ...[{ "": "" }, { "a\0": "b" }, { a: { b: {} } }, [{}], "__proto__", JSON.parse('{"__proto__":"x"}')],
];

type Schema = { readonly properties?: Readonly<Record<string, Schema>>; readonly anyOf?: readonly Schema[] };
/** Names of all properties of an object, also of the objects in it, as paths. */
function fieldsOf({ properties = {}, anyOf = [] }: Schema): string[][] {
  const inside = Object.entries(properties).flatMap(([name, schema]) => [
    [name],
    ...fieldsOf(schema).map((path) => [name, ...path]),
  ]);
  return [...inside, ...anyOf.flatMap(fieldsOf)];
}

function withField(value: unknown, [name, ...rest]: readonly string[], field: unknown): unknown {
  if (name === undefined) return field;
  const object = typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
  return { ...object, [name]: withField(object[name], rest, field) };
}

const hooksOf = ({ method, route }: E2bSample) => {
  const { service } = scene.api.parts;
  const app = createE2bApp({ service, settings: {}, accounts: new Accounts() } as never);
  return app.routes.find((each) => each.method === method && each.path === route)?.hooks as {
    readonly body?: Schema;
    readonly query?: Schema;
  };
};
const first = ({ route, path, names: [kind = "sandbox"] = [] }: E2bSample, objects: OwnObjects) =>
  path?.(objects) ?? route.replace(/:\w+/, objects[kind]);

function expectAnswer(what: unknown, status: number, text: string): void {
  const isShaped = status < 300 || status === 304 || /"code":\d{3}/.test(text);
  expect([what, status, status < 500 && isShaped ? "an answer" : text]).toEqual([what, status, "an answer"]);
}

heldTest.each(E2B_SAMPLES.map((sample) => [`${sample.method} ${sample.route}`, sample] as const))(
  "%s has an answer to any value",
  async (_, sample) => {
    const { body, query } = hooksOf(sample);
    const headers = { "X-API-Key": scene.key };
    const ask = async (path: string) => {
      if (body === undefined) return await rawAnswer(scene.url, sample.method, path, headers);
      return await scene.call(sample.method, path, { json: sample.json?.(own) ?? {} });
    };
    for (const text of TEXTS) {
      for (const kind of sample.names ?? []) {
        const { status, text: answer } = await ask(first(sample, { ...own, [kind]: text }));
        expectAnswer([kind, text], status, answer);
      }
      for (const [name = ""] of fieldsOf(query ?? {})) {
        const path = `${first(sample, own).split("?")[0]}?${name}=${text}`;
        const { status, text: answer } = await ask(path);
        expectAnswer([name, text], status, answer);
      }
    }
    if (body === undefined) return;
    for (const path of [[], ...fieldsOf(body)]) {
      for (const value of VALUES) {
        const json = withField(sample.json?.(own) ?? {}, path, value);
        const { status, text } = await scene.call(sample.method, first(sample, own), { json });
        expectAnswer([path, value], status, text);
      }
    }
  },
);
