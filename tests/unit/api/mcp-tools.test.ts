import { expect, test } from "bun:test";
import { TOOLS } from "../../../src/api/mcp/tools.ts";
import { rowsOf, sectionOf } from "../../support/source/documents.ts";

test("the page for agents has every tool with its scope", () => {
  const rows = rowsOf(sectionOf("docs/mcp.md", "What an agent can do")).map((row) => row.replace(/\| [^|`]+ \|/, "|"));
  expect(rows.sort()).toEqual(TOOLS.map(({ name, scope }) => `| \`${name}\` | \`${scope}\` |`).sort());
});

test("read-only and destructive tools are marked", () => {
  const named = (hint: "readOnlyHint" | "destructiveHint") =>
    TOOLS.filter(({ annotations }) => annotations[hint] === true).map(({ name }) => name);
  expect(named("destructiveHint").sort()).toEqual(["delete_image", "end", "sandbox_end", "sandbox_rollback"]);
  const reading = TOOLS.filter(({ scope }) => scope.endsWith(":read")).map(({ name }) => name);
  expect(named("readOnlyHint").sort()).toEqual(reading.sort());
});

test("the description of a tool for a model is short", () => {
  for (const { name, description, inputSchema } of TOOLS) {
    expect([name, description.length < 400]).toEqual([name, true]);
    expect([name, JSON.stringify(inputSchema).length < 2000]).toEqual([name, true]);
  }
});
