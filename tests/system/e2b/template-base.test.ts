/** The template that clients of E2B expect, made on a real machine. */

import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";

setDefaultTimeout(180_000);

let box: BusyboxAppliance;
beforeAll(async () => {
  box = await BusyboxAppliance.start({ poolSize: 1, tag: "busybox" });
});
afterAll(() => box[Symbol.asyncDispose]());

/** The output of a command in an image, as root. */
async function output(image: string, command: string): Promise<string> {
  const { code, stdout, stderr } = await box.appliance.command(["run", "--image", image, "--shell", "--", command]);
  if (code !== 0) throw new Error(`${command}: ${code} ${stderr}${stdout}`);
  return stdout.trimEnd();
}

test("an image gets the user of a template, and what it lacks is named", async () => {
  const prepared = await box.appliance.command(["e2b", "template", "base", "tag:busybox"]);
  expect([prepared.code, prepared.stderr]).toEqual([
    0,
    "coppice e2b template base: base has no bash, git, python3, sudo; --network allows apt-get to install it\n",
  ]);
  const whole = "id user; grep ^user: /etc/passwd /etc/group; stat -c '%a %U %G' /home/user";
  expect((await output("tag:base", whole)).split("\n")).toEqual([
    "uid=1000(user) gid=1000(user) groups=1000(user)",
    "/etc/passwd:user:x:1000:1000::/home/user:/bin/sh",
    "/etc/group:user:x:1000:",
    "755 user user",
  ]);
});

test("a user that exists stays, and a taken id is not given twice", async () => {
  const prepare = [
    "mkdir -p /etc/sudoers.d /etc/skel; echo hello > /etc/skel/.profile; printf 'root:*:::::::' > /etc/shadow",
    "echo node:x:1000:1000::/home/node:/bin/sh >> /etc/passwd; printf 'staff:x:1001:' >> /etc/group",
  ].join("; ");
  const image = await box.appliance.command(["run", "--image", "tag:busybox", "--tag", "x", "--shell", "--", prepare]);
  expect(image.code).toBe(0);
  for (const reference of ["tag:x", "tag:other"]) {
    const prepared = await box.appliance.command([
      "e2b",
      "template",
      "base",
      reference,
      "--name",
      "other",
      "--user",
      "me",
    ]);
    expect(prepared.code).toBe(0);
  }
  const lines = "grep -c ^me: /etc/passwd; id -u me; tail -n 2 /etc/group; stat -c %u /home/me/.profile";
  expect(await output("tag:other", `${lines}; cat /etc/sudoers.d/me; grep -v root /etc/shadow`)).toBe(
    ["1", "1002", "staff:x:1001:", "me:x:1002:", "1002", "me ALL=(ALL:ALL) NOPASSWD: ALL", "me:*:::::::"].join("\n"),
  );
});

test("a name that is none is refused before anything runs", async () => {
  const refused = await box.appliance.command(["e2b", "template", "base", "tag:busybox", "--user", "a:b"]);
  expect([refused.code, refused.stderr.split("\n")[0]]).toEqual([
    2,
    "coppice e2b template base: --user a:b is not a name of a user",
  ]);
});
