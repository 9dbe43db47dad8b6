import { describe, expect, test } from "bun:test";
import { queryOf, routeOf } from "../../../src/web/browser/links.ts";

describe("links of the page", () => {
  test("are parsed", () => {
    const { path, segments, parameters } = routeOf("/images/019a%2Fb?view=files&path=%2Fsrv%20x");
    expect(path).toBe("/images/019a%2Fb");
    expect(segments).toEqual(["images", "019a/b"]);
    expect(parameters.get("path")).toBe("/srv x");
    expect(routeOf("/").segments).toEqual([]);
  });

  test("with typing errors do not throw", () => {
    expect(routeOf("/images/%E0%A4%A").segments).toEqual(["images", "%E0%A4%A"]);
    expect(routeOf("//evil.example/x").path).toBe("//evil.example/x");
  });

  test("have no empty values in their query", () => {
    expect(queryOf({ view: "files", path: "/a b&c", against: null, page: undefined, kind: "", on: false })).toBe(
      "?view=files&path=%2Fa+b%26c",
    );
    expect(queryOf({})).toBe("?");
  });
});
