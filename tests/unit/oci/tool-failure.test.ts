import { expect, test } from "bun:test";
import { commonFailure } from "../../../src/oci/tool-failure.ts";
import { CommandError } from "../../../src/system/exec.ts";

const failed = (stderrTail: string) =>
  new CommandError("failed", { argv: ["umoci"], exitCode: 1, signal: null, timedOut: false, stderrTail });

test("an extended attribute that is too large is not reported as a full disk", () => {
  const where = "create rootfs: unpack layer: unpack entry: a: apply hdr metadata";
  const attribute = `${where}: restore xattr metadata: /root/a: no space left on device`;
  expect(commonFailure(failed(attribute), 1000)).toMatchObject({ code: "payload_too_large" });
  const content = "create rootfs: unpack layer: unpack entry: a: write /root/a: no space left on device";
  expect(commonFailure(failed(content), 1000)).toMatchObject({ code: "insufficient_storage" });
  expect(commonFailure(failed("something else"), 1000)).toBeNull();
});
