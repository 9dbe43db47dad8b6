import { expect, test } from "bun:test";
import { placeText, sandboxNamed } from "../../../src/cli/place.ts";

const UUID = "01a20aeb-ff4b-7456-b3cf-b2b4884b89c0";

test("a sandbox is named by its UUID, also as the clients of E2B write it, or by its name", () => {
  for (const text of [UUID, UUID.toUpperCase(), UUID.replaceAll("-", "")]) {
    expect(sandboxNamed(text)).toEqual({ sandbox: UUID });
  }
  expect(sandboxNamed("dev")).toEqual({ sandbox: "name:dev" });
  expect(placeText(sandboxNamed(`name:${UUID.replaceAll("-", "")}`))).toBe(UUID.replaceAll("-", ""));
});
