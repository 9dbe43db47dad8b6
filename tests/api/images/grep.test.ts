import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { Api, errorOf } from "../../support/api/api.ts";
import type { LayerFixture } from "../../support/api/layers.ts";
import { seededRandom } from "../../support/random.ts";

const RAW = Buffer.from([0x62, 0xff]);
const latin = Buffer.from("caf\xe9 is not UTF-8\nplain\n", "latin1");
const numbered = Array.from({ length: 50_000 }, (_, index) => `line ${index + 1} ${"x".repeat(index % 40)}`);

const BASE: readonly LayerFixture[] = [
  { path: "etc", type: "d" },
  { path: "etc/conf", type: "f", content: "# needle one\nother\nNeedle two" },
  { path: "etc/gone", type: "f", content: "needle in a deleted file" },
  { path: "etc/empty", type: "f", content: "" },
  { path: "etc/link", type: "l", target: "conf" },
  { path: "log", type: "d" },
  { path: "log/app.log", type: "f", content: `${numbered.join("\n")}\nneedle at the end` },
  { path: "log/deep", type: "d" },
  { path: "log/deep/a.txt", type: "f", content: "a needle\r\n\n\nand another needle\n" },
  { path: "log/binary", type: "f", content: Buffer.concat([Buffer.from("needle\0"), Buffer.alloc(100)]) },
  { path: "log/sparse", type: "f", parts: [{ at: 1_048_576, bytes: Buffer.from("needle") }], size: 17_592_186_044_416 },
  { path: "log/latin", type: "f", content: latin },
  { path: Buffer.concat([Buffer.from("log/"), RAW]), type: "f", content: "raw needle" },
  { path: "log/long", type: "f", content: `${"y".repeat(200_000)}needle\n${"z".repeat(5000)} needle\n` },
];
const TOP: readonly LayerFixture[] = [
  { path: "etc", type: "d" },
  { path: "etc/gone", type: "w" },
];

let api: Api;
let image = "";
beforeAll(async () => {
  api = await Api.start();
  image = await api.addImage([BASE, TOP]);
});
afterAll(() => api[Symbol.asyncDispose]());

const grep = (query: Record<string, string> | [string, string][]) =>
  api.call("GET", `/v1/inspect/${image}/grep?${new URLSearchParams(query)}`);
type Match = { path: string; line: number; text: string };
const locations = ({ json }: { json: { matches: Match[] } }) => json.matches.map(({ path, line }) => `${path}:${line}`);

