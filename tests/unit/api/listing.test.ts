import { expect, test } from "bun:test";
import { listing } from "../../../src/api/content/inspection.ts";
import { mappedItems } from "../../../src/api/output/json-stream.ts";
import type { ByteString } from "../../../src/domain/tree/guest-path.ts";
import type { Entry } from "../../../src/domain/tree/listing.ts";
import type { InspectUseCases } from "../../../src/service/inspection/inspect.ts";
import type { Principal } from "../../../src/service/parts.ts";

/** The answer to a request for a directory whose entries were read at once. */
async function answer(names: readonly string[], accept = "*/*") {
  let isHeld = true;
  const held = {
    [Symbol.dispose]: () => {
      isHeld = false;
    },
  };
  const inspect = { list: async () => ({ entries: names.map((name) => ({ name }) as Entry), held }) };
  const asked = {
    request: new Request("http://a.example/list", { headers: { accept } }),
    principal: {} as Principal,
    params: { uuid: "image" },
    query: { path: "/a" as ByteString },
  };
  const response = await listing(inspect as unknown as InspectUseCases, asked, (path, entries) => ({
    path,
    items: mappedItems(entries, ({ name }) => ({ name })),
  }));
  return { response, isHeld: () => isHeld };
}

const namesOf = (count: number, characters: number) =>
  Array.from({ length: count }, (_, index) => `${index}`.padStart(characters, "x"));

test("a short listing is answered at once", async () => {
  const names = namesOf(256, 20);
  const { response, isHeld } = await answer(names);
  expect(isHeld()).toBe(false);
  expect(await response.json()).toEqual({ path: "/a", items: names.map((name) => ({ name })) });
});

test("a listing of more than 64 KiB is sent in pieces, and holds its place until it has been read", async () => {
  const names = namesOf(256, 4096);
  const { response, isHeld } = await answer(names);
  expect(isHeld()).toBe(true);
  const sizes: number[] = [];
  const texts: string[] = [];
  for await (const chunk of response.body as unknown as AsyncIterable<Uint8Array>) {
    sizes.push(chunk.byteLength);
    texts.push(Buffer.from(chunk).toString("utf8"));
  }
  expect(JSON.parse(texts.join(""))).toEqual({ path: "/a", items: names.map((name) => ({ name })) });
  expect(Math.max(...sizes)).toBeLessThan(131_072);
  expect(isHeld()).toBe(false);
});

test("entries that were read at once are also sent in lines", async () => {
  const { response } = await answer(["b", "c"], "application/x-ndjson");
  expect(await response.text()).toBe('{"name":"b"}\n{"name":"c"}\n{"type":"end","path":"/a"}\n');
});
