import { expect, test } from "bun:test";
import { COPY_SCRIPT, EXPLAINED } from "../../../src/domain/templates/scripts.ts";

test("a copy into an image without tar says so, and touches nothing", async () => {
  const args = ["", "a", "/nowhere/b", "root:", "", "/", "root", ""];
  const script = Bun.spawn(["/bin/sh", "-c", COPY_SCRIPT, "/bin/sh", ...args], {
    env: { PATH: "/nowhere" },
    stderr: "pipe",
  });
  expect([await new Response(script.stderr).text(), await script.exited]).toEqual([
    "the image has no tar, which COPY needs\n",
    EXPLAINED,
  ]);
});
