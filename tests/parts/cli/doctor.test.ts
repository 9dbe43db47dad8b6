import { expect, test } from "bun:test";
import { tmpdir } from "node:os";
import { cli } from "../../support/cli/cli.ts";

test("the exit code of doctor --json agrees with the verdict", async () => {
  const { code, stdout } = await cli(["doctor", "--json", "--no-boot"], {
    environment: { COPPICE_DATA_DIR: tmpdir() },
  });
  const { healthy, findings } = JSON.parse(stdout.toString());
  expect(code).toBe(healthy ? 0 : 1);
  expect(findings.map(({ name }: { name: string }) => name)).toEqual(
    expect.arrayContaining(["processor", "root", "kvm", "qemu", "skopeo", "umoci", "cgroups", "data directory"]),
  );
  expect(healthy).toBe(findings.every(({ state }: { state: string }) => state !== "problem"));
});

test("doctor --install leaves a host alone that has every package", async () => {
  const environment = { COPPICE_DATA_DIR: tmpdir() };
  const { stdout, stderr } = await cli(["doctor", "--install", "--no-boot"], { environment });
  expect(stderr.toString()).toBe("");
  expect(stdout.toString()).toContain("✓ skopeo");
});
