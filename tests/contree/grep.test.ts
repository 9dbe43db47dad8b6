import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { UNKNOWN_UUID } from "../support/api/samples.ts";
import { Contree, contreeError } from "../support/contree/contree.ts";

let contree: Contree;
let image = "";

/** Files of the image: text, a link to it, a hidden file, CRLF without a last line feed, bytes that are not UTF-8, and NUL. */
const SCRIPT = [
  "mkdir -p /t/sub /t/.hidden && cd /t",
  "printf 'alpha\\nbeta Needle\\ngamma\\ndelta\\nneedle needle\\nlast\\n' > a.txt",
  "ln -s a.txt link",
  "printf 'needle\\r\\nend needle' > sub/b.md",
  "printf 'needle\\n' > .hidden/c.txt",
  "printf 'caf\\351 needle\\n' > latin",
  "printf 'needle\\0\\n' > binary",
  "head -c 5000 /dev/zero | tr '\\0' y > long && echo needle >> long",
].join("; ");

beforeAll(async () => {
  contree = await Contree.start();
  image = String((await contree.appliance.run(contree.image, SCRIPT)).result?.["image"]);
});
afterAll(() => contree[Symbol.asyncDispose]());

const grep = (query: readonly (readonly [string, string])[], id = image) =>
  contree.call(
    "GET",
    `/inspect/${id}/grep?${new URLSearchParams(query.map(([name, value]): [string, string] => [name, value]))}`,
  );
type Match = { path: string; line_number: number; type: string };
const placesOf = (matches: Match[]) => matches.map(({ path, line_number: line }) => `${path}:${line}`);

describe("GET /inspect/{uuid}/grep", () => {
  test("answers with lines, their offsets, and the parts that match", async () => {
    const { status, json } = await grep([
      ["pattern", "needle"],
      ["path", "/t/a.txt"],
      ["path", "/t/sub"],
      ["path", "/t/latin"],
    ]);
    expect(status).toBe(200);
    const submatch = (start: number) => ({ text: "needle", start, end: start + 6 });
    expect(json).toEqual({
      ...{ path: "/t/a.txt", patterns: ["needle"], truncated: false },
      matches: [
        {
          ...{ path: "/t/a.txt", line_number: 5, absolute_offset: 30, line_text: "needle needle\n", line_bytes: 14 },
          ...{ submatches: [submatch(0), submatch(7)], type: "match" },
        },
        {
          ...{ path: "/t/sub/b.md", line_number: 1, absolute_offset: 0, line_text: "needle\r\n", line_bytes: 8 },
          ...{ submatches: [submatch(0)], type: "match" },
        },
        {
          ...{ path: "/t/sub/b.md", line_number: 2, absolute_offset: 8, line_text: "end needle", line_bytes: 10 },
          ...{ submatches: [submatch(4)], type: "match" },
        },
        {
          ...{ path: "/t/latin", line_number: 1, absolute_offset: 0, line_text: "caf\ufffd needle\n", line_bytes: 12 },
          ...{ submatches: [submatch(5)], type: "match" },
        },
      ],
    });
  });

  test("follows no links, searches hidden files, and leaves out those with NUL", async () => {
    const { json } = await grep([
      ["pattern", "^needle"],
      ["path", "/t"],
    ]);
    expect(placesOf(json.matches)).toEqual(["/t/.hidden/c.txt:1", "/t/a.txt:5", "/t/sub/b.md:1"]);
  });

  test("accepts several patterns and globs, and ignores case on request", async () => {
    const search = async (...query: [string, string][]) =>
      placesOf((await grep([["path", "/t"], ...query])).json.matches);
    expect(await search(["pattern", "alpha"], ["pattern", "gam{1,}a"])).toEqual(["/t/a.txt:1", "/t/a.txt:3"]);
    const txt = ["glob", "*.txt"] as [string, string];
    expect(await search(["pattern", "NEEDLE"], ["case", "insensitive"], txt, ["glob", "!.hidden"])).toEqual([
      "/t/a.txt:2",
      "/t/a.txt:5",
    ]);
    expect(await search(["pattern", "Needle"], ["case", "smart"])).toEqual(["/t/a.txt:2"]);
    expect(await search(["pattern", "NEEDLE"])).toEqual([]);
  });

  test("adds lines of context once, and marks them", async () => {
    const { json } = await grep([
      ["pattern", "(?i)needle"],
      ["before", "1"],
      ["after", "1"],
      ["path", "/t/a.txt"],
    ]);
    expect(json.matches.map(({ line_number: line, type }: Match) => `${line} ${type}`)).toEqual([
      ...["1 context", "2 match", "3 context", "4 context", "5 match", "6 context"],
    ]);
    expect(json.matches[0]).toEqual({
      ...{ path: "/t/a.txt", line_number: 1, absolute_offset: 0, line_text: "alpha\n", line_bytes: 6 },
      ...{ submatches: [], type: "context" },
    });
  });

  test("cuts long lines, and has their lengths", async () => {
    const { json } = await grep([
      ["pattern", "needle"],
      ["path", "/t/long"],
    ]);
    const [match] = json.matches;
    expect(match.line_text).toBe("y".repeat(4096));
    expect([match.line_bytes, match.submatches]).toEqual([5007, [{ text: "", start: 5000, end: 5006 }]]);
  });

  test("stops at the limits of a file and of all", async () => {
    const all = [
      ["pattern", "needle"],
      ["path", "/t"],
    ] as const;
    const limited = await grep([...all, ["max_total", "2"]]);
    expect([limited.json.truncated, limited.json.matches.length]).toEqual([true, 2]);
    const each = await grep([...all, ["max_count", "1"], ["path", "/t/sub"]]);
    expect(each.json.truncated).toBe(false);
    expect(placesOf(each.json.matches)).toEqual([
      ...["/t/.hidden/c.txt:1", "/t/a.txt:5", "/t/latin:1", "/t/long:1", "/t/sub/b.md:1", "/t/sub/b.md:1"],
    ]);
  });

  test("refuses values out of bounds, with the reason", async () => {
    const refused = async (...query: [string, string][]) => contreeError(await grep(query), 400, "validation_error");
    expect(await refused(["pattern", "("])).toContain("pattern is not valid");
    expect(await refused()).toContain("pattern is required");
    await refused(["pattern", "x".repeat(1025)]);
    await refused(...Array.from({ length: 17 }, (): [string, string] => ["pattern", "x"]));
    await refused(["pattern", "x"], ...Array.from({ length: 17 }, (): [string, string] => ["path", "/t"]));
    for (const wrong of ["before=51", "after=x", "max_count=0", "max_total=10001", "case=upper"]) {
      await refused(["pattern", "x"], wrong.split("=") as [string, string]);
    }
    expect(
      (
        await grep([
          ["pattern", "x".repeat(1024)],
          ["max_total", "10000"],
          ["before", "50"],
        ])
      ).status,
    ).toBe(200);
    contreeError(
      await grep([
        ["pattern", "x"],
        ["path", "/none"],
      ]),
      404,
      "not_found",
    );
    contreeError(await grep([["pattern", "x"]], UNKNOWN_UUID), 404, "not_found");
  });
});