describe('"GET /inspect/{uuid}/grep"', () => {
  test("returns matching lines with path and number, without binary files and symlinks", async () => {
    const answer = await grep({ pattern: "needle" });
    expect(locations(answer)).toEqual([
      "/etc/conf:1",
      "/log/app.log:50001",
      "/log/b\ufffd:1",
      "/log/deep/a.txt:1",
      "/log/deep/a.txt:4",
      "/log/long:2",
    ]);
    expect(answer.json).toMatchObject({ truncated: true, truncated_by: ["line_length"] });
    expect(answer.json.matches[0]).toEqual({ path: "/etc/conf", line: 1, text: "# needle one" });
    expect(answer.json.matches[2].path_base64).toBe(Buffer.concat([Buffer.from("/log/"), RAW]).toString("base64"));
    expect(answer.json.files_searched).toBe(6);
  });

  test("counts lines correctly across chunks", async () => {
    const { json } = await grep({ pattern: "^line (1|4000|31415|50000) ", path: "/log" });
    expect(json.matches.map(({ line }: Match) => line)).toEqual([1, 4000, 31_415, 50_000]);
    expect(json.matches[2].text).toBe(numbered[31_414]);
  });

  test("searches a file, also through a symlink", async () => {
    expect(locations(await grep({ pattern: "(?i)needle", path: "/etc/link" }))).toEqual(["/etc/conf:1", "/etc/conf:3"]);
    errorOf(await grep({ pattern: "x", path: "/etc/gone" }), "not_found");
    errorOf(await grep({ pattern: "x", path: "etc" }), "invalid_path");
  });

  test.each([
    ["*.log", ["/log/app.log:50001"]],
    ["*.{log,txt}", ["/log/app.log:50001", "/log/deep/a.txt:1", "/log/deep/a.txt:4"]],
    ["**/*.txt", ["/log/deep/a.txt:1", "/log/deep/a.txt:4"]],
    ["log/*/?.txt", ["/log/deep/a.txt:1", "/log/deep/a.txt:4"]],
    ["/etc/*", ["/etc/conf:1"]],
    ["[!a-z]*", []],
    ["c[on]*f", ["/etc/conf:1"]],
    ["*.[l-m]og", ["/log/app.log:50001"]],
    ["a.+", []],
  ])("glob %s", async (glob, expected) => {
    expect(locations(await grep({ pattern: "needle", glob }))).toEqual(expected);
  });

  test("searches for several patterns, in several places in their order", async () => {
    const patterns = [
      ["pattern", "a need,?le"],
      ["pattern", "plain|Needle"],
    ] as const;
    const places = ["/log", "/etc/conf", "/log/deep"].map((path): [string, string] => ["path", path]);
    expect(
      locations(await grep([...patterns.map(([name, value]): [string, string] => [name, value]), ...places])),
    ).toEqual(["/log/deep/a.txt:1", "/log/latin:2", "/etc/conf:3", "/log/deep/a.txt:1"]);
    errorOf(
      await grep([
        ["pattern", "x"],
        ["path", "/etc"],
        ["path", "/none"],
      ]),
      "not_found",
    );
    errorOf(await grep(Array.from({ length: 17 }, (): [string, string] => ["pattern", "x"])), "validation_error");
    errorOf(
      await grep([
        ["pattern", "x"],
        ["path", "/etc"],
        ["path", "etc"],
      ]),
      "invalid_path",
    );
  });

  test.each([
    [["!log"], ["/etc/conf:1"]],
    [
      ["!deep", "!b*"],
      ["/etc/conf:1", "/log/app.log:50001", "/log/long:2"],
    ],
    [
      ["!*.log", "!/log/deep/", "!long"],
      ["/etc/conf:1", "/log/b\ufffd:1"],
    ],
    [
      ["*.{log,txt}", "!app*"],
      ["/log/deep/a.txt:1", "/log/deep/a.txt:4"],
    ],
    [["!*.log", "app.log"], ["/log/app.log:50001"]],
    [["!app.log/", "*.log"], ["/log/app.log:50001"]],
    [["\\!app.log"], []],
  ])("globs %j", async (globs, expected) => {
    const query = globs.map((glob): [string, string] => ["glob", glob]);
    expect(locations(await grep([["pattern", "needle"], ...query]))).toEqual(expected);
  });

  test("returns the lines around a match once, and details of each line, when they are requested", async () => {
    const { json } = await grep({ pattern: "needle", path: "/log/deep", before: "1", after: "1", max_count: "1" });
    expect(json.matches).toEqual([
      {
        ...{ path: "/log/deep/a.txt", line: 1, text: "a needle\r", type: "match", offset: 0, length: 9 },
        ranges: [{ start: 2, end: 8 }],
      },
      { ...{ path: "/log/deep/a.txt", line: 2, text: "", type: "context", offset: 10, length: 0 }, ranges: [] },
    ]);
    const all = await grep({ pattern: "needle", path: "/log/deep", before: "2", after: "2", limit: "2" });
    expect(all.json.matches.map(({ line, type }: { line: number; type: string }) => [line, type])).toEqual([
      [1, "match"],
      [2, "context"],
      [3, "context"],
      [4, "match"],
    ]);
    expect(all.json.truncated).toBe(false);
    const plain = await grep({ pattern: "NEEDLE", path: "/etc", case: "insensitive", details: "true" });
    expect(plain.json.matches.map(({ ranges }: { ranges: object[] }) => ranges)).toEqual([
      [{ start: 2, end: 8 }],
      [{ start: 0, end: 6 }],
    ]);
    expect(locations(await grep({ pattern: "Needle", path: "/etc", case: "smart" }))).toEqual(["/etc/conf:3"]);
    for (const wrong of [{ before: "51" }, { after: "-1" }, { max_count: "0" }, { case: "none" }, { details: "1" }]) {
      errorOf(await grep({ pattern: "x", ...wrong } as Record<string, string>), "validation_error");
    }
  });

  test("returns an object in each line when the request prefers lines, and at the end the bounds", async () => {
    const query = "pattern=needle&path=/log/deep&limit=1";
    const { matches, ...rest } = (await api.call("GET", `/v1/inspect/${image}/grep?${query}`)).json;
    const headers = { accept: "application/x-ndjson" };
    const { text } = await api.call("GET", `/v1/inspect/${image}/grep?${query}`, { headers });
    const rows = text
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line));
    expect(rows).toEqual([...matches, { type: "end", ...rest }]);
    expect(rest).toMatchObject({ truncated: true });
  });

  test("returns lines that are not UTF-8 as bytes", async () => {
    const { json } = await grep({ pattern: "^caf. is", glob: "latin" });
    expect(json.matches).toEqual([
      {
        path: "/log/latin",
        line: 1,
        text: "caf\ufffd is not UTF-8",
        text_base64: Buffer.from("caf\xe9 is not UTF-8", "latin1").toString("base64"),
      },
    ]);
  });

  test("says when there may be more matches, and why", async () => {
    const { json } = await grep({ pattern: "^line", limit: "3" });
    expect(json).toMatchObject({ truncated: true, truncated_by: ["limit"] });
    expect(json.matches).toHaveLength(3);
    expect((await grep({ pattern: "needle", path: "/etc", limit: "1" })).json.truncated).toBe(false);
    expect((await grep({ pattern: "yneedle", glob: "long" })).json.matches).toEqual([]);
    const cut = (await grep({ pattern: " needle", glob: "long" })).json;
    expect(cut.matches).toEqual([{ path: "/log/long", line: 2, text: "z".repeat(4096), text_truncated: true }]);
    expect(cut.truncated_by).toEqual(["line_length"]);
  });

  test.each(["(", "a**", "\\1", "(?=x)", "[z-a]", "((a{100}){100}){100}"])("pattern %s is 400", async (pattern) => {
    expect(errorOf(await grep({ pattern }), "validation_error").details["field"]).toBe("pattern");
  });

  test("runs a pattern without catastrophic backtracking", async () => {
    const id = await api.addImage([[{ path: "a", type: "f", content: "a".repeat(60_000) }]]);
    for (const pattern of ["(a*)*b", "(a|aa)+$x", "(a+a+)+y", `${"a?".repeat(100)}${"a".repeat(100)}b`]) {
      const answer = await api.call("GET", `/v1/inspect/${id}/grep?${new URLSearchParams({ pattern })}`);
      expect(answer.json.matches).toEqual([]);
    }
  }, 60_000);

  test("blocks no other request", async () => {
    const random = seededRandom(1);
    const line = () => `${Array.from({ length: 2000 }, () => "ab"[random.below(2)]).join("")}\n`;
    const content = Array.from({ length: 50 }, line).join("").repeat(40);
    const id = await api.addImage([[{ path: "slow", type: "f", content }]]);
    const left = new AbortController();
    // No search with this pattern ends before its time limit of 10 s.
    const query = new URLSearchParams({ pattern: "a[ab]{998}[^abc]" });
    const headers = { authorization: `Bearer ${api.token}` };
    let endedCount = 0;
    const searches = Array.from({ length: 2 }, async () => {
      const search = fetch(`${api.url}/v1/inspect/${id}/grep?${query}`, { headers, signal: left.signal });
      await search.then(
        () => endedCount++,
        () => undefined,
      );
    });
    for (let count = 0; count < 20; count++) expect((await api.call("GET", `/v1/images/${id}`)).status).toBe(200);
    expect(endedCount).toBe(0);
    left.abort();
    await Promise.all(searches);
  }, 60_000);

  test("wrong parameters are 400", async () => {
    errorOf(await grep({}), "validation_error");
    errorOf(await grep({ pattern: "" }), "validation_error");
    errorOf(await grep({ pattern: "x".repeat(1001) }), "validation_error");
    errorOf(await grep({ pattern: "x", glob: "{a" }), "validation_error");
    errorOf(await grep({ pattern: "x", limit: "0" }), "validation_error");
  });
});
