/** Guests that prevent the capture of their files. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { execute, resultOf } from "../../support/runs.ts";

setDefaultTimeout(180_000);

/** Gives the command the disk of its scratch: `$disk` is its directory in /sys, /tmp/d/s its node, /tmp/m its mount. */
const HAVE_SCRATCH = `
  mkdir /tmp/d /tmp/m && mount -t tmpfs -o dev none /tmp/d
  for disk in /sys/block/sd*; do [ "$(cat $disk/ro)" = 0 ] && break; done
  mknod /tmp/d/s b $(sed 's/:/ /' $disk/dev) && mount -t ext4 /tmp/d/s /tmp/m && echo changed > /root/file || exit 9
`;
const FREEZE = "fsfreeze --freeze /tmp/m || exit 8";

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let image: string;

beforeAll(async () => {
  ({ appliance, image } = owned.use(await BusyboxAppliance.start({ poolSize: 2, tag: "busybox" })));
});

afterAll(async () => {
  await owned.disposeAsync();
});

describe("a guest that damages its own files fails with an error that blames it", () => {
  test.each([
    ["by freezing its file system", FREEZE, /read-only mount of the scratch/],
    ["by taking its disk away", "mount -o remount,rw /sys && echo 1 > $disk/device/delete || exit 8", /the scratch/],
    ["by writing over it", "sync; dd if=/dev/urandom of=/tmp/d/s bs=4k count=64 conv=notrunc || exit 8", /the scratch/],
  ])("%s", async (_name, command, message) => {
    const operation = await appliance.run(image, `${HAVE_SCRATCH}${command}; exit 7`);
    expect(operation).toMatchObject({
      status: "FAILED",
      error: {
        error: "conflict",
        message: expect.stringMatching(message),
        details: { reason: "capture_failed", exit_code: 7, timed_out: false, errno: expect.any(Number) },
      },
    });
  });

  test("and keeps its result, without an image, when its command had timed out", async () => {
    const command = `${HAVE_SCRATCH}${FREEZE}; while :; do sleep 1; done`;
    const result = resultOf(await appliance.run(image, command, { timeout: 5 }));
    expect(result).toMatchObject({ exit_code: 137, timed_out: true });
    expect(result).not.toHaveProperty("image");
  });

  test("and affects no other run", async () => {
    expect(await execute(appliance, { image, command: "true" })).toMatchObject({ exit_code: 0 });
    expect((await appliance.leftovers()).filter((name) => !name.startsWith("vms/"))).toEqual([]);
  });
});
