import { describe, expect, test } from "bun:test";
import { linkTo, linkWith, numberIn, parseLink } from "../../../../src/web/image/link.ts";
import {
  childOf,
  type EncodedPath,
  parentOf,
  pathFrom,
  pathFromText,
  pathInQuery,
  ROOT,
  savedName,
  shownName,
  shownPath,
  stepsTo,
} from "../../../../src/web/image/paths.ts";
import { partsOf, printable } from "../../../../src/web/text/printable.ts";

const RAW = Buffer.from([0x2f, 0x61, 0xff, 0x2f, 0xc3, 0xa9]);

describe("paths of guests", () => {
  test("are the same text for the same bytes", () => {
    expect(pathFromText("/a b/é%")).toBe("/a%20b/%C3%A9%25" as EncodedPath);
    expect(pathFromText("a//b/./c/")).toBe("/a/b/c" as EncodedPath);
    expect(pathFrom({ path: "/a\ufffd/é", path_base64: RAW.toString("base64") })).toBe("/a%FF/%C3%A9" as EncodedPath);
    expect(pathInQuery("?view=files&path=/a%ff/%c3%a9", "path")).toBe("/a%FF/%C3%A9" as EncodedPath);
    expect(pathInQuery("?path=/a+b%2Bc", "path")).toBe("/a%20b%2Bc" as EncodedPath);
    expect(pathInQuery("?path=/100%", "path")).toBe("/100%25" as EncodedPath);
    expect(pathInQuery("?other=1", "path")).toBeNull();
  });

  test("are shown as text, with an escape for each byte that is not text", () => {
    expect(printable(shownPath("/a%FF/%C3%A9"))).toBe("/a\\xff/é");
    expect(printable(shownPath("/%F0%9F%8C/%F0%9F%8C%B3"))).toBe("/\\xf0\\x9f\\x8c/🌳");
    expect(partsOf(shownPath("/\\xff%FF")).map(({ text }) => text)).toEqual(["/\\xff", "\\xff"]);
    expect(shownPath("/%EF%BF%BD")).toBe("/\ufffd");
    expect(shownName("/a/%3Cb%3E" as EncodedPath)).toBe("<b>");
    expect(shownName(ROOT)).toBe("/");
  });

  test("have entries, a parent and steps", () => {
    const child = childOf(ROOT, { name: "a\ufffd", name_base64: Buffer.from([0x61, 0xff]).toString("base64") });
    expect(child).toBe("/a%FF" as EncodedPath);
    expect(childOf(child, { name: "?&=#" })).toBe("/a%FF/%3F%26%3D%23" as EncodedPath);
    expect(parentOf("/a%FF/b" as EncodedPath)).toBe("/a%FF" as EncodedPath);
    expect(parentOf("/a" as EncodedPath)).toBe(ROOT);
    expect(stepsTo("/a/b" as EncodedPath)).toEqual(["/", "/a", "/a/b"] as EncodedPath[]);
  });

  test("give file names that all systems accept", () => {
    expect(savedName("/etc/pass%2Fwd" as EncodedPath)).toBe("pass_wd");
    expect(savedName("/%0A%E2%80%AEexe" as EncodedPath)).toBe("_n_u202eexe");
    expect(savedName(ROOT)).toBe("root");
    expect(savedName("/.." as EncodedPath)).toBe("root");
  });
});

describe("links of an image", () => {
  test("keep their targets, including the bytes", () => {
    const link = linkTo("id", "files", "/a%FF" as EncodedPath, { line: 12, as: null, filter: "a&b" });
    expect(link).toBe("/images/id?view=files&path=/a%FF&line=12&filter=a%26b");
    const parsed = parseLink("id", new URL(link, "http://page.invalid").search);
    expect(parsed).toMatchObject({ image: "id", view: "files", path: "/a%FF" });
    expect(parsed.fields.get("filter")).toBe("a&b");
    expect(linkWith(parsed, { line: null })).toBe("/images/id?view=files&path=/a%FF&filter=a%26b");
  });

  test("without a path lead to the root", () => {
    expect(parseLink("id", "?view=none")).toMatchObject({ view: "files", path: "/" });
    expect(numberIn(new URLSearchParams("line=1e3&at=-1&first=0&a=99999999999999999999&b=7"), "line", 1)).toBeNull();
    expect(numberIn(new URLSearchParams("first=0"), "first", 1)).toBeNull();
    expect(numberIn(new URLSearchParams("b=7"), "b", 1)).toBe(7);
  });
});
